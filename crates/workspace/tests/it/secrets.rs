//! Values of environment variables do not leak into problems, debug output or versions.

use crate::support::{Workspace, listed};

#[test]
fn environment_values_do_not_leak() {
    let workspace = Workspace::with(&[
        (
            "platform:models/p.yaml",
            "large:\n  provider: anthropic\n  name: l\n  key: ${env.SECRET}\n  headers: {x: '${env.SECRET}'}\n",
        ),
        // Fields of all types, in which the value is invalid.
        (
            ".openharness/models/m.yaml",
            "a:\n  provider: ${env.TEAM_KEY}\n  name: x\nb:\n  provider: openai\n  name: x\n  url: ${env.TEAM_KEY}\nc:\n  provider: openai\n  name: x\n  key: [\"${env.TEAM_KEY}\"]\nd:\n  provider: scripted\n  name: ${env.TEAM_KEY}\n",
        ),
        (
            ".openharness/agents/a.md",
            "---\nmode: ${env.TEAM_KEY}\nmodel: ${env.TEAM_KEY}\nswitch: ['${env.TEAM_KEY}', '${env.TEAM_KEY} x']\ncolor: ${env.TEAM_KEY}\n---\nA.\n",
        ),
        (
            ".openharness/agents/b.md",
            "---\nmodel: ${env.TEAM_KEY}\nswitch: ['${env.TEAM_KEY}']\ntools: ['${env.TEAM_KEY}']\n---\nB.\n",
        ),
        (
            ".openharness/settings.yaml",
            "kind: ${env.TEAM_KEY}\nskill_dirs: ['${env.TEAM_KEY}', '../${env.TEAM_KEY}']\nmodels: {x: '${env.TEAM_KEY}'}\nsystem_prompt:\n  base: {file: '${env.TEAM_KEY}'}\n  compose: {order: ['${env.TEAM_KEY}']}\n",
        ),
        (".openharness/tools/settings.yaml", "s:\n  url: ${env.TEAM_KEY}\n"),
        (
            ".openharness/actions/a/ACTION.yaml",
            "name: ${env.TEAM_KEY} x\nentry: {command: x, cwd: '../${env.TEAM_KEY}'}\n",
        ),
        (
            "opencode.json",
            "{\"default_agent\": \"{env:TEAM_KEY}\", \"agent\": {\"o\": {\"model\": \"{env:TEAM_KEY}\", \"prompt\": \"{file:{env:TEAM_KEY}}\", \"steps\": \"{env:TEAM_KEY}\"}}}",
        ),
        (".codingcode/agents/c.md", "---\nname: ${env.TEAM_KEY} x\ndescription: d\n---\nC.\n"),
    ]);
    let definitions = workspace.load();
    let shown = listed(&definitions.problems);
    assert!(definitions.problems.len() > 15, "{shown}");
    assert!(!shown.contains("hidden"), "{shown}");

    // A valid model does not show its key.
    let large = definitions.model("platform/large").unwrap();
    assert_eq!(large.key.as_ref().unwrap().expose(), "sk-secret-hidden");
    let models = format!("{:?}{}", definitions.models, serde_json::to_string(&definitions.models).unwrap());
    assert!(!models.contains("hidden"), "{models}");
    assert!(!format!("{:?}", workspace.loader()).contains("hidden"));
}

#[test]
fn changed_key_does_not_change_the_version() {
    let workspace = Workspace::with(&[(
        ".openharness/models/m.yaml",
        "m:\n  provider: openai\n  name: x\n  key: sk-one\n",
    )]);
    let loader = workspace.loader();
    let before = loader.current(&workspace.root());
    workspace.write(".openharness/models/m.yaml", "m:\n  provider: openai\n  name: x\n  key: sk-two\n");
    let after = loader.current(&workspace.root());
    assert_eq!(before.content.hash, after.content.hash);
    assert_eq!(after.definitions.model("m").unwrap().key.as_ref().unwrap().expose(), "sk-two");
}
