//! Parses permission rules in OpenCode's format.

use remuda_domain::agent::{AgentDefinition, PermissionAction, PermissionRule};

use remuda_permissions::{KEYS, Layer, Ruleset, fits, opencode_key, permission_of};

use super::tools::{NATIVE, foreign_permission};
use crate::{
    parse::{Fields, Node, Position, Value, quoted},
    report::Reporter,
};

pub(crate) const ACTIONS: [(&str, PermissionAction); 3] =
    [("allow", PermissionAction::Allow), ("ask", PermissionAction::Ask), ("deny", PermissionAction::Deny)];

/// Bounds the cost of a tool call, which is matched against all rules.
const MAX_RULES: usize = 200;
const MAX_TEXT: usize = 512;

/// A rule with its position in the file.
pub(crate) struct LocatedRule {
    at: Position,
    rule: PermissionRule,
    /// Contains an environment variable's value, so it is never shown.
    from_env: bool,
}

impl LocatedRule {
    pub(crate) fn new(
        at: Position,
        permission: impl Into<String>,
        pattern: &str,
        action: PermissionAction,
    ) -> Self {
        Self { at, rule: PermissionRule::new(permission, pattern, action), from_env: false }
    }

    pub(crate) fn with_from_env(self, from_env: bool) -> Self {
        Self { from_env, ..self }
    }
}

/// The permission for a key of a rule map.
pub(crate) fn permission_for_key(key: &str) -> &str {
    opencode_key(key)
}

/// The permission that governs a tool, by its native or its OpenHarness name.
pub(crate) fn permission_for_tool(tool: &str) -> &str {
    match tool {
        // Their own permissions: reading the output of commands does not imply running any command.
        "BashOutput" | "KillBash" => tool,
        _ => foreign_permission(tool).unwrap_or_else(|| permission_of(tool)),
    }
}

/// Parses the key `permission` of an agent.
pub(super) fn parse(fields: &Fields<'_>) -> Vec<PermissionRule> {
    let Some(node) = fields.get("permission") else { return Vec::new() };
    let rules = rules_from_map(fields, "permission", node);
    check_rules(fields.reporter, node.at, &fields.name("permission"), rules)
}

/// Parses one action for everything, one per permission, or one per pattern of a permission. Order matters.
pub(crate) fn rules_from_map<'a>(fields: &Fields<'a>, key: &str, node: &'a Node) -> Vec<LocatedRule> {
    if !matches!(node.value, Value::Map(_)) {
        let action = action(fields, key, node);
        return action.map(|action| LocatedRule::new(node.at, "*", "*", action)).into_iter().collect();
    }
    let Some(permissions) = fields.as_map(key, node) else { return Vec::new() };
    let mut rules = Vec::new();
    for entry in permissions.entries() {
        let key = opencode_key(&entry.key);
        if !matches!(entry.value.value, Value::Map(_)) {
            let action = action(&permissions, &entry.key, &entry.value);
            rules.extend(action.map(|action| LocatedRule::new(entry.at, key, "*", action)));
            continue;
        }
        let Some(patterns) = permissions.as_map(&entry.key, &entry.value) else { continue };
        for pattern in patterns.entries() {
            let action = action(&patterns, &pattern.key, &pattern.value);
            rules.extend(action.map(|action| LocatedRule::new(pattern.at, key, &pattern.key, action)));
        }
    }
    rules
}

/// Checks number and length of the rules of one block, and warns of rules without effect.
pub(crate) fn check_rules(
    reporter: &Reporter<'_>,
    at: Position,
    name: &str,
    rules: Vec<LocatedRule>,
) -> Vec<PermissionRule> {
    let sized = |text: &str| (1..=MAX_TEXT).contains(&text.len()) && !text.contains('\0');
    if rules.len() > MAX_RULES {
        reporter.error(at, format!("{name}: expected at most {MAX_RULES} rules, found {}", rules.len()));
        return Vec::new();
    }
    for LocatedRule { at, rule, .. } in &rules {
        if !sized(&rule.permission) || !sized(&rule.pattern) {
            let message = format!("{name}: expected a permission and a pattern of 1 to {MAX_TEXT} bytes");
            reporter.error(*at, message);
        }
    }
    warn_of_contradictions(reporter, &rules);
    rules.into_iter().map(|located| located.rule).collect()
}

/// Warns of rules that a later rule of the same block overrides completely. Overriding a rule of another block is
/// intended.
fn warn_of_contradictions(reporter: &Reporter<'_>, rules: &[LocatedRule]) {
    // Any layer will do, since there is only one.
    const LAYER: Layer = Layer::Agent;
    // An estimate of the cost: each rule is compared with all others.
    const BUILT_IN: usize = 200;
    let bytes: usize =
        rules.iter().map(|located| located.rule.pattern.len() + located.rule.permission.len()).sum();
    if !reporter.has_effort_left(bytes.saturating_mul(rules.len() + BUILT_IN)) {
        return;
    }
    let ruleset = Ruleset::new().with(LAYER, rules.iter().map(|located| located.rule.clone()));
    let mut reported: Vec<&LocatedRule> = Vec::new();
    for found in ruleset.contradictions().iter().filter(|it| it.layer == LAYER && it.by_layer == LAYER) {
        let is_it = |located: &&LocatedRule| located.rule == found.rule;
        let new = |located: &&LocatedRule| !reported.iter().any(|other| std::ptr::eq(*other, *located));
        let Some(located) = rules.iter().filter(is_it).find(new) else { continue };
        reported.push(located);
        let says = found.by.action.as_str();
        let message = if rules.iter().any(|located| located.from_env) {
            format!("the rule has no effect: a later rule says {says}")
        } else {
            let (rule, by) = (shown(&found.rule), shown(&found.by));
            format!("the rule {rule} has no effect: the later rule {by} says {says}")
        };
        reporter.warn(located.at, message);
    }
}

fn shown(rule: &PermissionRule) -> String {
    quoted(&format!("{}: {}", rule.permission, rule.pattern))
}

fn action(fields: &Fields<'_>, key: &str, node: &Node) -> Option<PermissionAction> {
    if matches!(node.value, Value::Unusable) {
        return None;
    }
    fields.as_choice(key, node, &ACTIONS)
}

/// Parses `tools`, the older form: a map from tool names to booleans.
pub(super) fn parse_tools(fields: &Fields<'_>) -> Vec<PermissionRule> {
    let Some(tools) = fields.map("tools") else { return Vec::new() };
    let mut rules = Vec::new();
    for entry in tools.entries() {
        let choices = [("true", PermissionAction::Allow), ("false", PermissionAction::Deny)];
        let action = match &entry.value.value {
            Value::Scalar(scalar) if scalar.plain => {
                choices.iter().find(|(word, _)| *word == scalar.text).map(|(_, action)| *action)
            }
            Value::Unusable => continue,
            _ => None,
        };
        match action {
            Some(action) => rules.push(rule(opencode_key(&entry.key), "*", action)),
            None => tools.expected(&entry.key, &entry.value, "true or false"),
        }
    }
    rules
}

fn rule(permission: &str, pattern: &str, action: PermissionAction) -> PermissionRule {
    PermissionRule::new(permission, pattern, action)
}

/// Removes the tools whose last matching rule denies them completely.
pub(super) fn remove_denied_tools(agent: &mut AgentDefinition) {
    let rules = &agent.permission;
    for native in NATIVE {
        if denies(rules, permission_of(native)) && !agent.disallowed.native.iter().any(|n| n == native) {
            agent.disallowed.native.push(native.to_owned());
        }
    }
    if denies(rules, "skill") {
        agent.disallowed.skills = vec!["*".to_owned()];
    }
    // Every permission that is not a key of OpenCode's own tools belongs to a tool server.
    let of_server = |rule: &&PermissionRule| !KEYS.contains(&rule.permission.as_str()) && rule.pattern == "*";
    let everything = rules.iter().rposition(|rule| rule.permission == "*" && rule.pattern == "*");
    let all_denied = everything.is_some_and(|index| rules[index].action == PermissionAction::Deny);
    if all_denied {
        let later = rules.iter().skip(everything.unwrap_or_default());
        let allowed = later.filter(of_server).filter(|rule| rule.action != PermissionAction::Deny);
        let server =
            |rule: &PermissionRule| rule.permission.trim_end_matches('*').trim_end_matches('_').to_owned();
        agent.tools.external = Some(allowed.map(server).collect());
        agent.tools.actions = Some(Vec::new());
    }
    let denied: Vec<String> = rules
        .iter()
        .filter(of_server)
        .filter(|rule| denies(rules, &rule.permission))
        .map(|rule| rule.permission.clone())
        .collect();
    for name in denied {
        if !agent.disallowed.external.contains(&name) {
            agent.disallowed.external.push(name);
        }
    }
}

/// Whether the last rule for a permission denies it completely.
fn denies(rules: &[PermissionRule], permission: &str) -> bool {
    let last = rules.iter().rev().find(|rule| fits(&rule.permission, permission));
    last.is_some_and(|rule| rule.pattern == "*" && rule.action == PermissionAction::Deny)
}

/// Whether the rules allow an agent to delegate to another one.
pub(super) fn may_delegate(rules: &[PermissionRule], target: &str) -> bool {
    let last = rules.iter().rev().find(|rule| fits(&rule.permission, "task") && fits(&rule.pattern, target));
    last.is_none_or(|rule| rule.action != PermissionAction::Deny)
}
