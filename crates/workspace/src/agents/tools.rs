//! The native tools, and what other systems call them.

/// What agents can be given, by the names of `crates/tools`.
pub(super) const NATIVE: [&str; 11] = [
    "Bash",
    "BashOutput",
    "KillBash",
    "Read",
    "Write",
    "Edit",
    "Glob",
    "Grep",
    "WebFetch",
    "WebSearch",
    "TodoWrite",
];

/// Those that change nothing in a workspace.
pub(super) const READ_ONLY: [&str; 6] = ["Read", "Glob", "Grep", "WebFetch", "WebSearch", "TodoWrite"];

/// The permission of OpenCode that decides about a tool.
pub(super) fn opencode_permission(native: &str) -> &'static str {
    match native {
        "Bash" | "BashOutput" | "KillBash" => "bash",
        "Read" => "read",
        "Write" | "Edit" => "edit",
        "Glob" => "glob",
        "Grep" => "grep",
        "WebFetch" => "webfetch",
        "WebSearch" => "websearch",
        _ => "todowrite",
    }
}

/// The permission that a name in an OpenCode file means: several of its tools are one here.
pub(super) fn opencode_key(name: &str) -> &str {
    match name {
        "write" | "patch" | "apply_patch" | "multiedit" => "edit",
        "list" => "glob",
        "todoread" => "todowrite",
        name => name,
    }
}

/// Permissions of OpenCode that are about something else than a server's tools.
pub(super) const OPENCODE_KEYS: [&str; 17] = [
    "*",
    "read",
    "edit",
    "glob",
    "grep",
    "bash",
    "task",
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

/// What a tool of CodingCode is here.
pub(super) enum CodingCodeTool {
    Native(&'static [&'static str]),
    /// Delegating to other agents.
    Dispatch,
    /// All tools are there from the beginning.
    NotNeeded,
    Missing,
    Unknown,
}

pub(super) fn codingcode_tool(name: &str) -> CodingCodeTool {
    let native: &[&str] = match name {
        "read_file" => &["Read"],
        "write_file" => &["Write"],
        "edit_file" => &["Edit"],
        "search_code" => &["Grep"],
        "search_files" => &["Glob"],
        "execute_command" => &["Bash", "BashOutput", "KillBash"],
        "fetch_url" => &["WebFetch"],
        "web_search" => &["WebSearch"],
        "todo_write" => &["TodoWrite"],
        "dispatch_agent" => return CodingCodeTool::Dispatch,
        "tool_search" => return CodingCodeTool::NotNeeded,
        "submit_plan" => return CodingCodeTool::Missing,
        _ => return CodingCodeTool::Unknown,
    };
    CodingCodeTool::Native(native)
}

/// Whether a pattern with `*` and `?` matches all of a text.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    // Where to go on if the last `*` has to swallow one more.
    let mut star: Option<(usize, usize)> = None;
    let (mut p, mut t) = (0, 0);
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(c) if *c == '?' || *c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    p = at + 1;
                    t = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_texts() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "anything/at all", true),
            ("mymcp_*", "mymcp_search", true),
            ("mymcp_*", "other_search", false),
            ("a*b*c", "aXXbYYc", true),
            ("a*b*c", "aXXbYY", false),
            ("?x", "ax", true),
            ("?x", "x", false),
            ("bash", "bash", true),
            ("bash", "bashful", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
