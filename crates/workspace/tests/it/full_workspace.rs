//! Loads a workspace that uses every kind of definition.

use std::time::Duration;

use remuda_domain::{
    agent::{AgentMode, PermissionAction},
    execution::BackendKind,
    model::ProviderKind,
    permission::{PermissionMode, PermissionRule, Unattended},
};
use remuda_workspace::{Definitions, RetryPolicy, Segment, ToolTransport, WorkspaceKind};

use crate::support::{Workspace, assert_no_problems};

fn workspace() -> Workspace {
    Workspace::with(&[
        ("AGENTS.md", "# Project\n\nBuild with `make ${env.SECRET}`.\n"),
        (
            ".openharness/settings.yaml",
            "kind: project
default_agent: lead
template: default
skill_dirs: [docs/skills]
models:
  fast: workspace/small
  careful: {ref: platform/large, temperature: 0.1, max_tokens: 500}
system_prompt:
  base: {inline: Base.}
  llm_optimized:
    providers: {anthropic: {file: prompts/anthropic.md}}
    models: {platform/large: {inline: Large.}}
  compose:
    order: [base, agent, project_agents_md, memory]
    include_environment: true
execution: {backend: docker, image: alpine, network: none, workspace: copy}
permissions: {mode: default, unattended: fail, rules: {webfetch: ask}}
memory: {enabled: true, file: NOTES.md, directory: notes, max_bytes: 1000}
context: {summarize: false, model: fast}
",
        ),
        ("prompts/anthropic.md", "For Anthropic.\n"),
        (
            ".openharness/models/models.yaml",
            "small:
  provider: openai-compatible
  url: http://127.0.0.1:1/v1/
  name: small-1
  key: ${env.TEAM_KEY}
  headers: {x-team: '${env.TEAM_KEY}'}
  temperature: ${env.TEAM_NUMBER}
  metadata: {max_model_len: 1000, tags: [a, b]}
  price: {input: 0.15, output: 1}
script:
  provider: scripted
  name: ../scenarios/one.yaml
",
        ),
        (".openharness/scenarios/one.yaml", "turns: []\n"),
        (
            "platform:models/p.yaml",
            "large:\n  provider: anthropic\n  name: large-1\n  key: ${env.SECRET}\n  context_window: 200000\n  max_output_tokens: 64000\n  price: {input: 3.00, output: 15, cached_input: 0.3, cache_write: 3.7500009}\n",
        ),
        (
            ".openharness/agents/lead.md",
            "---
mode: primary
description: Leads
model: careful
top_p: 0.5
system_reminder: You lead now.
tools:
  native: [Read, Bash]
  actions: [deploy]
  skills: [poems]
  external: [search]
disallowed:
  tools: {native: [Bash], external: [other*]}
  skills: ['*']
switch: [build]
subagents: [helper]
policy:
  max_steps: 12
  run_timeout_seconds: 60
  tool_timeout_seconds: 1.5
  parallel_tool_calls: false
  max_concurrent_subagents: 2
hidden: false
background: true
color: '#aabbcc'
permission:
  edit: ask
  bash:
    '*': deny
    git *: allow
---

Lead well: $${env.HOME}.
",
        ),
        (
            ".openharness/agents/helper.md",
            "---\nmode: subagent\nmodel: {model_ref: workspace/small, temperature: 1, top_p: 0.2, max_tokens: 10}\ntools: {native: ['*'], actions: [], skills: [], external: []}\n---\nHelp.\n",
        ),
        ("docs/skills/poems/SKILL.md", "---\nname: poems\ndescription: Rhymes\n---\nRhyme.\n"),
        (
            ".openharness/actions/deploy/ACTION.yaml",
            "name: deploy
description: Ships it
entry: {command: ./ship.sh, environment: {TOKEN: '${env.TEAM_KEY}'}, cwd: sub, timeout_seconds: 30}
expose: {to_llm: false}
recovery: {retry_policy: safe}
input_schema: {type: object}
",
        ),
        (
            ".openharness/tools/settings.yaml",
            "search:
  command: search-server
  environment: {KEY: '${env.TEAM_KEY}'}
  timeout: 5000
  expose: {tool_prefix: find, include: [a], exclude: [b]}
",
        ),
    ])
}

#[test]
fn all_definitions_are_loaded() {
    let workspace = workspace();
    let definitions = workspace.load();
    assert_no_problems(&definitions);

    let settings = &definitions.settings;
    assert_eq!(settings.kind, WorkspaceKind::Project);
    assert_eq!(settings.template.as_deref(), Some("default"));
    assert_eq!(settings.execution.backend, Some(BackendKind::Docker));
    assert_eq!(settings.prompt.base.as_deref(), Some("Base."));
    assert_eq!(settings.prompt.by_provider["anthropic"], "For Anthropic.");
    assert_eq!(settings.prompt.by_model["platform/large"], "Large.");
    assert_eq!(
        settings.prompt.order,
        [Segment::Base, Segment::Agent, Segment::ProjectAgentsMd, Segment::Memory]
    );
    assert!(settings.prompt.include_environment);
    assert_eq!(settings.permission, [PermissionRule::new("webfetch", "*", PermissionAction::Ask)]);
    assert_eq!(settings.permission_mode, Some(PermissionMode::Default));
    assert_eq!(settings.unattended, Some(Unattended::Fail));
    let memory = &settings.memory;
    assert_eq!(
        (memory.file.as_str(), memory.directory.as_str(), memory.max_bytes),
        ("NOTES.md", "notes", 1000)
    );
    assert_eq!((settings.context.summarize, settings.context.model.as_deref()), (Some(false), Some("fast")));
    // Prose is not interpolated: it may reference variables.
    assert_eq!(definitions.instructions.as_deref(), Some("# Project\n\nBuild with `make ${env.SECRET}`."));

    let small = definitions.model("small").unwrap();
    assert_eq!(small.provider, ProviderKind::OpenAiCompatible);
    assert_eq!(small.url.as_deref(), Some("http://127.0.0.1:1/v1"));
    assert_eq!(small.key.as_ref().unwrap().expose(), "sk-team-hidden");
    assert_eq!(small.headers["x-team"].expose(), "sk-team-hidden");
    assert_eq!(small.parameters.temperature, Some(0.25));
    assert_eq!(small.metadata["max_model_len"], 1000);
    assert_eq!((small.context_window, small.max_output_tokens), (Some(1000), None), "from the metadata");
    let price = small.price.unwrap();
    assert_eq!((price.input, price.output, price.cached_input), (150_000, 1_000_000, None));
    let large = definitions.model("platform/large").unwrap();
    assert_eq!((large.context_window, large.max_output_tokens), (Some(200_000), Some(64_000)));
    let price = large.price.unwrap();
    assert_eq!((price.input, price.output), (3_000_000, 15_000_000));
    assert_eq!((price.cached_input, price.cache_write), (Some(300_000), Some(3_750_000)));
    assert_eq!(
        definitions.model("platform/large").unwrap().key.as_ref().unwrap().expose(),
        "sk-secret-hidden"
    );
    let scenario = std::path::PathBuf::from(&definitions.model("script").unwrap().name);
    assert_eq!(std::fs::read_to_string(scenario).unwrap(), "turns: []\n");

    let action = &definitions.actions["deploy"];
    assert_eq!(action.environment["TOKEN"].expose(), "sk-team-hidden");
    assert_eq!((action.to_llm, action.callable_by_api, action.retry), (false, true, RetryPolicy::Safe));
    assert_eq!(action.timeout, Some(Duration::from_secs(30)));
    let server = &definitions.tool_servers["search"];
    assert_eq!(server.transport, ToolTransport::Command { command: "search-server".to_owned() });
    assert_eq!((server.prefix.as_deref(), server.timeout), (Some("find"), Some(Duration::from_secs(5))));
}

#[test]
fn all_fields_of_agents_are_parsed() {
    let definitions = workspace().load();
    let lead = definitions.default_agent().unwrap();
    assert_eq!(
        (lead.name.as_str(), lead.mode, lead.description.as_str()),
        ("lead", AgentMode::Primary, "Leads")
    );
    assert_eq!(lead.prompt, "Lead well: $${env.HOME}.");
    let model = lead.model.as_ref().unwrap();
    assert_eq!(model.reference, "platform/large");
    let parameters = model.parameters;
    assert_eq!(
        (parameters.temperature, parameters.top_p, parameters.max_tokens),
        (Some(0.1), Some(0.5), Some(500))
    );
    assert_eq!(lead.system_reminder.as_deref(), Some("You lead now."));
    assert_eq!(lead.tools.native.as_deref().unwrap(), ["Read", "Bash"]);
    assert_eq!(lead.tools.actions.as_deref().unwrap(), ["deploy"]);
    assert_eq!(lead.tools.skills.as_deref().unwrap(), ["poems"]);
    assert_eq!(lead.tools.external.as_deref().unwrap(), ["search"]);
    assert_eq!(lead.disallowed.native, ["Bash"]);
    assert_eq!(lead.disallowed.external, ["other*"]);
    assert_eq!(lead.disallowed.skills, ["*"]);
    assert_eq!((lead.switch.join(","), lead.subagents.join(",")), ("build".to_owned(), "helper".to_owned()));
    let policy = &lead.policy;
    assert_eq!(
        (policy.max_steps, policy.parallel_tool_calls, policy.max_concurrent_subagents),
        (12, false, 2)
    );
    assert_eq!(policy.run_timeout, Some(Duration::from_secs(60)));
    assert_eq!(policy.tool_timeout, Some(Duration::from_millis(1500)));
    assert!(lead.background && !lead.hidden);
    assert_eq!(lead.color.as_deref(), Some("#aabbcc"));
    let rules: Vec<_> =
        lead.permission.iter().map(|r| (r.permission.as_str(), r.pattern.as_str(), r.action)).collect();
    assert_eq!(
        rules,
        [
            ("edit", "*", PermissionAction::Ask),
            ("bash", "*", PermissionAction::Deny),
            ("bash", "git *", PermissionAction::Allow),
        ]
    );
    let helper = definitions.agent("helper").unwrap().model.as_ref().unwrap();
    assert_eq!((helper.reference.as_str(), helper.parameters.max_tokens), ("workspace/small", Some(10)));
    assert!(definitions.agent("helper").unwrap().has_tool("Edit"));
}

#[test]
fn version_round_trips_through_its_stored_form() {
    let definitions = workspace().load();
    let content = definitions.to_content().unwrap();
    let back = Definitions::from_content(&content.text).unwrap();
    assert_eq!(back.agents, definitions.agents);
    assert_eq!(back.settings, definitions.settings);
    assert_eq!((&back.memory, &back.models.len()), (&definitions.memory, &definitions.models.len()));
    assert_eq!(
        back.model("platform/large").unwrap().price,
        definitions.model("platform/large").unwrap().price
    );
    assert_eq!(back.to_content().unwrap().hash, content.hash);
    assert_eq!(back.model("small").unwrap().key, None);
}

#[test]
fn prompts_file_replaces_prompts_of_the_settings() {
    let workspace = workspace();
    workspace.write(".openharness/prompts.yaml", "base: Newer.\ncompose: {order: [agent]}\n");
    let definitions = workspace.load();
    assert_eq!(definitions.settings.prompt.base.as_deref(), Some("Newer."));
    assert_eq!(definitions.settings.prompt.order, [Segment::Agent]);
    let shown = crate::support::listed(&definitions.problems);
    assert!(shown.contains("replaces `system_prompt`"), "{shown}");
    assert!(shown.contains("memory: is not sent to agents"), "{shown}");
    assert_eq!(definitions.problems.len(), 2);
}

#[test]
fn long_instructions_are_truncated_with_a_warning() {
    let workspace = Workspace::with(&[("AGENTS.md", &"A line of text.\n".repeat(30_000))]);
    let definitions = workspace.load();
    let instructions = definitions.instructions.unwrap();
    assert!(instructions.len() <= 256 * 1024 && instructions.ends_with("A line of text."));
    assert!(definitions.problems[0].message.contains("larger than 256 KiB"));
}
