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

/// What agents are given because of what they may look up or whom they may ask; they need not be selected.
pub(super) const CONTROL: [&str; 3] = ["Skill", "SubAgent", "AgentSwitch"];

/// Those that change nothing in a workspace.
pub(super) const READ_ONLY: [&str; 6] = ["Read", "Glob", "Grep", "WebFetch", "WebSearch", "TodoWrite"];

/// The permission that decides about a tool of OpenHarness, where it is called otherwise.
pub(super) fn foreign_permission(tool: &str) -> Option<&'static str> {
    Some(match tool {
        "read_file" => "read",
        "write_file" | "edit_file" | "notebook_edit" => "edit",
        "web_fetch" => "webfetch",
        "web_search" => "websearch",
        "todo_write" => "todowrite",
        "agent" => "task",
        _ => return None,
    })
}

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
