//! Permissions in the terms of OpenCode.

use remuda_domain::agent::{AgentDefinition, PermissionAction, PermissionRule};

use remuda_permissions::{KEYS, Layer, Ruleset, fits, opencode_key, permission_of};

use super::tools::{NATIVE, foreign_permission};
use crate::{
    report::Place,
    text::{Fields, Node, Position, Value, quoted},
};

pub(crate) const ACTIONS: [(&str, PermissionAction); 3] =
    [("allow", PermissionAction::Allow), ("ask", PermissionAction::Ask), ("deny", PermissionAction::Deny)];

/// Each tool call is compared with all of them.
const MAX_RULES: usize = 200;
const MAX_TEXT: usize = 512;

/// A rule and where it stands.
pub(crate) struct Placed {
    at: Position,
    rule: PermissionRule,
    /// Holds something of the environment, so it is never shown.
    hidden: bool,
}

impl Placed {
    pub(crate) fn new(
        at: Position,
        permission: impl Into<String>,
        pattern: &str,
        action: PermissionAction,
    ) -> Self {
        Self { at, rule: PermissionRule::new(permission, pattern, action), hidden: false }
    }

    pub(crate) fn hidden(self, hidden: bool) -> Self {
        Self { hidden, ..self }
    }
}

/// The permission that a key of a map means.
pub(crate) fn of_key(key: &str) -> &str {
    opencode_key(key)
}

/// The permission that decides about a tool, by its name here or in OpenHarness.
pub(crate) fn of_tool(tool: &str) -> &str {
    match tool {
        // By their own names: to look at what commands say is not to be allowed all commands.
        "BashOutput" | "KillBash" => tool,
        _ => foreign_permission(tool).unwrap_or_else(|| permission_of(tool)),
    }
}

/// `permission` of an agent.
pub(super) fn take(fields: &Fields<'_>) -> Vec<PermissionRule> {
    let Some(node) = fields.get("permission") else { return Vec::new() };
    let rules = of_map(fields, "permission", node);
    finish(fields.place, node.at, &fields.name("permission"), rules)
}

/// One action for everything, or one per permission, or one per pattern of it. Order matters.
pub(crate) fn of_map<'a>(fields: &Fields<'a>, key: &str, node: &'a Node) -> Vec<Placed> {
    if !matches!(node.value, Value::Map(_)) {
        let action = action(fields, key, node);
        return action.map(|action| Placed::new(node.at, "*", "*", action)).into_iter().collect();
    }
    let Some(permissions) = fields.as_map(key, node) else { return Vec::new() };
    let mut rules = Vec::new();
    for entry in permissions.entries() {
        let key = opencode_key(&entry.key);
        if !matches!(entry.value.value, Value::Map(_)) {
            let action = action(&permissions, &entry.key, &entry.value);
            rules.extend(action.map(|action| Placed::new(entry.at, key, "*", action)));
            continue;
        }
        let Some(patterns) = permissions.as_map(&entry.key, &entry.value) else { continue };
        for pattern in patterns.entries() {
            let action = action(&patterns, &pattern.key, &pattern.value);
            rules.extend(action.map(|action| Placed::new(pattern.at, key, &pattern.key, action)));
        }
    }
    rules
}

/// The rules that were written in one place, if they are not too many. Those that never decide anything are told.
pub(crate) fn finish(place: &Place<'_>, at: Position, name: &str, rules: Vec<Placed>) -> Vec<PermissionRule> {
    let sized = |text: &str| (1..=MAX_TEXT).contains(&text.len()) && !text.contains('\0');
    if rules.len() > MAX_RULES {
        place.error(at, format!("{name}: expected at most {MAX_RULES} rules, found {}", rules.len()));
        return Vec::new();
    }
    for Placed { at, rule, .. } in &rules {
        if !sized(&rule.permission) || !sized(&rule.pattern) {
            let message = format!("{name}: expected a permission and a pattern of 1 to {MAX_TEXT} bytes");
            place.error(*at, message);
        }
    }
    contradictions(place, &rules);
    rules.into_iter().map(|placed| placed.rule).collect()
}

/// What overrules a rule elsewhere is meant to; within one place it is a mistake.
fn contradictions(place: &Place<'_>, rules: &[Placed]) {
    // Which layer it is does not matter to one that is alone.
    const LAYER: Layer = Layer::Agent;
    // Roughly: each is compared with all others.
    const BUILT_IN: usize = 200;
    let bytes: usize =
        rules.iter().map(|placed| placed.rule.pattern.len() + placed.rule.permission.len()).sum();
    if !place.affords(bytes.saturating_mul(rules.len() + BUILT_IN)) {
        return;
    }
    let ruleset = Ruleset::new().with(LAYER, rules.iter().map(|placed| placed.rule.clone()));
    let mut told: Vec<&Placed> = Vec::new();
    for found in ruleset.contradictions().iter().filter(|it| it.layer == LAYER && it.by_layer == LAYER) {
        let is_it = |placed: &&Placed| placed.rule == found.rule;
        let new = |placed: &&Placed| !told.iter().any(|other| std::ptr::eq(*other, *placed));
        let Some(placed) = rules.iter().filter(is_it).find(new) else { continue };
        told.push(placed);
        let says = found.by.action.as_str();
        let message = if rules.iter().any(|placed| placed.hidden) {
            format!("the rule never counts: one that stands behind it says {says}")
        } else {
            let (rule, by) = (shown(&found.rule), shown(&found.by));
            format!("the rule {rule} never counts: {by} stands behind it and says {says}")
        };
        place.warn(placed.at, message);
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

/// `tools`, the older form: a map of names to whether they may be used.
pub(super) fn take_tools(fields: &Fields<'_>) -> Vec<PermissionRule> {
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

/// Takes away the tools whose last rule denies them as a whole.
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
    // Everything that is no tool of OpenCode's own is one of a server.
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

/// Whether the last rule about a permission denies all of it.
fn denies(rules: &[PermissionRule], permission: &str) -> bool {
    let last = rules.iter().rev().find(|rule| fits(&rule.permission, permission));
    last.is_some_and(|rule| rule.pattern == "*" && rule.action == PermissionAction::Deny)
}

/// Whether an agent may delegate to another one.
pub(super) fn may_delegate(rules: &[PermissionRule], target: &str) -> bool {
    let last = rules.iter().rev().find(|rule| fits(&rule.permission, "task") && fits(&rule.pattern, target));
    last.is_none_or(|rule| rule.action != PermissionAction::Deny)
}
