//! Permission rules of workspaces and agents in all formats.

use remuda_domain::permission::{PermissionAction, PermissionMode, Unattended};
use remuda_workspace::{Definitions, Settings};

use crate::support::{Workspace, assert_no_problems, listed};

const SETTINGS: &str = ".openharness/settings.yaml";

fn rules(settings: &Settings) -> Vec<(&str, &str, &str)> {
    let shown = settings.permission.iter();
    shown.map(|rule| (rule.permission.as_str(), rule.pattern.as_str(), rule.action.as_str())).collect()
}

fn load(text: &str) -> Definitions {
    Workspace::with(&[(SETTINGS, text)]).load()
}

#[test]
fn rules_are_a_map_or_a_list() {
    let map = load(
        "permissions:\n  mode: plan\n  unattended: refuse\n  rules:\n    write: ask\n    bash:\n      '*': deny\n      git *: allow\n",
    );
    assert_no_problems(&map);
    let expected = [("edit", "*", "ask"), ("bash", "*", "deny"), ("bash", "git *", "allow")];
    assert_eq!(rules(&map.settings), expected);
    assert_eq!(map.settings.permission_mode, Some(PermissionMode::Plan));
    assert_eq!(map.settings.unattended, Some(Unattended::Refuse));

    let list = load(
        "permissions:
  rules:
    - {permission: write, action: ask}
    - {tool: Bash, pattern: '*', action: deny}
    - {permission: bash, pattern: git *, action: allow}
",
    );
    assert_no_problems(&list);
    assert_eq!(rules(&list.settings), expected);
    assert_eq!(rules(&load("permissions: {rules: deny}\n").settings), [("*", "*", "deny")]);
    assert_eq!(load("kind: project\n").settings.permission, []);
}

#[test]
fn openharness_lists_keep_their_precedence() {
    let definitions = load(
        "permissions:
  mode: full_auto
  denied_tools: [web_fetch, KillBash]
  allowed_tools: [glob, BashOutput]
  path_rules:
    - {pattern: secrets/*, allow: false}
    - {pattern: docs/*, allow: true}
  denied_commands: [rm -rf *]
  rules: {webfetch: {'https://docs.example/*': allow}}
",
    );
    assert_no_problems(&definitions);
    let expected = [
        ("bash", "rm -rf *", "deny"),
        ("read", "docs/*", "allow"),
        ("edit", "docs/*", "allow"),
        ("read", "secrets/*", "deny"),
        ("edit", "secrets/*", "deny"),
        ("grep", "secrets/*", "deny"),
        ("glob", "*", "allow"),
        // Reading the output of commands does not imply running them.
        ("BashOutput", "*", "allow"),
        ("webfetch", "*", "deny"),
        ("KillBash", "*", "deny"),
        ("webfetch", "https://docs.example/*", "allow"),
    ];
    assert_eq!(rules(&definitions.settings), expected);
    assert_eq!(definitions.settings.permission_mode, Some(PermissionMode::FullAuto));
}

#[test]
fn opencode_rules_come_before_native_rules() {
    let workspace = Workspace::with(&[
        ("opencode.json", "{\"tools\": {\"webfetch\": false}, \"permission\": {\"bash\": \"ask\"}}"),
        (SETTINGS, "permissions: {rules: {bash: {'git *': allow}}}\n"),
    ]);
    let definitions = workspace.load();
    assert_no_problems(&definitions);
    let expected = [("webfetch", "*", "deny"), ("bash", "*", "ask"), ("bash", "git *", "allow")];
    assert_eq!(rules(&definitions.settings), expected);
}

#[test]
fn invalid_rules_deny_all_tools() {
    let everything = ("*", "*", "deny");
    for text in [
        "permissions: {rules: {bash: dney}}\n",
        "permissions: {mode: full_auto, rules: [{permission: bash}]}\n",
        "permissions: {denied_commands: rm}\n",
        "permissions: {rules: {'${env.SECRET}': x}}\n",
        "permissions: {denied_commands: ['${env.SECRET}']}\n",
        "permissions: '${env.SECRET}'\n",
        "permissions: strict\n",
        "permissions: {rules: [{permission: bash, pattern: , action: allow}]}\n",
        "permissions: {rules: [{permission: bash, action: }]}\n",
        "permissions: {path_rules: [{pattern: a, allow: }]}\n",
        "permissions: {rules: {bash: }}\n",
        "permissions: {rules: {bash: deny}\n",
        "just text\n",
    ] {
        let definitions = load(text);
        let shown = listed(&definitions.problems);
        assert_eq!(rules(&definitions.settings).last(), Some(&everything), "{text}{shown}");
        assert_eq!(definitions.settings.permission_mode, None, "{text}");
        assert!(shown.contains("agents may use no tools until this is fixed"), "{text}{shown}");
    }
    // Other errors in the settings have no effect on permissions.
    for text in ["kind: server\n", "memory: 3\n", "skill_dirs: 3\n", ""] {
        assert_eq!(load(text).settings.permission, [], "{text}");
    }
    let workspace = Workspace::with(&[("opencode.json", "{\"permission\": {\"bash\": \"dney\"}}")]);
    assert_eq!(rules(&workspace.load().settings), [everything]);
}

#[test]
fn rules_without_effect_are_reported() {
    let definitions = load(
        "permissions:
  denied_commands: [rm *]
  allowed_tools: [bash]
  rules:
    edit:
      src/*: allow
      '*': deny
    read: ask
",
    );
    let shown = listed(&definitions.problems);
    for expected in [
        "Warning .openharness/settings.yaml:2:21: the rule `bash: rm *` has no effect: the later rule `bash: *` says allow",
        "Warning .openharness/settings.yaml:6:7: the rule `edit: src/*` has no effect: the later rule `edit: *` says deny",
    ] {
        assert!(shown.contains(expected), "{shown}");
    }
    assert_eq!(definitions.problems.len(), 2, "{shown}");

    let secret = load(
        "permissions: {denied_commands: ['${env.TEAM_KEY}'], rules: [{permission: bash, pattern: 'x${env.TEAM_KEY}', action: deny}, {permission: bash, action: ask}]}\n",
    );
    let shown = listed(&secret.problems);
    assert_eq!(shown.matches("the rule has no effect: a later rule says ask").count(), 2, "{shown}");
    assert!(!shown.contains("hidden"), "{shown}");

    let agent = "---\npermission:\n  bash:\n    git *: allow\n    '*': ask\n---\nPrompt.\n";
    let native = agent.replace("ask\n---", "ask\ntools: {native: [Bash]}\n---");
    let workspace = Workspace::with(&[
        (".openharness/agents/a.md", &native),
        (SETTINGS, "permissions: {rules: {bash: deny}}\n"),
        (".opencode/agents/b.md", agent),
    ]);
    let definitions = workspace.load();
    let shown = listed(&definitions.problems);
    for file in [".openharness/agents/a.md", ".opencode/agents/b.md"] {
        assert!(
            shown.contains(&format!("Warning {file}:4:5: the rule `bash: git *` has no effect")),
            "{shown}"
        );
    }
    assert_eq!(definitions.problems.len(), 2, "an agent may override its workspace: {shown}");
    assert_eq!(definitions.agent("a").unwrap().permission.len(), 2);
}

#[test]
fn permission_mode_of_an_agent_is_parsed() {
    let workspace = Workspace::with(&[
        (".openharness/agents/a.md", "---\npermission_mode: plan\ntools: {native: []}\n---\nA.\n"),
        (
            ".openharness/agents/b.md",
            "---\npolicy: {permission_mode: full_auto, max_subagents: 3, max_switches: 0, max_concurrent_subagents: 2}\ntools: {native: []}\n---\nB.\n",
        ),
        (
            ".openharness/agents/c.md",
            "---\npermission_mode: default\npolicy: {permission_mode: full_auto}\ntools: {native: []}\n---\nC.\n",
        ),
        (".codingcode/agents/d.md", "---\nname: d\ndescription: d\npermissionMode: acceptEdits\n---\nD.\n"),
    ]);
    let definitions = workspace.load();
    assert_no_problems(&definitions);
    let mode = |name: &str| definitions.agent(name).unwrap().permission_mode;
    assert_eq!(mode("a"), Some(PermissionMode::Plan));
    assert_eq!(mode("b"), Some(PermissionMode::FullAuto));
    assert_eq!(mode("c"), Some(PermissionMode::Default), "the top-level key wins");
    assert_eq!(mode("plan"), Some(PermissionMode::Plan));
    assert_eq!((mode("build"), mode("d")), (None, None));
    let policy = &definitions.agent("b").unwrap().policy;
    assert_eq!((policy.max_subagents, policy.max_switches, policy.max_concurrent_subagents), (3, 0, 2));
    let policy = &definitions.agent("a").unwrap().policy;
    assert_eq!((policy.max_subagents, policy.max_switches, policy.max_concurrent_subagents), (64, 16, 4));
    let rules = &definitions.agent("d").unwrap().permission;
    assert_eq!((rules[1].permission.as_str(), rules[1].action), ("bash", PermissionAction::Ask));
}
