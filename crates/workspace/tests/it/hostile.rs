//! Hostile workspaces: links, special files, and definitions that exceed limits.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
};

use crate::support::{GOOD, Workspace, listed};

#[test]
fn links_out_of_the_workspace_are_reported_and_not_followed() {
    let workspace = Workspace::with(&[(".openharness/agents/good.md", GOOD)]);
    let root = workspace.root();
    let outside = workspace.write("platform:secret.md", "---\nmode: all\n---\nOutside.\n");
    symlink(&outside, root.join(".openharness/agents/absolute.md")).unwrap();
    symlink("../../../platform/secret.md", root.join(".openharness/agents/relative.md")).unwrap();
    symlink("loop.md", root.join(".openharness/agents/loop.md")).unwrap();
    symlink("nowhere.md", root.join(".openharness/agents/dangling.md")).unwrap();
    symlink("/etc/passwd", root.join("AGENTS.md")).unwrap();
    symlink("/", root.join(".openharness/skills")).unwrap();
    // Links within the workspace are followed.
    workspace.write("shared/inside.md", GOOD);
    symlink("../../shared/inside.md", root.join(".openharness/agents/inside.md")).unwrap();

    let definitions = workspace.load();
    let shown = listed(&definitions.problems);
    for (file, message) in [
        (".openharness/agents/absolute.md", "leads out of the workspace"),
        (".openharness/agents/relative.md", "leads out of the workspace"),
        (".openharness/agents/loop.md", "leads in a circle"),
        (".openharness/agents/dangling.md", "leads nowhere"),
        ("AGENTS.md", "leads out of the workspace"),
        (".openharness/skills", "leads out of the workspace"),
    ] {
        let found = definitions.problems.iter().any(|p| p.file == file && p.message.contains(message));
        assert!(found, "{file}: {message}\n{shown}");
    }
    assert_eq!(definitions.problems.len(), 6, "{shown}");
    assert!(definitions.agent("good").is_ok() && definitions.agent("inside").is_ok());
    assert!(definitions.agent("absolute").is_err() && definitions.instructions.is_none());
}

#[test]
fn directories_and_special_files_are_reported() {
    let workspace =
        Workspace::with(&[(".openharness/agents/good.md", GOOD), (".openharness/models", "a file")]);
    let root = workspace.root();
    fs::create_dir(root.join(".openharness/agents/folder.md")).unwrap();
    nix::unistd::mkfifo(&root.join(".openharness/agents/pipe.md"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let unreadable = workspace.write(".openharness/agents/locked.md", GOOD);
    fs::set_permissions(&unreadable, fs::Permissions::from_mode(0o0)).unwrap();

    let definitions = workspace.load();
    let shown = listed(&definitions.problems);
    assert!(
        shown.contains("Error .openharness/agents/folder.md: is a directory, expected a file"),
        "{shown}"
    );
    assert!(shown.contains("Error .openharness/agents/pipe.md: is not a regular file"), "{shown}");
    assert!(shown.contains("Error .openharness/models: is not a directory, expected one"), "{shown}");
    if !nix::unistd::Uid::effective().is_root() {
        assert!(shown.contains("Error .openharness/agents/locked.md: may not be read"), "{shown}");
    }
    assert!(definitions.agent("good").is_ok());
}

#[test]
fn file_sizes_are_limited() {
    let workspace = Workspace::with(&[(".openharness/agents/good.md", GOOD)]);
    workspace.write(".openharness/agents/huge.md", vec![b'x'; 1024 * 1024 + 1]);
    let definitions = workspace.load();
    assert!(listed(&definitions.problems).contains("huge.md: is larger than 1024 KiB"));
    assert!(definitions.agent("good").is_ok());

    for index in 0..12 {
        workspace.write(&format!(".openharness/agents/z{index:02}.md"), vec![b'x'; 1024 * 1024]);
    }
    let definitions = workspace.load();
    assert!(listed(&definitions.problems).contains("all definitions together exceed 8 MiB"));
    assert!(definitions.to_content().unwrap().text.len() < 9 * 1024 * 1024);
}

#[test]
fn number_of_definitions_and_problems_is_limited() {
    let workspace = Workspace::new();
    for index in 0..10_000 {
        workspace.write(&format!(".openharness/agents/a{index:05}.md"), "---\nmode: nope\n---\nx\n");
    }
    workspace.write(".openharness/agents/a00000.md", GOOD);
    let definitions = workspace.load();
    assert!(listed(&definitions.problems).contains("holds 10000 definitions: only the first 256"));
    assert!(definitions.agent("a00000").is_ok() && definitions.agent("a00256").is_err());
    assert!(definitions.problems.len() <= 501);
}

#[test]
fn nesting_depth_is_limited() {
    let deep = format!("---\nswitch: {}{}\n---\nx\n", "[".repeat(5000), "]".repeat(5000));
    let block: String = (0..200).map(|level| format!("{}k:\n", " ".repeat(level))).collect();
    let workspace = Workspace::with(&[
        (".openharness/agents/deep.md", &deep),
        (".openharness/models/deep.yaml", &block),
        ("opencode.json", &"[".repeat(100_000)),
        (".openharness/agents/good.md", GOOD),
    ]);
    // Skills are only read one level deep.
    let mut path = workspace.root().join(".openharness/skills");
    for _ in 0..100 {
        path.push("d");
    }
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("SKILL.md"), "x").unwrap();
    let definitions = workspace.load();
    let shown = listed(&definitions.problems);
    for file in [".openharness/agents/deep.md", ".openharness/models/deep.yaml", "opencode.json"] {
        assert!(definitions.problems.iter().any(|problem| problem.file == file), "{shown}");
    }
    assert!(definitions.skills.is_empty() && definitions.agent("good").is_ok());
}

#[test]
fn exponential_yaml_aliases_are_refused() {
    let mut bomb = String::from("---\nx0: &x0 [a, a, a, a, a, a, a, a, a]\n");
    for level in 1..30 {
        let repeated = vec![format!("*x{}", level - 1); 9].join(", ");
        bomb.push_str(&format!("x{level}: &x{level} [{repeated}]\n"));
    }
    bomb.push_str("---\nx\n");
    let workspace =
        Workspace::with(&[(".openharness/agents/bomb.md", &bomb), (".openharness/agents/good.md", GOOD)]);
    let definitions = workspace.load();
    let shown = listed(&definitions.problems);
    assert!(shown.contains("bomb.md:6") && shown.contains("more than 20000 values"), "{shown}");
    assert!(definitions.agent("good").is_ok());
}

#[test]
fn number_and_length_of_rules_are_limited() {
    let workspace = Workspace::with(&[(".openharness/agents/good.md", GOOD)]);
    let pattern = "a*".repeat(70);
    let rules = |count: usize| -> String {
        (0..count).map(|index| format!("    '{pattern}{index}': {}\n", ["ask", "deny"][index % 2])).collect()
    };
    let agent = |count| format!("---\npermission:\n  bash:\n{}---\nx\n", rules(count));
    for index in 0..200 {
        workspace.write(&format!(".openharness/agents/a{index:03}.md"), agent(200));
    }
    workspace.write(".openharness/agents/many.md", agent(201));
    let long = format!("---\npermission:\n  bash:\n    '{}': deny\n---\nx\n", "x".repeat(513));
    workspace.write(".openharness/agents/long.md", long);
    workspace
        .write(".openharness/settings.yaml", format!("permissions:\n  rules:\n   bash:\n{}", rules(300)));
    let definitions = workspace.load();
    let shown = listed(&definitions.problems);
    assert!(shown.contains("many.md:3:3: permission: expected at most 200 rules, found 201"), "{shown}");
    assert!(
        shown.contains("long.md:4:5: permission: expected a permission and a pattern of 1 to 512 bytes"),
        "{shown}"
    );
    assert!(
        shown.contains("settings.yaml:2:3: permissions.rules: expected at most 200 rules, found 300"),
        "{shown}"
    );
    assert!(definitions.agent("good").is_ok() && definitions.agent("a199").is_ok());
    assert!(definitions.agent("many").is_err() && definitions.agent("long").is_err());
}

#[test]
fn missing_workspace_still_has_the_built_in_agents() {
    let workspace = Workspace::new();
    let definitions = workspace.loader().load(&workspace.root().join("nowhere"));
    assert!(listed(&definitions.problems).contains("there is no such directory"));
    assert!(definitions.agent("build").is_ok());
}
