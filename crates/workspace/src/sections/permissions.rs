//! Parses `permissions` of the settings: the permission rules of a workspace.

use remuda_domain::{
    permission::{PermissionAction, PermissionMode, PermissionRule, Unattended},
    tool::ToolCatalog,
};

use super::settings::FILE;
use crate::{
    agents::permission::{self, ACTIONS, LocatedRule},
    definition_dir::Source,
    parse::{Fields, Node, Position, Value},
    report::Reporter,
    settings::Settings,
};

const KEY: &str = "permissions";

/// Permission modes by their names in files.
pub(crate) fn modes() -> [(&'static str, PermissionMode); 3] {
    PermissionMode::ALL.map(|mode| (mode.as_str(), mode))
}

/// Parses the permissions into the settings. An invalid rule might have denied something, so all tools are denied then.
pub(super) fn parse(source: Source<'_>, fields: &Fields<'_>, settings: &mut Settings) {
    let given = fields.entries().iter().find(|entry| entry.key == KEY);
    let reporter = Reporter::for_file(source.report, FILE);
    if let Some(permissions) = fields.map_with_reporter(KEY, &reporter) {
        let unattended = Unattended::ALL.map(|it| (it.as_str(), it));
        settings.permission_mode = permissions.choice("mode", &modes());
        settings.unattended = permissions.choice("unattended", &unattended);
        settings.permission = rules(&permissions, source.tools);
        permissions.finish();
    }
    if let Some(given) = given
        && (reporter.failed() || given.value.is_unusable())
    {
        deny_everything(settings, &reporter, given.at);
    }
}

/// Fails closed: adds a rule that denies all tools.
pub(super) fn deny_everything(settings: &mut Settings, reporter: &Reporter<'_>, at: Position) {
    settings.permission.push(PermissionRule::new("*", "*", PermissionAction::Deny));
    settings.permission_mode = None;
    reporter.warn(at, "permissions: agents may use no tools until this is fixed");
}

/// Parses the lists of OpenHarness, followed by the native `rules`.
///
/// OpenHarness checks its lists in this order and takes the first match: denied tools, allowed tools, paths, commands.
/// Here the last matching rule wins, so the order is reversed.
fn rules(fields: &Fields<'_>, tools: &ToolCatalog) -> Vec<PermissionRule> {
    let mut rules = Vec::new();
    for command in fields.texts("denied_commands").unwrap_or_default() {
        rules.push(
            LocatedRule::new(command.at, "bash", &command.text, PermissionAction::Deny)
                .with_from_env(command.from_env),
        );
    }
    rules.extend(path_rules(fields));
    for tool in fields.texts("allowed_tools").unwrap_or_default() {
        let permission = permission::permission_for_tool(tools, &tool.text);
        rules.push(
            LocatedRule::new(tool.at, permission, "*", PermissionAction::Allow).with_from_env(tool.from_env),
        );
    }
    for tool in fields.texts("denied_tools").unwrap_or_default() {
        let permission = permission::permission_for_tool(tools, &tool.text);
        rules.push(
            LocatedRule::new(tool.at, permission, "*", PermissionAction::Deny).with_from_env(tool.from_env),
        );
    }
    if let Some(node) = fields.get("rules") {
        rules.extend(match &node.value {
            Value::List(items) => list(fields, tools, items),
            _ => permission::rules_from_map(fields, "rules", node),
        });
    }
    permission::check_rules(fields.reporter, tools, fields.at, &fields.name("rules"), rules)
}

/// In OpenHarness a path rule can only deny, so rules that deny come last.
fn path_rules(fields: &Fields<'_>) -> Vec<LocatedRule> {
    let Some(node) = fields.get("path_rules") else { return Vec::new() };
    let Value::List(items) = &node.value else {
        fields.expected("path_rules", node, "a list");
        return Vec::new();
    };
    let (mut allowed, mut denied) = (Vec::new(), Vec::new());
    for (index, item) in items.iter().enumerate() {
        let Some(rule) = fields.as_map(&format!("path_rules[{index}]"), item) else { continue };
        let (pattern, allow) = (rule.required_text("pattern"), rule.boolean("allow"));
        rule.require("allow", "true or false");
        rule.finish();
        let (Some(pattern), Some(allow)) = (pattern, allow) else { continue };
        let (into, action) = match allow {
            true => (&mut allowed, PermissionAction::Allow),
            false => (&mut denied, PermissionAction::Deny),
        };
        // Searching files reads them, too.
        let permissions: &[&str] = if allow { &["read", "edit"] } else { &["read", "edit", "grep"] };
        into.extend(permissions.iter().map(|of| {
            LocatedRule::new(pattern.at, *of, &pattern.text, action).with_from_env(pattern.from_env)
        }));
    }
    allowed.extend(denied);
    allowed
}

/// Parses `[{permission: bash, pattern: git *, action: allow}]`, or with `tool` instead of `permission`.
fn list<'a>(fields: &Fields<'a>, tools: &ToolCatalog, items: &'a [Node]) -> Vec<LocatedRule> {
    let rule = |(index, item): (usize, &'a Node)| {
        let rule = fields.as_map(&format!("rules[{index}]"), item)?;
        let (permission, tool) = (rule.text("permission"), rule.text("tool"));
        let pattern = rule.text("pattern");
        let action = rule.choice("action", &ACTIONS);
        rule.finish();
        rule.require("action", "allow, ask or deny");
        // An empty pattern must not match everything.
        if rule.entries().iter().any(|entry| entry.key == "pattern") {
            rule.require("pattern", "text");
        }
        let from_env = [&permission, &tool, &pattern].into_iter().flatten().any(|text| text.from_env);
        let permission = match (&permission, &tool) {
            (Some(permission), None) => permission::permission_for_key(&permission.text).to_owned(),
            (None, Some(tool)) => permission::permission_for_tool(tools, &tool.text).to_owned(),
            _ => {
                let message = format!(
                    "{}: expected either `permission` or `tool`",
                    fields.name(format_args!("rules[{index}]"))
                );
                rule.reporter.error(rule.at, message);
                return None;
            }
        };
        let pattern = pattern.map_or_else(|| "*".to_owned(), |pattern| pattern.text);
        Some(LocatedRule::new(rule.at, permission, &pattern, action?).with_from_env(from_env))
    };
    items.iter().enumerate().filter_map(rule).collect()
}
