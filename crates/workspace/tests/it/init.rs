//! Initializes workspaces from templates.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
};

use remuda_domain::error::Code;
use remuda_workspace::{Template, WorkspaceKind, init};

use crate::support::{Workspace, assert_no_problems};

fn files(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                found.push(path.strip_prefix(root).unwrap().display().to_string());
            }
        }
    }
    found.sort();
    found
}

#[test]
fn built_in_templates_have_no_problems() {
    for name in Template::BUILT_IN {
        let workspace = Workspace::new();
        let template = Template::named(name, None).unwrap();
        let report = init(&workspace.root(), &template).unwrap();
        assert!(!report.created.is_empty() && report.kept.is_empty());
        assert_eq!(files(&workspace.root()).len(), report.created.len(), "nothing else is left behind");
        let definitions = workspace.load();
        assert_no_problems(&definitions);
        assert_eq!(definitions.settings.template.as_deref(), Some(name));
        assert!(definitions.default_agent().unwrap().origin.file.is_some());
        assert!(definitions.instructions.is_some());
        let kind = if name == "chat" { WorkspaceKind::Chat } else { WorkspaceKind::Project };
        assert_eq!(definitions.settings.kind, kind);
    }
    assert_eq!(Template::named("nope", None).unwrap_err().code(), Code::InvalidArgument);
}

#[test]
fn init_keeps_existing_files_and_is_idempotent() {
    let workspace = Workspace::with(&[("AGENTS.md", "Mine."), ("src/main.rs", "fn main() {}")]);
    let template = Template::BuiltIn("default");
    let report = init(&workspace.root(), &template).unwrap();
    assert_eq!(report.kept, [Path::new("AGENTS.md")]);
    assert_eq!(fs::read_to_string(workspace.root().join("AGENTS.md")).unwrap(), "Mine.");

    workspace.write(".openharness/settings.yaml", "default_agent: build\n");
    let all = files(&workspace.root());
    let again = init(&workspace.root(), &template).unwrap();
    assert!(again.created.is_empty());
    assert_eq!(again.kept.len(), report.created.len() + 1);
    assert_eq!(files(&workspace.root()), all);
    assert_eq!(workspace.load().settings.default_agent.as_deref(), Some("build"));
}

#[test]
fn directory_can_be_a_template() {
    let workspace = Workspace::with(&[
        ("platform:templates/team/AGENTS.md", "Team."),
        ("platform:templates/team/.openharness/settings.yaml", "default_agent: build"),
        ("platform:templates/team/bin/run.sh", "#!/bin/sh\n"),
        ("platform:templates/team/.git/config", "not copied"),
    ]);
    let team = workspace.platform().join("templates/team");
    symlink("AGENTS.md", team.join("README.md")).unwrap();
    fs::set_permissions(team.join("bin/run.sh"), fs::Permissions::from_mode(0o755)).unwrap();

    let template = Template::named("team", Some(&workspace.platform().join("templates"))).unwrap();
    let root = workspace.root().join("new/place");
    init(&root, &template).unwrap();
    assert_eq!(files(&root), [".openharness/settings.yaml", "AGENTS.md", "README.md", "bin/run.sh"]);
    assert_eq!(fs::metadata(root.join("bin/run.sh")).unwrap().permissions().mode() & 0o777, 0o755);
    let settings = fs::read_to_string(root.join(".openharness/settings.yaml")).unwrap();
    assert_eq!(settings, "default_agent: build\ntemplate: \"team\"\n");
    assert_eq!(workspace.loader().load(&root).settings.template.as_deref(), Some("team"));
    // Later writes do not change the template.
    fs::write(root.join("AGENTS.md"), "changed").unwrap();
    assert_eq!(fs::read_to_string(team.join("AGENTS.md")).unwrap(), "Team.");
}

#[test]
fn link_out_of_a_template_is_refused_and_no_file_is_created() {
    let workspace = Workspace::with(&[("platform:templates/bad/a.md", "A"), ("platform:secret", "S")]);
    let bad = workspace.platform().join("templates/bad");
    symlink("../../secret", bad.join("link")).unwrap();
    let error = init(&workspace.root(), &Template::directory(&bad).unwrap()).unwrap_err();
    assert_eq!(error.code(), Code::PathNotAllowed);
    assert!(error.message().contains("link leads out of the template"), "{error}");
    assert!(files(&workspace.root()).is_empty());

    fs::remove_file(bad.join("link")).unwrap();
    symlink(".", bad.join("circle")).unwrap();
    assert!(init(&workspace.root(), &Template::directory(&bad).unwrap()).is_err());
    assert!(files(&workspace.root()).is_empty());
}

#[test]
fn failed_init_leaves_no_files() {
    // A file is where the template needs a directory.
    let workspace = Workspace::with(&[(".openharness/models", "a file")]);
    let before = files(&workspace.root());
    assert!(init(&workspace.root(), &Template::BuiltIn("default")).is_err());
    assert_eq!(files(&workspace.root()), before);

    // A link is where the template needs a directory; it could lead out of the workspace.
    let workspace = Workspace::new();
    symlink(workspace.platform(), workspace.root().join(".openharness")).unwrap();
    assert!(init(&workspace.root(), &Template::BuiltIn("default")).is_err());
    assert!(files(&workspace.platform()).is_empty());
    assert!(!workspace.root().join("AGENTS.md").try_exists().unwrap());
}
