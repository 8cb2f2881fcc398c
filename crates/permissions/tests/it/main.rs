//! Integration tests: which calls are allowed, need approval, or are denied.

mod always;
mod contradictions;
mod evasion;
mod executors;
mod files;
mod layers;
mod limits;
mod properties;
mod shell;
mod wildcards;
mod wrappers;

use std::sync::LazyLock;

use remuda_domain::{
    permission::{PermissionAction, PermissionMode, PermissionRule},
    tool::ToolCatalog,
};
use remuda_permissions::{Layer, ProposedCall, Ruleset, Verdict};
use remuda_tools::{Registry, ToolOptions};
use serde_json::{Value, json};

pub(crate) const ROOT: &str = "/work/space";

/// Parses rules like `deny rm *, allow edit:docs/*`; the permission is bash unless named.
pub(crate) fn rules(text: &str) -> Vec<PermissionRule> {
    let rule = |rule: &str| {
        let Some((action, rest)) = rule.split_once(' ') else { panic!("no rule: {rule}") };
        let action = PermissionAction::ALL.into_iter().find(|it| it.as_str() == action);
        let Some(action) = action else { panic!("no action: {rule}") };
        let named = rest
            .split_once(':')
            .filter(|(name, _)| name.chars().all(|c| c.is_alphanumeric() || "_*".contains(c)));
        let (permission, pattern) = named.unwrap_or(("bash", rest));
        PermissionRule::new(permission, pattern, action)
    };
    text.split(", ").filter(|part| !part.is_empty()).map(rule).collect()
}

pub(crate) fn locked(text: &str) -> Vec<PermissionRule> {
    rules(text).into_iter().map(|rule| PermissionRule { locked: true, ..rule }).collect()
}

pub(crate) fn workspace_rules(text: &str) -> Ruleset {
    Ruleset::new().with(Layer::Workspace, rules(text))
}

/// All tools that agents have.
pub(crate) fn tools() -> &'static ToolCatalog {
    static TOOLS: LazyLock<ToolCatalog> =
        LazyLock::new(|| remuda_engine::tool_catalog(&Registry::native(&ToolOptions::default())));
    &TOOLS
}

pub(crate) fn call(set: &Ruleset, mode: PermissionMode, tool: &str, arguments: &Value) -> Verdict {
    set.judge(mode, ROOT, &ProposedCall { tool: &tools().describe(tool), arguments })
}

pub(crate) fn bash(set: &Ruleset, command: &str) -> Verdict {
    call(set, PermissionMode::Default, "Bash", &json!({ "command": command }))
}
