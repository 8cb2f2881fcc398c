//! Inspects everything that a run needs: workspace, agent, tools, rules, model and budget.

use std::path::{Path, PathBuf};

use remuda_config::Config;
use remuda_domain::{
    agent::AgentDefinition,
    budget::{Budget, Limit},
    error::Result,
    execution::{BackendKind, ExecutionChoice},
    message::Part,
    permission::SessionPermissions,
    tool::{ToolOffer, ToolRole},
};
use remuda_models::ToolSpec;
use remuda_node::DEFAULT_TENANT;
use remuda_proto::{convert, v1::submit_run_request::Input};
use remuda_workspace::{Definitions, Severity, WorkspaceKind};

use super::{
    model_call_preview,
    report::{BudgetReport, Chosen, Execution, Problem, Report, Tools},
    target::RunTarget,
};
use crate::{
    client::run::RunArgs,
    output::Output,
    workspace::{self, check, rules::Rules},
};

/// What the command line requests, completed by the settings of the session if it exists.
pub(super) struct DryRunRequest {
    root: PathBuf,
    notes: Vec<String>,
    agent: Option<Chosen<String>>,
    pub(super) model: Option<Chosen<String>>,
    execution: ExecutionChoice,
    permissions: SessionPermissions,
    /// Budget of the run alone.
    limit: Option<Limit>,
    /// Budget of the session, which applies too.
    session_budget: Option<Budget>,
    pub(super) message: Vec<Part>,
    pub(super) message_bytes: usize,
    pub(super) test_model: bool,
}

impl DryRunRequest {
    pub(super) fn new(args: RunArgs, input: &Input, target: RunTarget) -> Result<Self> {
        let RunTarget { root, session, mut notes } = target;
        let exists = session.is_some();
        let session = session.unwrap_or_default();
        let (named_agent, message, message_bytes) = match input {
            Input::Message(message) => {
                let bytes = convert::message_bytes(message);
                (message.agent.clone(), convert::message_input(message.clone())?.parts, bytes)
            }
            Input::Tools(_) => (String::new(), Vec::new(), 0),
        };
        if exists {
            notes.push("the session exists: its earlier messages are not counted here".to_owned());
        }
        let permissions = match args.permissions.into_request() {
            Some(permissions) => convert::session_permissions(permissions)?,
            None => convert::session_permissions(session.permissions.unwrap_or_default())?,
        };
        let limit = args.budget.into_request().map(|limit| convert::limit("budget", limit)).transpose()?;
        let session_budget = session.budget.map(Budget::from);
        Ok(Self {
            root,
            notes,
            agent: named(named_agent, "set by --agent").or(named(session.agent, "leads the session")),
            model: named(args.model.unwrap_or_default(), "set by --model")
                .or(named(session.model, "set for the session")),
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

fn named(name: String, reason: &'static str) -> Option<Chosen<String>> {
    (!name.is_empty()).then_some(Chosen { value: name, reason })
}

pub(super) fn blocking(message: impl Into<String>, fix: impl Into<String>) -> Problem {
    Problem { blocks: true, message: message.into(), fix: fix.into() }
}

pub(super) async fn inspect(request: &DryRunRequest, config: &Config, output: Output) -> Result<Report> {
    let (root, current) = workspace::load(&request.root, config).await?;
    let definitions = &current.definitions;
    let mut report = Report {
        version: current.content.hash.short(),
        notes: request.notes.clone(),
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
        budget: budget(request, config),
        problems: Vec::new(),
        root,
    };
    execution(definitions, request, config, &mut report);
    match agent(definitions, request) {
        Ok((agent, reason)) => {
            links_to_agents(definitions, agent, &mut report);
            rules_and_tools(definitions, agent, request, config, &mut report)?;
            report.agent = Some(Chosen { value: agent.clone(), reason });
        }
        Err(error) => {
            let fix = format!("`remuda workspace show {}` lists the agents", report.root.display());
            report.problems.push(blocking(format!("no agent would answer: {}", error.message()), fix));
        }
    }
    problems(definitions, config, &mut report).await;
    if report.agent.is_some() {
        model_call_preview::inspect_model_call(definitions, request, config, output, &mut report).await;
    }
    // Blocking problems come first.
    report.problems.sort_by_key(|problem| !problem.blocks);
    Ok(report)
}

fn agent<'a>(
    definitions: &'a Definitions,
    request: &DryRunRequest,
) -> Result<(&'a AgentDefinition, &'static str)> {
    match &request.agent {
        Some(Chosen { value, reason }) => Ok((definitions.leading_agent(value)?, *reason)),
        None => Ok((definitions.default_agent()?, "the default agent of the workspace")),
    }
}

fn execution(definitions: &Definitions, request: &DryRunRequest, config: &Config, report: &mut Report) {
    if definitions.settings.kind == WorkspaceKind::Chat {
        report.execution = Some(Execution::Disabled("the workspace has kind: chat"));
        return;
    }
    let requested = &request.execution;
    let choice = if requested.is_default() { &definitions.settings.execution } else { requested };
    let decided =
        remuda_node::policies(config).and_then(|policies| policies.of(DEFAULT_TENANT).decide(choice));
    match decided {
        Ok(policy) if policy.backend == BackendKind::None => {
            report.execution = Some(Execution::Disabled("the session has backend none"));
        }
        Ok(policy) => report.execution = Some(Execution::Backend(Box::new(policy))),
        Err(error) => {
            let fix =
                "choose another --backend or --image, or ask the operator to allow it (sandbox.policy_file)";
            report.problems.push(blocking(format!("tools cannot execute: {error}"), fix));
        }
    }
}

fn links_to_agents(definitions: &Definitions, agent: &AgentDefinition, report: &mut Report) {
    type FindAgent<'a> = dyn Fn(&str) -> Result<&'a AgentDefinition> + 'a;
    let mut targets = |names: &[String], action: &str, find: &FindAgent<'_>| {
        let mut found = Vec::new();
        for name in names {
            match find(name) {
                Ok(target) => found.push(target.name.clone()),
                Err(error) => report.problems.push(Problem {
                    blocks: false,
                    message: format!("{} cannot {action} {name}: {}", agent.name, error.message()),
                    fix: format!("define the agent {name}, or remove it from {}", origin(agent)),
                }),
            }
        }
        found
    };
    let switches = targets(&agent.switch, "switch to", &|name| definitions.switch_target(agent, name));
    let delegates =
        targets(&agent.subagents, "delegate to", &|name| definitions.delegation_target(agent, name));
    (report.switches, report.delegates) = (switches, delegates);
}

fn origin(agent: &AgentDefinition) -> &str {
    agent.origin.file.as_deref().unwrap_or(&agent.name)
}

fn rules_and_tools(
    definitions: &Definitions,
    agent: &AgentDefinition,
    request: &DryRunRequest,
    config: &Config,
    report: &mut Report,
) -> Result<()> {
    let rules = Rules::of(definitions, agent, &request.permissions, config)?;
    for contradiction in rules.contradictions() {
        let fix = "remove the rule, or move it after the other one".to_owned();
        report.problems.push(Problem { blocks: false, message: contradiction, fix });
    }
    let all = remuda_node::tools(config)?;
    let may_execute = !matches!(report.execution, Some(Execution::Disabled(_)));
    let agent_tools = remuda_engine::tools_of_agent(&all, agent, definitions, may_execute)?;
    let hides = |tool: &ToolSpec| rules.rules.hides(&remuda_node::tool_catalog().describe(&tool.name));
    let names = |hidden: bool| {
        agent_tools.iter().filter(move |tool| hides(tool) == hidden).map(|tool| tool.name.clone())
    };
    report.tools = Tools {
        offered: names(false).collect(),
        hidden: names(true).collect(),
        disallowed: all
            .iter()
            .filter(|tool| tool.descriptor().offer == ToolOffer::Listed && may_execute)
            .map(|tool| tool.name().to_owned())
            .filter(|name| !agent.has_tool(name))
            .collect(),
        specs: Vec::new(),
    };
    if report.tools.has(ToolRole::ReadSkills) {
        let skills = definitions.skills.keys().filter(|name| agent.has_skill(name));
        report.skills = skills.cloned().collect();
    }
    report.tools.specs = agent_tools.iter().filter(|tool| !hides(tool)).cloned().collect();
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
        Ok(bytes) => format!("{} ({bytes} bytes) and the files in {}", memory.file, memory.directory),
        Err(_) => format!("the files in {}; {} does not exist yet", memory.directory, memory.file),
    })
}

/// Problems of the definitions. They do not block this run, since they may concern other agents.
async fn problems(definitions: &Definitions, config: &Config, report: &mut Report) {
    for problem in check::problems(definitions, &report.root, config).await {
        let severity = match problem.severity {
            Severity::Error => "this definition is ignored",
            Severity::Warning => "probably a mistake",
        };
        report.problems.push(Problem {
            blocks: false,
            message: format!("{}: {}", check::location(&problem), problem.message),
            fix: format!("{severity}: edit {}", problem.file),
        });
    }
}

fn budget(request: &DryRunRequest, config: &Config) -> BudgetReport {
    let (limit, source) = match request.limit {
        Some(limit) => (limit, "set for this run"),
        None => (config.budget.limit(), "the default for runs without a budget"),
    };
    BudgetReport { limit, source, session: request.session_budget, first_call: None }
}
