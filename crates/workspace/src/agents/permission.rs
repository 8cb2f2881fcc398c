//! Permissions in the terms of OpenCode.

use remuda_domain::agent::{AgentDefinition, PermissionAction, PermissionRule};

use super::tools::{NATIVE, OPENCODE_KEYS, matches, opencode_key, opencode_permission};
use crate::text::{Fields, Node, Value};

const ACTIONS: [(&str, PermissionAction); 3] =
    [("allow", PermissionAction::Allow), ("ask", PermissionAction::Ask), ("deny", PermissionAction::Deny)];

/// Each tool call is compared with all of them.
const MAX_RULES: usize = 200;
const MAX_PATTERN: usize = 512;

/// `permission`: one action for everything, or one per permission, or one per pattern of it. Order matters.
pub(super) fn take(fields: &Fields<'_>) -> Vec<PermissionRule> {
    let Some(node) = fields.get("permission") else { return Vec::new() };
    if !matches!(node.value, Value::Map(_)) {
        return action(fields, "permission", node).map(|action| rule("*", "*", action)).into_iter().collect();
    }
    let Some(permissions) = fields.as_map("permission", node) else { return Vec::new() };
    let mut rules = Vec::new();
    for entry in permissions.entries() {
        let key = opencode_key(&entry.key);
        if !matches!(entry.value.value, Value::Map(_)) {
            let action = action(&permissions, &entry.key, &entry.value);
            rules.extend(action.map(|action| rule(key, "*", action)));
            continue;
        }
        let Some(patterns) = permissions.as_map(&entry.key, &entry.value) else { continue };
        for pattern in patterns.entries() {
            let action = action(&patterns, &pattern.key, &pattern.value);
            rules.extend(action.map(|action| rule(key, &pattern.key, action)));
        }
    }
    if rules.len() > MAX_RULES || rules.iter().any(|rule| rule.pattern.len() > MAX_PATTERN) {
        let message = format!("permission: expected at most {MAX_RULES} rules of {MAX_PATTERN} characters");
        fields.place.error(node.at, message);
    }
    rules
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
        if denies(rules, opencode_permission(native)) && !agent.disallowed.native.iter().any(|n| n == native)
        {
            agent.disallowed.native.push(native.to_owned());
        }
    }
    if denies(rules, "skill") {
        agent.disallowed.skills = vec!["*".to_owned()];
    }
    // Everything that is no tool of OpenCode's own is one of a server.
    let of_server =
        |rule: &&PermissionRule| !OPENCODE_KEYS.contains(&rule.permission.as_str()) && rule.pattern == "*";
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
    let last = rules.iter().rev().find(|rule| matches(&rule.permission, permission));
    last.is_some_and(|rule| rule.pattern == "*" && rule.action == PermissionAction::Deny)
}

/// Whether an agent may delegate to another one.
pub(super) fn may_delegate(rules: &[PermissionRule], target: &str) -> bool {
    let last =
        rules.iter().rev().find(|rule| matches(&rule.permission, "task") && matches(&rule.pattern, target));
    last.is_none_or(|rule| rule.action != PermissionAction::Deny)
}
