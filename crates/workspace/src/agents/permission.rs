//! Parses permission rules in OpenCode's format.

use remuda_domain::{
    agent::{AgentDefinition, PermissionAction, PermissionRule},
    tool::{ForeignFormat, ToolCatalog, ToolOffer, ToolRole},
};

use remuda_permissions::{Layer, Ruleset, fits, is_known_permission, opencode_key};

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
pub(crate) fn permission_for_tool<'a>(tools: &'a ToolCatalog, tool: &'a str) -> &'a str {
    match tools.get(tool).or_else(|| tools.equivalents(ForeignFormat::OpenHarness, tool).next()) {
        // Reading the output of commands does not imply running any command.
        Some(known) if !known.is_follow_up => &known.permission,
        _ => tool,
    }
}

/// Parses the key `permission` of an agent.
pub(super) fn parse(fields: &Fields<'_>, tools: &ToolCatalog) -> Vec<PermissionRule> {
    let Some(node) = fields.get("permission") else { return Vec::new() };
    let rules = rules_from_map(fields, "permission", node);
    check_rules(fields.reporter, tools, node.at, &fields.name("permission"), rules)
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
    tools: &ToolCatalog,
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
    warn_of_contradictions(reporter, tools, &rules);
    rules.into_iter().map(|located| located.rule).collect()
}

/// Warns of rules that a later rule of the same block overrides completely. Overriding a rule of another block is
/// intended.
fn warn_of_contradictions(reporter: &Reporter<'_>, tools: &ToolCatalog, rules: &[LocatedRule]) {
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
    let contradictions = ruleset.contradictions(tools);
    for found in contradictions.iter().filter(|it| it.layer == LAYER && it.by_layer == LAYER) {
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
pub(super) fn remove_denied_tools(agent: &mut AgentDefinition, tools: &ToolCatalog) {
    let rules = &agent.permission;
    for tool in tools.iter().filter(|tool| tool.offer == ToolOffer::Listed) {
        let disallowed = &mut agent.disallowed.native;
        if denies(rules, &tool.permission) && !disallowed.iter().any(|name| *name == tool.name) {
            disallowed.push(tool.name.clone().into_owned());
        }
    }
    if tools.with_role(ToolRole::ReadSkills).is_some_and(|tool| denies(rules, &tool.permission)) {
        agent.disallowed.skills = vec!["*".to_owned()];
    }
    // Any other permission belongs to a tool server.
    let of_server =
        |rule: &&PermissionRule| !is_known_permission(tools, &rule.permission) && rule.pattern == "*";
    let everything = rules.iter().rposition(|rule| rule.permission == "*" && rule.pattern == "*");
    let all_denied = everything.is_some_and(|index| rules[index].action == PermissionAction::Deny);
    if all_denied {
        let later = rules.iter().skip(everything.unwrap_or_default());
        let allowed = later.filter(of_server).filter(|rule| rule.action != PermissionAction::Deny);
        let server =
            |rule: &PermissionRule| rule.permission.trim_end_matches('*').trim_end_matches('_').to_owned();
        let allowed: Vec<String> = allowed.map(server).collect();
        let is_listed = |name: &String| match &agent.tools.external {
            None => true,
            Some(names) => names.iter().any(|it| it == "*" || it == name),
        };
        agent.tools.external = Some(allowed.into_iter().filter(is_listed).collect());
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
pub(super) fn may_delegate(rules: &[PermissionRule], tools: &ToolCatalog, target: &str) -> bool {
    let Some(tool) = tools.with_role(ToolRole::Delegate) else { return false };
    let of_target =
        |rule: &&PermissionRule| fits(&rule.permission, &tool.permission) && fits(&rule.pattern, target);
    let last = rules.iter().rev().find(of_target);
    last.is_none_or(|rule| rule.action != PermissionAction::Deny)
}
