//! `permissions` in the settings: what agents may do in a workspace.

use remuda_domain::permission::{PermissionAction, PermissionMode, PermissionRule, Unattended};

use super::settings::FILE;
use crate::{
    agents::permission::{self, ACTIONS, Placed},
    report::Place,
    settings::Settings,
    source::Source,
    text::{Fields, Node, Position, Value},
};

const KEY: &str = "permissions";

/// Modes by the words that files use.
pub(crate) fn modes() -> [(&'static str, PermissionMode); 3] {
    PermissionMode::ALL.map(|mode| (mode.as_str(), mode))
}

/// Takes the permissions into the settings. A rule that cannot be read might have forbidden something: then everything is.
pub(super) fn take(source: Source<'_>, fields: &Fields<'_>, settings: &mut Settings) {
    let given = fields.entries().iter().find(|entry| entry.key == KEY);
    let place = Place::new(source.report, FILE);
    if let Some(permissions) = fields.part(KEY, &place) {
        let unattended = Unattended::ALL.map(|it| (it.as_str(), it));
        settings.permission_mode = permissions.choice("mode", &modes());
        settings.unattended = permissions.choice("unattended", &unattended);
        settings.permission = rules(&permissions);
        permissions.finish();
    }
    if let Some(given) = given
        && (place.failed() || given.value.is_unusable())
    {
        forbid_everything(settings, &place, given.at);
    }
}

/// Better nothing is done than something that was forbidden.
pub(super) fn forbid_everything(settings: &mut Settings, place: &Place<'_>, at: Position) {
    settings.permission.push(PermissionRule::new("*", "*", PermissionAction::Deny));
    settings.permission_mode = None;
    place.warn(at, "permissions: agents may use no tools until this is mended");
}

/// The lists of OpenHarness, and then what is written in our own way.
///
/// OpenHarness asks its lists in turn and takes the first answer: tools that are denied, tools that are allowed, paths, commands.
/// Here the last rule counts, so they stand the other way round.
fn rules(fields: &Fields<'_>) -> Vec<PermissionRule> {
    let mut rules = Vec::new();
    for command in fields.texts("denied_commands").unwrap_or_default() {
        rules.push(
            Placed::new(command.at, "bash", &command.text, PermissionAction::Deny).hidden(command.hidden),
        );
    }
    rules.extend(path_rules(fields));
    for tool in fields.texts("allowed_tools").unwrap_or_default() {
        let permission = permission::of_tool(&tool.text);
        rules.push(Placed::new(tool.at, permission, "*", PermissionAction::Allow).hidden(tool.hidden));
    }
    for tool in fields.texts("denied_tools").unwrap_or_default() {
        let permission = permission::of_tool(&tool.text);
        rules.push(Placed::new(tool.at, permission, "*", PermissionAction::Deny).hidden(tool.hidden));
    }
    if let Some(node) = fields.get("rules") {
        rules.extend(match &node.value {
            Value::List(items) => list(fields, items),
            _ => permission::of_map(fields, "rules", node),
        });
    }
    permission::finish(fields.place, fields.at, &fields.name("rules"), rules)
}

/// Of those, only what denies has an effect on what OpenHarness allows: so what denies counts more.
fn path_rules(fields: &Fields<'_>) -> Vec<Placed> {
    let Some(node) = fields.get("path_rules") else { return Vec::new() };
    let Value::List(items) = &node.value else {
        fields.expected("path_rules", node, "a list");
        return Vec::new();
    };
    let (mut allowed, mut denied) = (Vec::new(), Vec::new());
    for (index, item) in items.iter().enumerate() {
        let Some(rule) = fields.as_map(&format!("path_rules[{index}]"), item) else { continue };
        let (pattern, allow) = (rule.required("pattern"), rule.boolean("allow"));
        rule.need("allow", "true or false");
        rule.finish();
        let (Some(pattern), Some(allow)) = (pattern, allow) else { continue };
        let (into, action) = match allow {
            true => (&mut allowed, PermissionAction::Allow),
            false => (&mut denied, PermissionAction::Deny),
        };
        // Searching through files reads them, too.
        let permissions: &[&str] = if allow { &["read", "edit"] } else { &["read", "edit", "grep"] };
        into.extend(
            permissions
                .iter()
                .map(|of| Placed::new(pattern.at, *of, &pattern.text, action).hidden(pattern.hidden)),
        );
    }
    allowed.extend(denied);
    allowed
}

/// `[{permission: bash, pattern: git *, action: allow}]`, or with the name of a tool instead of a permission.
fn list<'a>(fields: &Fields<'a>, items: &'a [Node]) -> Vec<Placed> {
    let rule = |(index, item): (usize, &'a Node)| {
        let rule = fields.as_map(&format!("rules[{index}]"), item)?;
        let (permission, tool) = (rule.text("permission"), rule.text("tool"));
        let pattern = rule.text("pattern");
        let action = rule.choice("action", &ACTIONS);
        rule.finish();
        rule.need("action", "allow, ask or deny");
        // One that was left empty must not mean everything.
        if rule.entries().iter().any(|entry| entry.key == "pattern") {
            rule.need("pattern", "text");
        }
        let hidden = [&permission, &tool, &pattern].into_iter().flatten().any(|text| text.hidden);
        let permission = match (&permission, &tool) {
            (Some(permission), None) => permission::of_key(&permission.text).to_owned(),
            (None, Some(tool)) => permission::of_tool(&tool.text).to_owned(),
            _ => {
                let message = format!(
                    "{}: expected either `permission` or `tool`",
                    fields.name(format_args!("rules[{index}]"))
                );
                rule.place.error(rule.at, message);
                return None;
            }
        };
        let pattern = pattern.map_or_else(|| "*".to_owned(), |pattern| pattern.text);
        Some(Placed::new(rule.at, permission, &pattern, action?).hidden(hidden))
    };
    items.iter().enumerate().filter_map(rule).collect()
}
