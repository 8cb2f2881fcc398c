//! The names of permissions in rules.

use remuda_domain::tool::{ToolCatalog, ToolOffer};

/// The permission for a key in an OpenCode file: several of its tools share one permission here.
#[must_use]
pub fn opencode_key(name: &str) -> &str {
    match name {
        "write" | "patch" | "apply_patch" | "multiedit" => "edit",
        "list" => "glob",
        "todoread" => "todowrite",
        name => name,
    }
}

/// Permissions of OpenCode that no tool here has.
const OTHER_OPENCODE_KEYS: [&str; 7] =
    ["*", "external_directory", "codesearch", "lsp", "question", "doom_loop", "plan_exit"];

/// Whether a permission is one of OpenCode or of a tool that agents have. Any other one is the name of a server's tool.
#[must_use]
pub fn is_known_permission(tools: &ToolCatalog, permission: &str) -> bool {
    let offered = tools.iter().filter(|tool| tool.offer != ToolOffer::Never);
    OTHER_OPENCODE_KEYS.contains(&permission)
        || offered.map(|tool| &tool.permission).any(|it| it == permission)
}
