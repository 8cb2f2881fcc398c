//! Loads a project from OpenCode's documentation.

use remuda_domain::agent::{AgentMode, AgentSource, PermissionAction};
use remuda_workspace::Definitions;

use crate::support::{Workspace, fixture, listed};

const MODELS: &str = "sonnet:
  provider: anthropic
  name: claude-sonnet-4-20250514
";

fn load() -> Definitions {
    let workspace = Workspace::with(&[("platform:models/m.yaml", MODELS)]);
    workspace.loader().load(&fixture("opencode"))
}

#[test]
fn opencode_agents_load() {
    let definitions = load();
    // The only problem is the model that does not exist.
    let shown = listed(&definitions.problems);
    assert_eq!(definitions.problems.len(), 1, "{shown}");
    assert!(
        shown.contains("opencode.json:24:16: model: there is no model `anthropic/claude-haiku-4-20250514`"),
        "{shown}"
    );

    let build = definitions.agent("build").unwrap();
    assert_eq!((build.mode, build.prompt.as_str()), (AgentMode::Primary, "You build what was asked for."));
    assert_eq!(build.model.as_ref().unwrap().reference, "platform/sonnet");
    assert_eq!(build.origin.source, AgentSource::OpenCode);
    assert_eq!(build.origin.file.as_deref(), Some("opencode.json"));
    assert!(!build.description.is_empty(), "unset fields come from the built-in agent");

    let plan = definitions.default_agent().unwrap();
    assert_eq!(plan.name, "plan");
    assert_eq!(plan.model, None, "it uses the default model");
    assert_eq!(plan.parameters.temperature, Some(0.1));
    assert!(["Bash", "Write", "Edit"].iter().all(|tool| plan.disallowed.native.iter().any(|t| t == tool)));
    assert!(plan.prompt.contains("plan"));

    let reviewer = definitions.agent("code-reviewer").unwrap();
    assert_eq!(reviewer.mode, AgentMode::Subagent);
    assert_eq!(reviewer.disallowed.native, ["Write", "Edit"]);
    assert_eq!(reviewer.permission[0].permission, "webfetch");
    assert_eq!(reviewer.permission[1].action, PermissionAction::Deny);

    let quick = definitions.agent("quick-thinker").unwrap();
    assert_eq!((quick.mode, quick.policy.max_steps), (AgentMode::All, 5));
    assert_eq!(quick.model.as_ref().unwrap().reference, "platform/sonnet", "the model of the project");
    assert!(quick.subagents.contains(&"code-reviewer".to_owned()));

    let planner = definitions.agent("orchestrator-planner").unwrap();
    assert!(planner.hidden && planner.prompt.is_empty() && planner.subagents.is_empty());
    assert_eq!((planner.color.as_deref(), planner.parameters.top_p), (Some("accent"), Some(0.9)));
    assert_eq!(planner.model, None, "sub-agents use the model of their parent");
    assert_eq!(
        definitions.agent("orchestrator").unwrap().subagents,
        ["code-reviewer", "orchestrator-planner"]
    );

    let readonly = definitions.agent("readonly").unwrap();
    assert_eq!(readonly.disallowed.native, ["Write", "Edit"]);
    assert_eq!(readonly.disallowed.external, ["mymcp_*"]);
    assert!(!definitions.agents.contains_key("general"), "it is disabled");
}

#[test]
fn opencode_files_override_the_configuration() {
    let definitions = load();
    let review = definitions.agent("review").unwrap();
    assert_eq!(review.description, "Reads changes and finds what is wrong: bugs, races, leaks");
    assert_eq!(review.parameters.temperature, Some(0.7), "fields that only the configuration sets stay");
    assert_eq!(review.origin.file.as_deref(), Some(".opencode/agents/review.md"));
    assert!(review.prompt.starts_with("Only read") && review.prompt.ends_with("- missing checks"));
    let rules: Vec<(&str, &str)> =
        review.permission.iter().map(|rule| (rule.permission.as_str(), rule.pattern.as_str())).collect();
    let expected = [
        ("webfetch", "*"),
        ("edit", "*"),
        ("bash", "*"),
        ("bash", "git diff"),
        ("bash", "git log*"),
        ("bash", "grep *"),
        ("webfetch", "*"),
    ];
    assert_eq!(rules, expected);
    assert_eq!(
        review.disallowed.native,
        ["Write", "Edit", "WebFetch"],
        "bash needs approval but is not denied"
    );

    let writer = definitions.agent("docs-writer").unwrap();
    assert_eq!(writer.disallowed.native, ["Bash", "BashOutput", "KillBash"]);
}

#[test]
fn agent_as_described_by_the_source_code_loads() {
    let configuration = r#"{
      "model": { "providerID": "anthropic", "modelID": "claude-sonnet-4-20250514" },
      "agent": {
        "my-agent": {
          "description": "Custom agent for specific tasks",
          "mode": "primary",
          "native": false,
          "permission": { "*": "allow", "write": "ask", },
          "model": { "providerID": "anthropic", "modelID": "claude-sonnet-4-20250514", },
          "temperature": 0.7,
          "topP": 0.9,
        },
        "other": { "mode": "primary" },
      },
    }"#;
    let files = [("platform:models/m.yaml", MODELS), ("opencode.json", configuration)];
    let definitions = Workspace::with(&files).load();
    assert!(definitions.problems.is_empty(), "{}", listed(&definitions.problems));
    let agent = definitions.agent("my-agent").unwrap();
    assert_eq!((agent.parameters.temperature, agent.parameters.top_p), (Some(0.7), Some(0.9)));
    for agent in ["my-agent", "other"] {
        let model = definitions.agent(agent).unwrap().model.clone().unwrap();
        assert_eq!(model.reference, "platform/sonnet", "{agent}");
    }
}

#[test]
fn model_without_its_provider_is_an_error() {
    let configuration = r#"{ "agent": { "a": { "model": { "modelID": "claude" } } } }"#;
    let definitions = Workspace::with(&[("opencode.json", configuration)]).load();
    let shown = listed(&definitions.problems);
    assert!(shown.contains("opencode.json:1:30: model.providerID: is missing, expected text"), "{shown}");
}
