//! Looks at everything that a run needs.

use std::path::{Path, PathBuf};

use remuda_config::Config;
use remuda_domain::{
    agent::AgentDefinition,
    budget::{Budget, Limit},
    error::Result,
    execution::{BackendKind, ExecutionChoice},
    message::Part,
    permission::SessionPermissions,
};
use remuda_models::ToolSpec;
use remuda_node::DEFAULT_TENANT;
use remuda_proto::{convert, v1::submit_run_request::Input};
use remuda_workspace::{Definitions, Severity, WorkspaceKind};

use super::{
    place::Place,
    question,
    report::{Budgeted, Chosen, Executes, Report, Tools, Trouble},
};
use crate::{
    client::run::RunArgs,
    output::Output,
    workspace::{self, check, rules::Rules},
};

/// The tool that reads skills.
pub(super) const SKILL: &str = "Skill";

/// What the command line, and the session if it exists, ask for.
pub(super) struct Wanted {
    root: PathBuf,
    notes: Vec<String>,
    agent: Option<Chosen<String>>,
    pub(super) model: Option<Chosen<String>>,
    execution: ExecutionChoice,
    permissions: SessionPermissions,
    /// Of the run alone.
    limit: Option<Limit>,
    /// Of the session, which the run would spend from as well.
    session_budget: Option<Budget>,
    pub(super) message: Vec<Part>,
    pub(super) message_bytes: usize,
    pub(super) test_model: bool,
}

impl Wanted {
    pub(super) fn of(args: RunArgs, input: &Input, place: Place) -> Result<Self> {
        let Place { root, session, mut notes } = place;
        let exists = session.is_some();
        let session = session.unwrap_or_default();
        let (said_agent, message, message_bytes) = match input {
            Input::Message(message) => {
                let bytes = convert::message_bytes(message);
                (message.agent.clone(), convert::message_input(message.clone())?.parts, bytes)
            }
            Input::Tools(_) => (String::new(), Vec::new(), 0),
        };
        if exists {
            notes.push("the session exists: what was said in it before is not counted here".to_owned());
        }
        let permissions = match args.permissions.into_request() {
            Some(said) => convert::session_permissions(said)?,
            None => convert::session_permissions(session.permissions.unwrap_or_default())?,
        };
        let limit = args.budget.into_request().map(|limit| convert::limit("budget", limit)).transpose()?;
        let session_budget = session.budget.map(Budget::from);
        Ok(Self {
            root,
            notes,
            agent: named(said_agent, "--agent names it").or(named(session.agent, "it leads the session")),
            model: named(args.model.unwrap_or_default(), "--model names it")
                .or(named(session.model, "the session was made with it")),
            execution: convert::execution_choice(args.execution.into_request().or(session.execution))?,
            permissions,
            limit,
            session_budget,
            message,
            message_bytes,
            test_model: !args.no_model_test,
        })
    }
}

fn named(name: String, why: &'static str) -> Option<Chosen<String>> {
    (!name.is_empty()).then_some(Chosen { what: name, why })
}

pub(super) fn blocking(what: impl Into<String>, mend: impl Into<String>) -> Trouble {
    Trouble { blocks: true, what: what.into(), mend: mend.into() }
}

pub(super) async fn look(wanted: &Wanted, config: &Config, output: Output) -> Result<Report> {
    let (root, current) = workspace::load(&wanted.root, config).await?;
    let definitions = &current.definitions;
    let mut report = Report {
        version: current.content.hash.short(),
        notes: wanted.notes.clone(),
        agent: None,
        model: None,
        execution: None,
        tools: Tools::default(),
        rules: None,
        switches: Vec::new(),
        delegates: Vec::new(),
        skills: Vec::new(),
        memory: memory(definitions, &root),
        prompt: None,
        budget: budget(wanted, config),
        problems: Vec::new(),
        root,
    };
    execution(definitions, wanted, config, &mut report);
    match agent(definitions, wanted) {
        Ok((agent, why)) => {
            links(definitions, agent, &mut report);
            rules_and_tools(definitions, agent, wanted, config, &mut report)?;
            report.agent = Some(Chosen { what: agent.clone(), why });
        }
        Err(error) => {
            let mend =
                format!("`remuda workspace show {}` shows which agents there are", report.root.display());
            report.problems.push(blocking(format!("no agent would answer: {}", error.message()), mend));
        }
    }
    problems(definitions, config, &mut report).await;
    if report.agent.is_some() {
        question::ask(definitions, wanted, config, output, &mut report).await;
    }
    // What keeps the run from working comes first.
    report.problems.sort_by_key(|problem| !problem.blocks);
    Ok(report)
}

fn agent<'a>(definitions: &'a Definitions, wanted: &Wanted) -> Result<(&'a AgentDefinition, &'static str)> {
    match &wanted.agent {
        Some(Chosen { what, why }) => Ok((definitions.leading_agent(what)?, *why)),
        None => Ok((definitions.default_agent()?, "it is the default agent here")),
    }
}

fn execution(definitions: &Definitions, wanted: &Wanted, config: &Config, report: &mut Report) {
    if definitions.settings.kind == WorkspaceKind::Chat {
        report.execution = Some(Executes::Nowhere("this is a workspace for talking (kind: chat)"));
        return;
    }
    let said = &wanted.execution;
    let choice = if said.is_default() { &definitions.settings.execution } else { said };
    let decided =
        remuda_node::policies(config).and_then(|policies| policies.of(DEFAULT_TENANT).decide(choice));
    match decided {
        Ok(policy) if policy.backend == BackendKind::None => {
            report.execution = Some(Executes::Nowhere("the session only talks (backend none)"));
        }
        Ok(policy) => report.execution = Some(Executes::Here(Box::new(policy))),
        Err(error) => {
            let mend =
                "choose another --backend or --image, or have the operator allow it (sandbox.policy_file)";
            report.problems.push(blocking(format!("tools have nowhere to execute: {error}"), mend));
        }
    }
}

fn links(definitions: &Definitions, agent: &AgentDefinition, report: &mut Report) {
    type Find<'a> = dyn Fn(&str) -> Result<&'a AgentDefinition> + 'a;
    let mut usable = |names: &[String], what: &str, find: &Find<'_>| {
        let mut found = Vec::new();
        for name in names {
            match find(name) {
                Ok(target) => found.push(target.name.clone()),
                Err(error) => report.problems.push(Trouble {
                    blocks: false,
                    what: format!("{} cannot {what} {name}: {}", agent.name, error.message()),
                    mend: format!("define the agent {name}, or take it out of {}", origin(agent)),
                }),
            }
        }
        found
    };
    let switches = usable(&agent.switch, "switch to", &|name| definitions.switch_target(agent, name));
    let delegates = usable(&agent.subagents, "delegate to", &|name| definitions.delegate(agent, name));
    (report.switches, report.delegates) = (switches, delegates);
}

fn origin(agent: &AgentDefinition) -> &str {
    agent.origin.file.as_deref().unwrap_or(&agent.name)
}

fn rules_and_tools(
    definitions: &Definitions,
    agent: &AgentDefinition,
    wanted: &Wanted,
    config: &Config,
    report: &mut Report,
) -> Result<()> {
    let rules = Rules::of(definitions, agent, &wanted.permissions, config)?;
    for contradiction in rules.contradictions() {
        let mend = "take the rule out, or move it behind the other one".to_owned();
        report.problems.push(Trouble { blocks: false, what: contradiction, mend });
    }
    let all = remuda_node::tools(config)?;
    let may_execute = !matches!(report.execution, Some(Executes::Nowhere(_)));
    let given = remuda_engine::tools_of_agent(&all, agent, definitions, may_execute)?;
    let hides = |tool: &ToolSpec| rules.rules.hides(&tool.name);
    let names =
        |hidden: bool| given.iter().filter(move |tool| hides(tool) == hidden).map(|tool| tool.name.clone());
    report.tools = Tools {
        offered: names(false).collect(),
        hidden: names(true).collect(),
        disallowed: all
            .names()
            .filter(|name| *name != "noop" && may_execute && !agent.has_tool(name))
            .map(str::to_owned)
            .collect(),
        specs: Vec::new(),
    };
    if report.tools.offered.iter().any(|name| name == SKILL) {
        let skills = definitions.skills.keys().filter(|name| agent.has_skill(name));
        report.skills = skills.cloned().collect();
    }
    report.tools.specs = given.iter().filter(|tool| !hides(tool)).cloned().collect();
    report.rules = Some(rules);
    Ok(())
}

fn memory(definitions: &Definitions, root: &Path) -> Option<String> {
    let memory = &definitions.settings.memory;
    if !memory.enabled {
        return None;
    }
    let size = std::fs::symlink_metadata(root.join(&memory.file)).map(|found| found.len());
    Some(match size {
        Ok(bytes) => format!("{} ({bytes} bytes) and the files of {}", memory.file, memory.directory),
        Err(_) => format!("the files of {}; there is no {} yet", memory.directory, memory.file),
    })
}

/// What is wrong with the definitions. What concerns other agents does not keep this run from working.
async fn problems(definitions: &Definitions, config: &Config, report: &mut Report) {
    for problem in check::problems(definitions, &report.root, config).await {
        let severity = match problem.severity {
            Severity::Error => "this definition is not used",
            Severity::Warning => "probably a mistake",
        };
        report.problems.push(Trouble {
            blocks: false,
            what: format!("{}: {}", check::place(&problem), problem.message),
            mend: format!("{severity}: edit {}", problem.file),
        });
    }
}

fn budget(wanted: &Wanted, config: &Config) -> Budgeted {
    let (limit, of) = match wanted.limit {
        Some(limit) => (limit, "of this run"),
        None => (config.budget.limit(), "of every run that says nothing"),
    };
    Budgeted { limit, of, session: wanted.session_budget, first: None }
}
