//! The memory of a workspace and its segment of the prompt.

use std::{fs, os::unix::fs::symlink};

use remuda_workspace::{Definitions, MemorySettings, PromptContext, Segment};

use crate::support::{GOOD, Workspace, assert_no_problems, listed, tools};

const SETTINGS: &str = ".openharness/settings.yaml";
const ENABLED: &str = "memory: {enabled: true}\n";

fn workspace(settings: &str) -> Workspace {
    Workspace::with(&[
        (SETTINGS, settings),
        (".openharness/models/m.yaml", "m: {provider: openai, name: x}\n"),
        (".openharness/agents/good.md", GOOD),
        (".openharness/agents/blind.md", "---\ntools: {native: []}\n---\nBlind.\n"),
        ("AGENTS.md", "Instructions.\n"),
        ("MEMORY.md", "# Memory\n\nThe tests need `make db` first.\n"),
        (".openharness/memory/release.md", "\n# How to release\n\nTag it.\n"),
        (".openharness/memory/empty.md", ""),
        (".openharness/memory/notes.txt", "not listed"),
        (".openharness/memory/.hidden.md", "not listed"),
    ])
}

/// The memory segment of an agent's prompt, and the kind of the segment before it.
fn memory_segment(definitions: &Definitions, agent: &str) -> Option<(Segment, String)> {
    let (agent, model) = (definitions.agent(agent).unwrap(), definitions.model("m").unwrap());
    let today = "2026-01-02T03:04:05Z".parse().unwrap();
    let segments = definitions.prompt_segments(&PromptContext {
        agent,
        model,
        tools: &tools(),
        reads_skills: false,
        today,
    });
    let at = segments.iter().position(|(segment, _)| *segment == Segment::Memory)?;
    Some((segments[at - 1].0, segments[at].1.clone()))
}

#[test]
fn memory_is_in_the_prompt_if_enabled() {
    let definitions = workspace(ENABLED).load();
    assert_no_problems(&definitions);
    let (before, text) = memory_segment(&definitions, "good").unwrap();
    assert_eq!(before, Segment::ProjectAgentsMd);
    let expected = "<memory>
What was remembered from earlier sessions.
<file name=\"MEMORY.md\">
# Memory

The tests need `make db` first.
</file>
There are more files in .openharness/memory. Read them with the tool Read when they matter:
- empty.md
- release.md — How to release
</memory>";
    assert_eq!(text, expected);
    let blind = memory_segment(&definitions, "blind").unwrap().1;
    assert!(blind.contains("- release.md") && !blind.contains("tool Read"), "{blind}");

    for settings in ["kind: project\n", "memory: {enabled: false}\n", "memory: {file: MEMORY.md}\n"] {
        let definitions = workspace(settings).load();
        assert_no_problems(&definitions);
        assert_eq!((memory_segment(&definitions, "good"), &definitions.memory), (None, &None), "{settings}");
    }
    let nothing = Workspace::with(&[
        (SETTINGS, ENABLED),
        (".openharness/models/m.yaml", "m: {provider: openai, name: x}\n"),
    ]);
    let definitions = nothing.load();
    assert_no_problems(&definitions);
    assert_eq!(memory_segment(&definitions, "build"), None, "there is no memory yet");
}

#[test]
fn chat_workspace_reads_memory_from_configured_paths() {
    let settings =
        "kind: chat\nmemory: {enabled: true, file: notes/all.md, directory: notes/more/, max_bytes: 20}\n";
    let workspace = workspace(settings);
    workspace.write("notes/all.md", "Likes tea.\nLikes long walks on the beach.\n");
    workspace.write("notes/more/birthdays.md", "Birthdays\n");
    let definitions = workspace.load();
    let (_, text) = memory_segment(&definitions, "good").unwrap();
    assert!(
        text.contains("Likes tea.\n</file>\nOnly the beginning of notes/all.md is shown here.\n"),
        "{text}"
    );
    assert!(text.contains("files in notes/more:\n- birthdays.md — Birthdays"), "{text}");
    let shown = listed(&definitions.problems);
    assert_eq!(shown, "Warning notes/all.md: is larger than memory.max_bytes (20): the rest is left off\n");

    workspace.write("notes/all.md", "é".repeat(100));
    assert!(
        memory_segment(&workspace.load(), "good").unwrap().1.contains("\néééééééééé\n"),
        "also within a long line"
    );
}

#[test]
fn changed_memory_changes_the_version() {
    let workspace = workspace(ENABLED);
    let (loader, root) = (workspace.loader(), workspace.root());
    let mut versions = vec![loader.current(&root).content.hash];
    let mut differs = |what: &str| {
        let hash = loader.current(&root).content.hash;
        assert!(!versions.contains(&hash), "{what}");
        versions.push(hash);
    };
    workspace.write("MEMORY.md", "Other.");
    differs("the file");
    workspace.write(".openharness/memory/new.md", "New.");
    differs("a new file");
    workspace.write(".openharness/memory/new.md", "Old.");
    differs("what a file begins with");
    fs::remove_dir_all(root.join(".openharness/memory")).unwrap();
    differs("no files");
    let kept = Definitions::from_content(&loader.current(&root).content.text).unwrap();
    assert_eq!(memory_segment(&kept, "good"), memory_segment(&loader.current(&root).definitions, "good"));
    assert_eq!(kept.settings.memory, MemorySettings { enabled: true, ..MemorySettings::default() });
}

#[test]
fn prompt_order_without_memory_is_reported() {
    let definitions =
        workspace("memory: {enabled: true}\nsystem_prompt: {compose: {order: [agent]}}\n").load();
    let shown = listed(&definitions.problems);
    assert!(
        shown.contains("Warning .openharness/settings.yaml:1:9: memory: is not sent to agents"),
        "{shown}"
    );
    let definitions =
        workspace("memory: {enabled: true}\nsystem_prompt: {compose: {order: [agent, memory]}}\n").load();
    assert_no_problems(&definitions);
    assert_eq!(memory_segment(&definitions, "good").unwrap().0, Segment::Agent);
}

#[test]
fn memory_links_out_of_the_workspace_are_not_followed() {
    let workspace = workspace(ENABLED);
    let root = workspace.root();
    let secret = workspace.write("platform:secret.md", "top secret");
    fs::remove_file(root.join("MEMORY.md")).unwrap();
    symlink(&secret, root.join("MEMORY.md")).unwrap();
    symlink("../../../platform/secret.md", root.join(".openharness/memory/relative.md")).unwrap();
    symlink("nowhere.md", root.join(".openharness/memory/dangling.md")).unwrap();
    symlink("release.md", root.join(".openharness/memory/inside.md")).unwrap();
    fs::create_dir(root.join(".openharness/memory/folder.md")).unwrap();
    nix::unistd::mkfifo(&root.join(".openharness/memory/pipe.md"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::write(root.join(".openharness/memory/bytes.md"), b"\xff\xfe\n").unwrap();
    fs::write(root.join(".openharness/memory/line\nbreak.md"), "x").unwrap();
    let definitions = workspace.load();
    let shown = listed(&definitions.problems);
    for (file, message) in [
        ("MEMORY.md", "leads out of the workspace"),
        (".openharness/memory/relative.md", "leads out of the workspace"),
        (".openharness/memory/dangling.md", "leads nowhere"),
        (".openharness/memory/folder.md", "is a directory"),
        (".openharness/memory/pipe.md", "is not a regular file"),
        (".openharness/memory/bytes.md", "is not UTF-8"),
    ] {
        let found = definitions.problems.iter().any(|p| p.file == file && p.message.contains(message));
        assert!(found, "{file}: {message}\n{shown}");
    }
    assert_eq!(definitions.problems.len(), 6, "{shown}");
    let (_, text) = memory_segment(&definitions, "good").unwrap();
    assert!(!text.contains("secret") && !text.contains("line\nbreak"), "{text}");
    assert!(text.contains("- inside.md — How to release\n- release.md — How to release"), "{text}");

    // The directory itself is a link that leads out.
    fs::remove_dir_all(root.join(".openharness/memory")).unwrap();
    symlink(workspace.platform(), root.join(".openharness/memory")).unwrap();
    let definitions = workspace.load();
    assert!(listed(&definitions.problems).contains(".openharness/memory: leads out of the workspace"));
    assert!(definitions.memory.unwrap().files.is_empty());
}

#[test]
fn memory_segment_is_limited_in_size() {
    let workspace = workspace("memory: {enabled: true, max_bytes: 1000}\n");
    workspace.write("MEMORY.md", "Line.\n".repeat(100_000));
    for index in 0..300 {
        workspace.write(&format!(".openharness/memory/a{index:03}.md"), "y".repeat(100_000));
    }
    let definitions = workspace.load();
    let memory = definitions.memory.as_ref().unwrap();
    assert_eq!((memory.files.len(), memory.omitted), (100, 202));
    let (_, text) = memory_segment(&definitions, "good").unwrap();
    assert!(text.len() < 20_000 && text.contains("(202 more are not listed)"), "{}", text.len());
    assert!(definitions.agent("good").is_ok(), "memory does not use up the read budget");
}
