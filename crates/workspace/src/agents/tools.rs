//! Names of the native tools, and the mapping from names in other systems.

/// Tools that can be selected for agents, by their names in `crates/tools`.
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

/// Tools that agents get automatically if they have skills, sub-agents or switch targets.
pub(super) const CONTROL: [&str; 3] = ["Skill", "SubAgent", "AgentSwitch"];

/// Tools that change nothing in a workspace.
pub(super) const READ_ONLY: [&str; 6] = ["Read", "Glob", "Grep", "WebFetch", "WebSearch", "TodoWrite"];

/// The permission that governs a tool of OpenHarness, if the tool has another name there.
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

/// The native equivalent of a CodingCode tool.
pub(super) enum CodingCodeTool {
    Native(&'static [&'static str]),
    /// Delegation to other agents.
    Dispatch,
    /// Not needed here: all tools are available from the start.
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
