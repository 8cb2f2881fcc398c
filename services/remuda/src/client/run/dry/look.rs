//! Looks at everything that a run needs.

use std::path::{Path, PathBuf};

use remuda_config::Config;
use remuda_domain::{
    Code, Error,
    agent::AgentDefinition,
    budget::{Amount, Limit},
    error::Result,
    execution::{BackendKind, ExecutionChoice},
    model::{ModelDefinition, Usage},
    permission::SessionPermissions,
};
use remuda_models::ToolSpec;
use remuda_node::DEFAULT_TENANT;
use remuda_proto::{convert, v1::submit_run_request::Input};
use remuda_workspace::{Audience, Choice, Definitions, Severity, WorkspaceKind};

use super::{
    place::Place,
    report::{Answer, Budgeted, Chosen, Executes, ModelLook, Prompt, Report, Tools, Trouble},
};
use crate::{
    client::run::RunArgs,
    models,
    output::Output,
    workspace::{self, check, rules::Rules},
};

/// The tool that reads skills.
const SKILL: &str = "Skill";
/// What a model is expected to say at most when nobody limits it.
const EXPECTED_OUTPUT: u64 = 4096;
const CHARS_PER_TOKEN: usize = 4;

/// What the command line, and the session if it exists, ask for.
pub(super) struct Wanted {
    root: PathBuf,
    notes: Vec<String>,
    agent: Option<Chosen<String>>,
    model: Option<Chosen<String>>,
    execution: ExecutionChoice,
    permissions: SessionPermissions,
    budget: Option<Chosen<Limit>>,
    message_chars: usize,
    message_bytes: usize,
    test_model: bool,
}

impl Wanted {
    pub(super) fn of(args: RunArgs, input: &Input, place: Place) -> Result<Self> {
        let Place { root, session, mut notes } = place;
        let exists = session.is_some();
        let session = session.unwrap_or_default();
        let (said_agent, text, bytes) = match input {
            Input::Message(message) => {
                let images: usize = message.images.iter().map(|image| image.data.len()).sum();
                (message.agent.clone(), message.text.chars().count(), message.text.len() + images)
            }
            Input::Tools(_) => (String::new(), 0, 0),
        };
        if exists {
            notes.push("the session exists: what was said in it before is not counted here".to_owned());
        }
        let permissions = match args.permissions.into_request() {
            Some(said) => convert::session_permissions(said)?,
            None => convert::session_permissions(session.permissions.unwrap_or_default())?,
        };
        let said = args.budget.into_request().map(|limit| Chosen { what: limit, why: "of this run" });
        let has = session.budget.and_then(|budget| budget.limit);
        let has = has.map(|limit| Chosen { what: limit, why: "of the session" });
        let budget = match said.or(has) {
            Some(Chosen { what, why }) => Some(Chosen { what: convert::limit("budget", what)?, why }),
            None => None,
        };
        Ok(Self {
            root,
            notes,
            agent: named(said_agent, "--agent names it").or(named(session.agent, "it leads the session")),
            model: named(args.model.unwrap_or_default(), "--model names it")
                .or(named(session.model, "the session was made with it")),
            execution: convert::execution_choice(args.execution.into_request().or(session.execution))?,
            permissions,
            budget,
            message_chars: text,
            message_bytes: bytes,
            test_model: !args.no_model_test,
        })
    }
}

fn named(name: String, why: &'static str) -> Option<Chosen<String>> {
    (!name.is_empty()).then_some(Chosen { what: name, why })
}

fn blocking(what: impl Into<String>, mend: impl Into<String>) -> Trouble {
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
        question(definitions, wanted, config, output, &mut report).await?;
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
    let mut usable = |names: &[String], what: &str| {
        let mut found = Vec::new();
        for name in names {
            match definitions.agent(name) {
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
    let switches = usable(&agent.switch, "switch to");
    let delegates = usable(&agent.subagents, "delegate to");
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
    };
    if report.tools.offered.iter().any(|name| name == SKILL) {
        let skills = definitions.skills.keys().filter(|name| agent.has_skill(name));
        report.skills = skills.cloned().collect();
    }
    let bytes = given.iter().filter(|tool| !hides(tool)).map(spec_bytes).sum();
    report.prompt = Some(Prompt {
        segments: Vec::new(),
        system_bytes: 0,
        tools_bytes: bytes,
        message_bytes: wanted.message_bytes,
        tokens: 0,
    });
    report.rules = Some(rules);
    Ok(())
}

fn spec_bytes(tool: &ToolSpec) -> usize {
    serde_json::to_string(tool).unwrap_or_default().len()
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

/// The model, the prompt, and what asking it may cost.
async fn question(
    definitions: &Definitions,
    wanted: &Wanted,
    config: &Config,
    output: Output,
    report: &mut Report,
) -> Result<()> {
    let Some(Chosen { what: agent, .. }) = &report.agent else { return Ok(()) };
    let default = Some(config.platform.default_model.as_str()).filter(|model| !model.is_empty());
    let named = wanted.model.as_ref().map(|model| model.what.as_str());
    let Choice { model, parameters } = match definitions.choose_model(agent, named, default) {
        Ok(choice) => choice,
        Err(error) => {
            let mend = model_mend(&error);
            report.problems.push(blocking(format!("no model would be asked: {}", error.message()), mend));
            return Ok(());
        }
    };
    let why = match (&wanted.model, &agent.model, default) {
        (Some(model), ..) => model.why,
        (None, Some(_), _) => "the agent wants it",
        (None, None, Some(_)) => "it is platform.default_model",
        (None, None, None) => "there is no other",
    };
    let reads_skills = report.tools.offered.iter().any(|name| name == SKILL);
    let audience = Audience { agent, model, reads_skills, today: chrono::Utc::now() };
    let segments = definitions.prompt_segments(&audience);
    let system = definitions.system_prompt(&audience);
    let prompt = report.prompt.get_or_insert(Prompt {
        segments: Vec::new(),
        system_bytes: 0,
        tools_bytes: 0,
        message_bytes: wanted.message_bytes,
        tokens: 0,
    });
    prompt.segments = segments.iter().map(|(segment, text)| (segment.as_str(), text.len())).collect();
    prompt.system_bytes = system.len();
    let chars = system.chars().count() + prompt.tools_bytes + wanted.message_chars;
    prompt.tokens = u64::try_from(chars.div_ceil(CHARS_PER_TOKEN)).unwrap_or(u64::MAX);
    let tokens = prompt.tokens;
    let window = model.context_window.unwrap_or(config.context.window.into());
    if tokens >= window {
        let what = format!("the prompt has about {tokens} tokens, and the model's window only {window}");
        report
            .problems
            .push(blocking(what, "shorten AGENTS.md and the agent's prompt, or use another model"));
    }
    let max_tokens = parameters.or(model.parameters).max_tokens.map(u64::from);
    let usage = Usage {
        input_tokens: tokens,
        output_tokens: max_tokens.or(model.max_output_tokens).unwrap_or(EXPECTED_OUTPUT),
        ..Usage::default()
    };
    let amount = Amount {
        tokens: usage.input_tokens + usage.output_tokens,
        micros: model.price.map_or(0, |price| price.of(&usage)),
    };
    report.budget.first = Some((amount, model.price.is_some()));
    affordable(amount, model, report);
    let answer = if wanted.test_model { ask(model, config, output, report).await } else { Answer::NotAsked };
    report.model = Some(ModelLook { model: model.clone(), why, answer, window });
    Ok(())
}

fn model_mend(error: &Error) -> String {
    match error.code() {
        Code::MissingModel => {
            "describe one in .openharness/models/*.yaml (see `remuda models --help`), or name one with --model".to_owned()
        }
        _ => "`remuda models list` shows which there are".to_owned(),
    }
}

fn affordable(amount: Amount, model: &ModelDefinition, report: &mut Report) {
    let limit = report.budget.limit;
    if limit.micros.is_some() && model.price.is_none() {
        let what = format!("the budget is in money, and {} has no price", model.reference);
        let mend = "give the model a price (`price: {input: 3, output: 15}`, dollars for a million tokens), or limit tokens";
        report.problems.push(blocking(what, mend));
    } else if !limit.allows(amount) {
        let what = format!(
            "the first question may need {} tokens, more than the budget has: the run would wait for it at once",
            amount.tokens
        );
        report.problems.push(blocking(what, "raise the budget, or give the model a smaller max_tokens"));
    }
}

async fn ask(model: &ModelDefinition, config: &Config, output: Output, report: &mut Report) -> Answer {
    match models::answers(model, config, output).await {
        Ok(took) => Answer::Answered(took),
        Err(error) => {
            let mend = match error.code() {
                Code::ModelKeyRefused => {
                    "is the variable that holds its key set, on this machine and on the workers?".to_owned()
                }
                _ => format!(
                    "`remuda models test {} --dir {}` shows more",
                    model.reference,
                    report.root.display()
                ),
            };
            report.problems.push(blocking(format!("{} does not answer: {error}", model.reference), mend));
            Answer::Silent
        }
    }
}

fn budget(wanted: &Wanted, config: &Config) -> Budgeted {
    match &wanted.budget {
        Some(Chosen { what, why }) => Budgeted { limit: *what, of: why, first: None },
        None => Budgeted { limit: config.budget.limit(), of: "of every run that says nothing", first: None },
    }
}
