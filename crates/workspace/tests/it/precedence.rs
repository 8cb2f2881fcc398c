//! Precedence of definitions with the same name.

use remuda_domain::agent::AgentSource;
use remuda_workspace::Segment;

use crate::support::{Workspace, assert_no_problems, listed};

fn agent(prompt: &str) -> String {
    format!("---\nmode: all\ndescription: d\ntools: {{native: []}}\n---\n{prompt}\n")
}

fn opencode_agent(prompt: &str) -> String {
    format!("---\nmode: all\ndescription: d\n---\n{prompt}\n")
}

fn profile(name: &str, prompt: &str) -> String {
    format!("---\nname: {name}\ndescription: d\n---\n{prompt}\n")
}

#[test]
fn built_in_agents_have_no_problems() {
    let definitions = Workspace::new().load();
    assert_no_problems(&definitions);
    let names: Vec<&str> = definitions.agents.keys().map(String::as_str).collect();
    assert_eq!(names, ["assistant", "build", "explore", "fixer", "general", "plan", "reviewer", "test"]);
    assert_eq!(definitions.default_agent().unwrap().name, "assistant");
    for name in ["plan", "explore", "reviewer"] {
        let agent = definitions.agent(name).unwrap();
        let native = agent.tools.native.as_ref().unwrap();
        for tool in ["Bash", "Write", "Edit"] {
            assert!(!native.iter().any(|native| native == tool), "{name} {tool}");
        }
        assert_eq!(agent.tools.actions.as_deref(), Some(&[][..]), "{name}: an action is a command");
    }
    for agent in definitions.agents.values() {
        assert!(!agent.description.is_empty() && agent.policy.max_steps >= 40, "{}", agent.name);
        assert_eq!(agent.origin.source, AgentSource::BuiltIn);
    }
    assert_eq!(definitions.settings.prompt.order, Segment::DEFAULT_ORDER);
}

#[test]
fn workspace_overrides_platform_overrides_built_in() {
    let workspace = Workspace::with(&[
        ("platform:agents/build.md", &agent("platform")),
        ("platform:agents/plan.md", &agent("platform")),
        ("platform:agents/extra.md", &agent("platform")),
        (".openharness/agents/build.md", &agent("workspace")),
    ]);
    let definitions = workspace.load();
    assert_no_problems(&definitions);
    let prompt = |name: &str| definitions.agent(name).unwrap().prompt.clone();
    assert_eq!(prompt("build"), "workspace");
    assert_eq!(prompt("plan"), "platform");
    assert_eq!(prompt("extra"), "platform");
    assert!(prompt("test").starts_with("You test."));
    assert_eq!(definitions.agents["plan"].origin.source, AgentSource::Platform);
    assert_eq!(definitions.agents["build"].origin.file.as_deref(), Some(".openharness/agents/build.md"));
}

#[test]
fn native_format_overrides_other_formats_with_a_warning() {
    let workspace = Workspace::with(&[
        (".openharness/agents/a.md", &agent("ours")),
        (".opencode/agents/a.md", &opencode_agent("opencode")),
        (".codingcode/agents/a.md", &profile("a", "codingcode")),
        (".opencode/agents/b.md", &opencode_agent("opencode")),
        (".codingcode/agents/b.md", &profile("b", "codingcode")),
        (".codingcode/agents/c.md", &profile("c", "codingcode")),
    ]);
    let definitions = workspace.load();
    let prompt = |name: &str| definitions.agent(name).unwrap().prompt.clone();
    assert_eq!(
        (prompt("a"), prompt("b"), prompt("c")),
        ("ours".into(), "opencode".into(), "codingcode".into())
    );
    let shown = listed(&definitions.problems);
    for expected in [
        "Warning .codingcode/agents/a.md: the agent `a` of .opencode/agents/a.md is used instead of this one",
        "Warning .codingcode/agents/b.md: the agent `b` of .opencode/agents/b.md is used instead of this one",
        "Warning .opencode/agents/a.md: the agent `a` of .openharness/agents/a.md is used instead of this one",
    ] {
        assert!(shown.contains(expected), "{shown}");
    }
    assert_eq!(definitions.problems.len(), 3, "{shown}");
}

#[test]
fn invalid_agent_does_not_fall_back_to_a_lower_layer() {
    let workspace = Workspace::with(&[(".openharness/agents/build.md", "---\ntools: 3\n---\nRead only.\n")]);
    let definitions = workspace.load();
    let refusal = definitions.agent("build").unwrap_err();
    assert!(refusal.message().contains("tools: expected a map"), "{refusal}");
    assert!(definitions.agent("plan").is_ok());
}

#[test]
fn registries_of_platform_and_workspace_are_separate() {
    let workspace = Workspace::with(&[
        (
            "platform:models/all.yaml",
            "shared:\n  provider: anthropic\n  name: of-platform\nonly:\n  provider: openai\n  name: x\n",
        ),
        (
            ".openharness/models/own.yaml",
            "shared:\n  provider: openai\n  name: of-workspace\n模型:\n  provider: openai\n  name: y\n",
        ),
    ]);
    let definitions = workspace.load();
    assert_no_problems(&definitions);
    let name = |reference: &str| definitions.model(reference).unwrap().name.clone();
    assert_eq!(name("shared"), "of-workspace");
    assert_eq!(name("platform/shared"), "of-platform");
    assert_eq!(name("only"), "x");
    assert_eq!(name("workspace/模型"), "y");
    assert!(definitions.model("workspace/only").is_err());
}

#[test]
fn first_skill_directory_wins() {
    let skill = |text: &str| format!("---\ndescription: d\n---\n{text}\n");
    let workspace = Workspace::with(&[
        (".openharness/settings.yaml", "skill_dirs: [more, most]\n"),
        (".openharness/skills/a/SKILL.md", &skill("own")),
        ("more/a/SKILL.md", &skill("more")),
        ("more/b/SKILL.md", &skill("more")),
        ("most/b/SKILL.md", &skill("most")),
        ("platform:skills/b/SKILL.md", &skill("platform")),
        ("platform:skills/c/SKILL.md", "# Title\n\nFirst line.\nSecond.\n"),
    ]);
    let definitions = workspace.load();
    assert_no_problems(&definitions);
    let body = |name: &str| definitions.skills[name].body.clone();
    assert_eq!((body("a"), body("b")), ("own".to_owned(), "more".to_owned()));
    assert_eq!(definitions.skills["c"].description, "First line.");
    assert_eq!(definitions.skills["b"].directory, workspace.root().join("more/b"));
    assert_eq!(definitions.skills["c"].directory, workspace.platform().join("skills/c"));
}

#[test]
fn tool_servers_of_the_workspace_replace_those_of_the_platform() {
    let workspace = Workspace::with(&[
        ("platform:tools/settings.yaml", "a:\n  command: one\nb:\n  command: one\nc:\n  command: one\n"),
        (".openharness/tools/settings.yaml", "a:\n  url: https://two\n  timeout: 500\nb:\n  command: [x]\n"),
    ]);
    let definitions = workspace.load();
    assert!(definitions.tool_servers["a"].timeout.is_some());
    assert!(!definitions.tool_servers.contains_key("b"), "an invalid server does not fall back");
    assert!(definitions.tool_servers.contains_key("c"));
}

/// Actions, skills and a tool server, so that a missing list of them has an effect.
const CAPABILITIES: [(&str, &str); 3] = [
    (".openharness/actions/a/ACTION.yaml", "name: a\nentry: {command: 'true'}\n"),
    (".openharness/skills/s/SKILL.md", "---\nname: s\n---\nText.\n"),
    (".openharness/tools/settings.yaml", "server: {command: serve}\n"),
];

#[test]
fn agent_has_only_what_it_lists_and_missing_lists_are_reported() {
    let workspace = Workspace::with(&CAPABILITIES);
    let of_agent = |frontmatter: &str| {
        workspace.write(".openharness/agents/a.md", format!("---\ndescription: d\n{frontmatter}---\nA.\n"));
        let definitions = workspace.load();
        let agent = definitions.agent("a").unwrap();
        let (has, tools) = (agent.has_tool("Bash") || agent.has_tool("Read"), &agent.tools);
        let lengths = [&tools.actions, &tools.skills, &tools.external].map(|it| it.as_ref().unwrap().len());
        let reported = definitions.problems.iter().map(|it| it.message.split(':').next().unwrap().to_owned());
        (has, lengths, reported.collect::<Vec<_>>())
    };
    let all = ["tools.actions", "tools.external", "tools.native", "tools.skills"].map(str::to_owned);
    let (has, lengths, mut reported) = of_agent("");
    reported.sort();
    assert_eq!((has, lengths, &reported[..]), (false, [0; 3], &all[..]));
    let (has, lengths, reported) = of_agent("skills: [s]\n");
    assert_eq!((has, lengths, reported.len()), (false, [0, 1, 0], 3));
    let everything = "tools: {native: ['*'], actions: ['*'], skills: ['*'], external: ['*']}\n";
    assert_eq!(of_agent(everything), (true, [1; 3], vec![]));
    let nothing = "tools: {native: [], actions: [], skills: [], external: []}\n";
    assert_eq!(of_agent(nothing), (false, [0; 3], vec![]));
}

#[test]
fn agents_of_other_formats_and_built_in_agents_keep_their_tools() {
    let workspace = Workspace::with(&[
        (".opencode/agents/open.md", "---\ndescription: d\n---\nO.\n"),
        (".codingcode/agents/coding.md", "---\nname: coding\ndescription: d\n---\nC.\n"),
    ]);
    let definitions = workspace.load();
    for agent in ["open", "coding", "assistant", "build", "general", "fixer", "test"] {
        assert!(definitions.agent(agent).unwrap().has_tool("Bash"), "{agent}");
    }
}
