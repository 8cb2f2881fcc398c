//! Edge cases of the OpenCode and CodingCode formats.

use crate::support::{GOOD, Workspace, assert_no_problems, errors, listed};

#[test]
fn allow_rules_after_deny_all_keep_their_tools() {
    let workspace = Workspace::with(&[(
        ".opencode/agents/a.md",
        "---\ndescription: d\npermission:\n  '*': deny\n  read: allow\n  list: allow\n  docs_*: allow\n---\nA.\n",
    )]);
    let definitions = workspace.load();
    assert_no_problems(&definitions);
    let agent = definitions.agent("a").unwrap();
    let left: Vec<&str> = ["Bash", "Read", "Write", "Edit", "Glob", "Grep", "WebFetch", "TodoWrite"]
        .into_iter()
        .filter(|tool| !agent.disallowed.native.iter().any(|denied| denied == tool))
        .collect();
    assert_eq!(left, ["Read", "Glob"]);
    assert_eq!(agent.tools.external.as_deref().unwrap(), ["docs"]);
    assert_eq!(agent.tools.actions.as_deref(), Some(&[][..]));
    assert!(agent.subagents.is_empty(), "delegation is denied, too");
}

#[test]
fn permission_can_be_a_single_action() {
    let workspace =
        Workspace::with(&[(".opencode/agents/a.md", "---\npermission: allow\nmaxSteps: 1\n---\nA.\n")]);
    let definitions = workspace.load();
    assert_no_problems(&definitions);
    let agent = definitions.agent("a").unwrap();
    assert!(agent.disallowed.native.is_empty());
    assert_eq!(agent.policy.max_steps, 2, "one step would never use a tool");
    assert!(agent.subagents.contains(&"explore".to_owned()));
}

#[test]
fn opencode_frontmatter_name_overrides_the_file_name() {
    let workspace = Workspace::with(&[(".opencode/agents/file.md", "---\nname: called\n---\nA.\n")]);
    let definitions = workspace.load();
    assert_no_problems(&definitions);
    assert!(definitions.agent("called").is_ok() && definitions.agent("file").is_err());
}

#[test]
fn opencode_agents_in_subdirectories_are_reported() {
    let workspace = Workspace::with(&[(".opencode/agents/team/a.md", GOOD)]);
    let definitions = workspace.load();
    assert!(
        listed(&definitions.problems)
            .contains(".opencode/agents/team: agents in subdirectories are not read")
    );
}

#[test]
fn second_opencode_configuration_is_ignored_with_a_warning() {
    let workspace = Workspace::with(&[
        ("opencode.json", "{\"agent\": {\"a\": {\"prompt\": \"one\"}}}"),
        ("opencode.jsonc", "{\"agent\": {\"a\": {\"prompt\": \"two\"}}}"),
    ]);
    let definitions = workspace.load();
    assert_eq!(definitions.agent("a").unwrap().prompt, "one");
    assert!(listed(&definitions.problems).contains("opencode.jsonc: is not read"));
    assert!(errors(&definitions).is_empty());
}

#[test]
fn forbidden_variables_in_other_opencode_keys_are_ignored() {
    let text = "{\"provider\": {\"x\": {\"key\": \"{env:SECRET}\"}}, \"agent\": {\"a\": {\"prompt\": \"{env:SECRET}\"}, \"b\": {\"prompt\": \"B\"}}}";
    let definitions = Workspace::with(&[("opencode.json", text)]).load();
    assert_eq!(definitions.problems.len(), 1, "{}", listed(&definitions.problems));
    assert!(definitions.agent("a").unwrap_err().message().contains("SECRET may not be read"));
    assert_eq!(definitions.agent("b").unwrap().prompt, "B");
}

#[test]
fn default_agent_of_the_settings_overrides_opencode() {
    let workspace = Workspace::with(&[("opencode.json", "{\"default_agent\": \"plan\"}")]);
    assert_eq!(workspace.load().default_agent().unwrap().name, "plan");
    workspace.write(".openharness/settings.yaml", "default_agent: build\n");
    assert_eq!(workspace.load().default_agent().unwrap().name, "build");
}

#[test]
fn foreign_model_names_resolve_by_provider_and_name() {
    let workspace = Workspace::with(&[
        (
            "platform:models/m.yaml",
            "sonnet:\n  provider: anthropic\n  name: claude-x\nlocal:\n  provider: openai-compatible\n  url: http://h/v1\n  name: qwen/coder\n",
        ),
        (".openharness/settings.yaml", "models: {openai/gpt: platform/local}\n"),
        (".opencode/agents/a.md", "---\nmodel: anthropic/claude-x\n---\nA.\n"),
        (".opencode/agents/b.md", "---\nmodel: together/qwen/coder\n---\nA.\n"),
        (".opencode/agents/c.md", "---\nmodel: platform/local\n---\nA.\n"),
        (".opencode/agents/d.md", "---\nmodel: openai/claude-x\n---\nA.\n"),
        (".codingcode/agents/e.md", "---\nname: e\ndescription: d\nmodel: sonnet\n---\nA.\n"),
    ]);
    let definitions = workspace.load();
    let model = |name: &str| definitions.agent(name).unwrap().model.as_ref().map(|m| m.reference.clone());
    assert_eq!(model("a").as_deref(), Some("platform/sonnet"));
    assert_eq!(model("b").as_deref(), Some("platform/local"));
    assert_eq!(model("c").as_deref(), Some("platform/local"));
    assert_eq!(model("d"), None, "another provider's");
    assert_eq!(model("e").as_deref(), Some("platform/sonnet"));
}

#[test]
fn opencode_can_patch_a_platform_agent() {
    let workspace = Workspace::with(&[
        ("platform:models/m.yaml", "m:\n  provider: openai\n  name: x\n"),
        ("platform:agents/house.md", "---\nmodel: m\ntools: [Read]\nsystem_reminder: r\n---\nHouse.\n"),
        ("opencode.json", "{\"agent\": {\"house\": {\"temperature\": 0.5}}}"),
    ]);
    let definitions = workspace.load();
    assert_no_problems(&definitions);
    let house = definitions.agent("house").unwrap();
    assert_eq!(
        (house.prompt.as_str(), house.tools.native.as_deref().unwrap()),
        ("House.", &["Read".to_owned()][..])
    );
    let model = house.model.as_ref().unwrap();
    assert_eq!((model.reference.as_str(), model.parameters.temperature), ("m", Some(0.5)));
}

#[test]
fn missing_project_model_is_reported_once_with_its_position() {
    let workspace = Workspace::with(&[
        ("opencode.json", "{\n  \"model\": \"x/y\"\n}"),
        (".opencode/agents/a.md", "A."),
        (".opencode/agents/b.md", "B."),
    ]);
    let definitions = workspace.load();
    assert_eq!(definitions.problems.len(), 1, "{}", listed(&definitions.problems));
    assert!(
        definitions.problems[0].to_string().starts_with("opencode.json:2:12: model: there is no model `x/y`")
    );
}

#[test]
fn names_that_differ_only_in_case_are_reported() {
    let workspace = Workspace::with(&[(".openharness/agents/Build.md", GOOD)]);
    let definitions = workspace.load();
    assert!(listed(&definitions.problems).contains("Build.md: there is also an agent `build`"));
    assert!(definitions.agent("Build").is_ok() && definitions.agent("build").is_ok());
}
