//! Switch and delegation targets of agents.

use remuda_domain::{
    Code,
    agent::{AgentDefinition, AgentMode},
    error::Result,
};
use remuda_workspace::{Definitions, Segment};

use crate::support::{Workspace, assert_no_problems, tools};

const LEAD: &str = "---
switch: [other, helper, gone, broken, off, lead, quiet]
subagents: [helper, other, gone, broken, off, lead, quiet, both]
---
Lead.
";

fn workspace() -> Workspace {
    Workspace::with(&[
        (".openharness/agents/lead.md", LEAD),
        (".openharness/agents/other.md", "---\nmode: primary\n---\nOther.\n"),
        (".openharness/agents/helper.md", "---\nmode: subagent\ndescription: Helps\n---\nHelper.\n"),
        (".openharness/agents/both.md", "---\nmode: all\n---\nBoth.\n"),
        (".openharness/agents/quiet.md", "---\nmode: all\nhidden: true\n---\nQuiet.\n"),
        (".openharness/agents/broken.md", "---\nmode: nonsense\n---\nBroken.\n"),
        (".opencode/agents/off.md", "---\ndisable: true\n---\nOff.\n"),
    ])
}

#[test]
fn refused_target_error_says_what_is_allowed_or_why() {
    let now = workspace().load();
    // The stored version contains no problems.
    let kept = Definitions::from_content(&now.to_content().unwrap().text).unwrap();
    type Ask = fn(&Definitions, &AgentDefinition, &str) -> Result<()>;
    let switch: Ask = |definitions, from, name| definitions.switch_target(from, name).map(drop);
    let delegate: Ask = |definitions, from, name| definitions.delegation_target(from, name).map(drop);
    for (ask, from, name, expected) in [
        (switch, "lead", "other", None),
        (switch, "lead", "quiet", None),
        (switch, "lead", "lead", Some((Code::AgentNotAllowed, "cannot switch to itself"))),
        (switch, "lead", "build", Some((Code::AgentNotAllowed, "lead may switch to other, helper, gone"))),
        (switch, "lead", "Other", Some((Code::AgentNotAllowed, "not to Other"))),
        (switch, "lead", "", Some((Code::AgentNotAllowed, "lead may switch to"))),
        (switch, "lead", "helper", Some((Code::AgentNotAllowed, "only works for other agents"))),
        (switch, "lead", "gone", Some((Code::AgentNotFound, "there is no agent gone"))),
        (switch, "lead", "broken", Some((Code::AgentNotFound, "the agent broken cannot be used"))),
        (switch, "lead", "off", Some((Code::AgentNotFound, "the agent off is disabled"))),
        (switch, "other", "lead", Some((Code::AgentNotAllowed, "other may switch to no other agent"))),
        (delegate, "lead", "helper", None),
        (delegate, "lead", "both", None),
        (delegate, "lead", "quiet", None),
        (delegate, "lead", "lead", Some((Code::AgentNotAllowed, "cannot delegate to itself"))),
        (delegate, "lead", "general", Some((Code::AgentNotAllowed, "lead may delegate to helper, other"))),
        (delegate, "lead", "other", Some((Code::AgentNotAllowed, "only leads sessions"))),
        (delegate, "lead", "gone", Some((Code::AgentNotFound, "there is no agent gone"))),
        (delegate, "lead", "broken", Some((Code::AgentNotFound, "the agent broken cannot be used"))),
        (delegate, "lead", "off", Some((Code::AgentNotFound, "the agent off is disabled"))),
        (delegate, "helper", "both", Some((Code::AgentNotAllowed, "helper may delegate to no other agent"))),
    ] {
        for definitions in [&now, &kept] {
            let result = ask(definitions, definitions.agent(from).unwrap(), name);
            match expected {
                None => assert!(result.is_ok(), "{from} {name}: {result:?}"),
                Some((code, message)) => {
                    let error = result.unwrap_err();
                    assert_eq!(
                        (error.code(), error.field()),
                        (code, Some("agent")),
                        "{from} {name}: {error}"
                    );
                    assert!(error.message().contains(message), "{from} {name}: {error}");
                }
            }
        }
    }
    let broken = now.switch_target(now.agent("lead").unwrap(), "broken").unwrap_err();
    assert!(broken.message().contains("broken.md:2:7: mode: expected primary"), "{broken}");
    assert!(now.agent("off").unwrap_err().message().contains("is disabled"));
    let long = now.delegation_target(now.agent("lead").unwrap(), &"x\n".repeat(5000)).unwrap_err();
    assert!(long.message().len() < 400 && !long.message().contains('\n'), "{long}");
}

#[test]
fn built_in_agents_have_usable_targets() {
    let definitions = Workspace::new().load();
    assert_no_problems(&definitions);
    let agent = |name: &str| definitions.agent(name).unwrap();
    let targets = |name: &str| {
        let names = |agents: Vec<&AgentDefinition>| {
            agents.into_iter().map(|agent| agent.name.clone()).collect::<Vec<_>>().join(" ")
        };
        (names(definitions.switch_targets(agent(name))), names(definitions.delegation_targets(agent(name))))
    };
    let both = |switch: &str, subagents: &str| (switch.to_owned(), subagents.to_owned());
    assert_eq!(targets("plan"), both("build", "explore"));
    assert_eq!(targets("build"), both("plan", "general explore reviewer fixer test"));
    assert_eq!(targets("assistant"), both("build plan", "general explore reviewer fixer test"));
    for name in ["general", "explore", "reviewer", "fixer", "test"] {
        assert_eq!(targets(name), both("", ""), "{name}");
        assert_ne!(agent(name).mode, AgentMode::Primary);
    }
    for (from, to) in
        definitions.agents.values().flat_map(|from| from.switch.iter().map(move |to| (from, to)))
    {
        definitions.switch_target(from, to).unwrap();
    }
    for (from, to) in
        definitions.agents.values().flat_map(|from| from.subagents.iter().map(move |to| (from, to)))
    {
        definitions.delegation_target(from, to).unwrap();
    }
}

#[test]
fn prompt_lists_only_usable_targets() {
    let workspace = workspace();
    workspace.write(".openharness/models/m.yaml", "m: {provider: openai, name: x}\n");
    let definitions = workspace.load();
    let prompt_segments = |definitions: &Definitions, name: &str| {
        let (agent, model) = (definitions.agent(name).unwrap(), definitions.model("m").unwrap());
        let today = "2026-01-02T03:04:05Z".parse().unwrap();
        let tools = &tools();
        let context = remuda_workspace::PromptContext { agent, model, tools, reads_skills: false, today };
        definitions.prompt_segments(&context)
    };
    let segments = prompt_segments(&definitions, "lead");
    let text = |wanted: Segment| {
        segments.iter().find(|(segment, _)| *segment == wanted).map(|(_, text)| text.as_str())
    };
    let switches = text(Segment::AgentSwitches).unwrap();
    assert!(
        switches.contains("AgentSwitch") && switches.ends_with("- other\n- quiet\n</agent_switches>"),
        "{switches}"
    );
    let subagents = text(Segment::Subagents).unwrap();
    assert!(subagents.ends_with("- helper: Helps\n- quiet\n- both\n</subagents>"), "{subagents}");
    assert_eq!(prompt_segments(&definitions, "helper").len(), 1, "an agent without targets gets no list");

    workspace.write(".openharness/settings.yaml", "kind: chat\n");
    assert_eq!(prompt_segments(&workspace.load(), "lead").len(), 1, "chat workspaces have no tools");
}
