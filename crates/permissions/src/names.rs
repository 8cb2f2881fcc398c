//! What the tools are called in rules.

/// The permission that decides about a tool. A tool that is not one of our own, such as one of a server, has its own name.
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

/// The permission that a name in an OpenCode file means: several of its tools are one here.
#[must_use]
pub fn opencode_key(name: &str) -> &str {
    match name {
        "write" | "patch" | "apply_patch" | "multiedit" => "edit",
        "list" => "glob",
        "todoread" => "todowrite",
        name => name,
    }
}

/// The permissions that are about something else than a server's tools: those of OpenCode, and our own.
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
