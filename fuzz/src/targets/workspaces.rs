//! Files of workspaces.

use std::fs;

use remuda_domain::tool::ToolCatalog;
use remuda_workspace::{Definitions, EnvironmentAccess, Loader, PlatformDirectories, fuzzing};

use super::{Target, kind};

const YAML_WORDS: &[&str] = &[
    "---\n",
    "- ",
    ": ",
    "&a ",
    "*a",
    "!!str ",
    "|\n",
    ">-\n",
    "? ",
    "{",
    "}",
    "[",
    "]",
    "<<: ",
    "# ",
    "'",
    "\"",
    "\n  ",
    "\t",
    "%YAML 1.2\n",
    "...\n",
    "~",
    "true",
    "0x1f",
    "\u{feff}",
    "name",
    "permission",
];
const JSON_WORDS: &[&str] = &[
    "{", "}", "[", "]", "\"", ":", ",", "//", "/*", "*/", "\\u", "\\ud800", "1e9", "-0", "null", "true",
    "\\", "\u{feff}",
];

const FILE_WORDS: &[&str] = &[
    "---\n",
    "description: ",
    "model: ",
    "tools: ",
    "permission: ",
    "{ bash: { \"*\": ask } }",
    "mode: ",
    "primary",
    "all",
    "subagent",
    "policy: ",
    "max_steps: ",
    "-1",
    "1e99",
    "'*'",
    "[",
    "]",
    "{",
    "}",
    ": ",
    "\n  ",
    "- ",
    "default_agent: ",
    "permissions:\n  rules:\n    ",
    "bash: ",
    "deny",
    "provider: ",
    "openai",
    "scripted",
    "name: ",
    "url: http://a",
    "key: ${env.X}",
    "price: { input: 1, output: 2 }",
    "${env.",
    "${file:",
    "extends: ",
    "skills: ",
    "&a ",
    "*a",
    "\"agent\":{",
    "\"permission\":{",
    "\"prompt\":\"{file:",
];

pub(super) const FRONTMATTER: Target = Target {
    name: "frontmatter",
    run: |bytes| text(bytes, fuzzing::frontmatter),
    dictionary: YAML_WORDS,
    inputs: 3_000,
};
pub(super) const YAML: Target =
    Target { name: "yaml", run: |bytes| text(bytes, fuzzing::yaml), dictionary: YAML_WORDS, inputs: 3_000 };
pub(super) const JSON: Target =
    Target { name: "json", run: |bytes| text(bytes, fuzzing::json), dictionary: JSON_WORDS, inputs: 3_000 };
/// The first line names a file, the rest is its content.
pub(super) const FILES: Target =
    Target { name: "workspace-files", run: files, dictionary: FILE_WORDS, inputs: 400 };

/// A parser of texts says on which line an error is, or nothing about lines. The line exists.
fn text(bytes: &[u8], parse: impl Fn(&str) -> (usize, String)) -> u64 {
    let text = String::from_utf8_lossy(bytes);
    let (line, behaviour) = parse(&text);
    // A missing end is reported after the last line. YAML also counts CR, NEL and its separators as line breaks.
    let breaks = text.matches(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']).count();
    assert!(line <= breaks + 2, "the error is on line {line} of {}", breaks + 1);
    kind(behaviour)
}

/// Any content of a file gives definitions or problems with the file's path.
fn files(bytes: &[u8]) -> u64 {
    const FILES: [&str; 6] = [
        ".openharness/agents/a.md",
        ".openharness/settings.yaml",
        ".openharness/models/m.yaml",
        ".openharness/skills/s/SKILL.md",
        ".opencode/agent/a.md",
        "opencode.json",
    ];
    let (first, content) =
        bytes.split_at(bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len()));
    let Some(path) = FILES.iter().find(|path| path.as_bytes() == first) else { return 0 };
    let Ok(directory) = tempfile::tempdir() else { return 0 };
    let file = directory.path().join(path);
    let written = fs::create_dir_all(file.parent().unwrap_or(directory.path()))
        .and_then(|()| fs::write(&file, content.get(1..).unwrap_or_default()));
    if written.is_err() {
        return 0;
    }
    let loader =
        Loader::new(PlatformDirectories::default(), EnvironmentAccess::default(), ToolCatalog::default());
    let definitions = loader.load(directory.path());
    // Keys and problems are not stored.
    let stored = definitions.to_content().map(|content| content.text).unwrap_or_default();
    let again = Definitions::from_content(&stored).and_then(|definitions| definitions.to_content());
    assert_eq!(again.map(|content| content.text).ok(), Some(stored), "definitions change when stored");
    let problems: Vec<&str> = definitions.problems.iter().map(|problem| problem.message.as_str()).collect();
    kind((path, problems, definitions.agents.len(), definitions.skills.len()))
}
