//! The names of permissions in rules.

/// The permission that governs a tool. For tools that are not native, such as those of a tool server, it is their name.
#[must_use]
pub fn permission_of(tool: &str) -> &str {
    match tool {
        "Bash" | "BashOutput" | "KillBash" => "bash",
        "Read" => "read",
        "Write" | "Edit" => "edit",
        "Glob" => "glob",
        "Grep" => "grep",
        "WebFetch" => "webfetch",
        "WebSearch" => "websearch",
        "TodoWrite" => "todowrite",
        "Skill" => "skill",
        "SubAgent" => "task",
        "AgentSwitch" => "switch",
        other => other,
    }
}

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

/// All permissions that are not names of a server's tools: those of OpenCode, and native ones.
pub const KEYS: [&str; 18] = [
    "*",
    "read",
    "edit",
    "glob",
    "grep",
    "bash",
    "task",
    "switch",
    "external_directory",
    "todowrite",
    "webfetch",
    "websearch",
    "codesearch",
    "lsp",
    "skill",
    "question",
    "doom_loop",
    "plan_exit",
];
