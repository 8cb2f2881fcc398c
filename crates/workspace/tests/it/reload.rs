//! `Loader::current` sees every change of a definition, and returns the cached value otherwise.

use std::{fs, sync::Arc};

use crate::support::Workspace;

fn agent(prompt: &str) -> String {
    format!("---\nmode: all\n---\n{prompt}\n")
}

#[test]
fn current_sees_edited_added_and_removed_files() {
    let workspace = Workspace::with(&[(".openharness/agents/a.md", &agent("one"))]);
    let (loader, root) = (workspace.loader(), workspace.root());
    let prompt = || loader.current(&root).definitions.agent("a").map(|agent| agent.prompt.clone());
    assert_eq!(prompt().unwrap(), "one");

    // The same size, within the same second and possibly within the same clock tick.
    for text in ["two", "six", "ten"] {
        workspace.write(".openharness/agents/a.md", agent(text));
        assert_eq!(prompt().unwrap(), text);
    }

    workspace.write(".openharness/agents/b.md", agent("new"));
    assert!(loader.current(&root).definitions.agent("b").is_ok());
    fs::remove_file(root.join(".openharness/agents/b.md")).unwrap();
    assert!(loader.current(&root).definitions.agent("b").is_err());

    // A file that was missing appears.
    for (path, text) in [
        ("AGENTS.md", "Instructions.".to_owned()),
        (".openharness/settings.yaml", "default_agent: a\n".to_owned()),
        (".opencode/agents/o.md", agent("opencode")),
        ("platform:agents/p.md", agent("platform")),
    ] {
        let before = loader.current(&root);
        workspace.write(path, text);
        assert_ne!(loader.current(&root).content.hash, before.content.hash, "{path}");
    }
    fs::remove_dir_all(root.join(".opencode")).unwrap();
    assert!(loader.current(&root).definitions.agent("o").is_err());
}

#[test]
fn current_sees_a_renamed_directory() {
    let workspace =
        Workspace::with(&[(".openharness/agents/a.md", &agent("one")), ("other/a.md", &agent("two"))]);
    let (loader, root) = (workspace.loader(), workspace.root());
    settle(&workspace);
    let before = loader.current(&root);
    fs::rename(root.join(".openharness/agents"), root.join("old")).unwrap();
    fs::rename(root.join("other"), root.join(".openharness/agents")).unwrap();
    let after = loader.current(&root);
    assert_eq!(before.definitions.agent("a").unwrap().prompt, "one");
    assert_eq!(after.definitions.agent("a").unwrap().prompt, "two");
}

/// Waits until the file times are old enough for the cache to trust them.
fn settle(workspace: &Workspace) {
    let loader = workspace.loader();
    let _ = loader.current(&workspace.root());
    let newest = fs::metadata(workspace.root()).unwrap().modified().unwrap();
    while newest.elapsed().unwrap_or_default() < std::time::Duration::from_millis(3100) {
        std::thread::park_timeout(std::time::Duration::from_millis(100));
    }
}

#[test]
fn unchanged_workspace_is_returned_from_the_cache() {
    let workspace = Workspace::with(&[(".openharness/agents/a.md", &agent("one")), ("file.txt", "x")]);
    let (loader, root) = (workspace.loader(), workspace.root());
    let first = loader.current(&root);
    assert!(Arc::ptr_eq(&first, &loader.current(&root)), "read again, but nothing is new");
    // Files without definitions do not matter.
    workspace.write("file.txt", "changed");
    workspace.write("src/new.rs", "fn main() {}");
    assert!(Arc::ptr_eq(&first, &loader.current(&root)));
    // Rewriting the same text does not matter.
    workspace.write(".openharness/agents/a.md", agent("one"));
    assert!(Arc::ptr_eq(&first, &loader.current(&root)));
    settle(&workspace);
    let settled = loader.current(&root);
    assert!(Arc::ptr_eq(&settled, &loader.current(&root)), "clones share what was read");
    workspace.write(".openharness/agents/a.md", agent("two"));
    assert!(!Arc::ptr_eq(&settled, &loader.current(&root)));
}

#[test]
fn version_hash_depends_only_on_the_definitions() {
    let files: Vec<(String, String)> = (0..20)
        .map(|index| (format!(".openharness/agents/a{index}.md"), agent(&format!("{index}"))))
        .collect();
    let (one, two) = (Workspace::new(), Workspace::new());
    files.iter().for_each(|(path, text)| drop(one.write(path, text)));
    files.iter().rev().for_each(|(path, text)| drop(two.write(path, text)));
    let hash = |workspace: &Workspace| workspace.load().to_content().unwrap().hash;
    let before = hash(&one);
    assert_eq!(before, hash(&two), "neither order nor location matters");

    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    fs::File::open(one.root().join(&files[0].0)).unwrap().set_modified(old).unwrap();
    assert_eq!(before, hash(&one), "time does not matter");
    one.write(&files[0].0, agent("other"));
    assert_ne!(before, hash(&one));
}

#[test]
fn more_workspaces_than_cache_entries_load_correctly() {
    let workspace = Workspace::with(&[(".openharness/agents/a.md", &agent("one"))]);
    let loader = workspace.loader();
    let roots: Vec<_> = (0..300)
        .map(|index| {
            let root = workspace.platform().join(format!("w{index}"));
            fs::create_dir(&root).unwrap();
            fs::write(root.join("AGENTS.md"), index.to_string()).unwrap();
            root
        })
        .collect();
    for _ in 0..2 {
        for (index, root) in roots.iter().enumerate() {
            let instructions = loader.current(root).definitions.instructions.clone();
            assert_eq!(instructions, Some(index.to_string()));
        }
    }
}

#[test]
fn current_sees_a_workspace_that_is_created_later() {
    let workspace = Workspace::new();
    let (loader, root) = (workspace.loader(), workspace.root().join("later"));
    assert_eq!(loader.current(&root).definitions.problems.len(), 1);
    workspace.write("later/AGENTS.md", "Here.");
    assert_eq!(loader.current(&root).definitions.instructions.as_deref(), Some("Here."));
}
