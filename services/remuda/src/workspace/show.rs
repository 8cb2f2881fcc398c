//! `remuda workspace show`: shows the definitions of a workspace.

mod agent;

use std::{path::Path, process::ExitCode};

use remuda_config::Config;
use remuda_domain::{agent::AgentDefinition, error::Result};
use remuda_workspace::{Definitions, LoadedWorkspace, Severity, WorkspaceKind};
use serde_json::{Value, json};

pub(super) use self::agent::show_agent;

use super::{display_path, load, resolve::model_of};
use crate::{
    models,
    output::{Output, Style, Table, counted, one_line},
};

pub(super) async fn show(dir: &Path, config: &Config, output: Output) -> Result<ExitCode> {
    let (root, current) = load(dir, config).await?;
    if output.json {
        output.json_line(&to_json(&root, &current, config));
        return Ok(ExitCode::SUCCESS);
    }
    let definitions = &current.definitions;
    let sink = output.out;
    sink.line(&sink.paint(Style::Bold, &display_path(&root)));
    let field = |name: &str, value: &str| {
        sink.line(&format!("  {} {}", sink.paint(Style::Dim, &format!("{name:13}")), one_line(value)));
    };
    field("version", &current.content.hash.short());
    field("kind", kind(definitions));
    match definitions.default_agent() {
        Ok(agent) => field("default agent", &agent.name),
        Err(error) => field("default agent", &format!("none: {}", error.message())),
    }
    let instructions = definitions.instructions.as_ref().map(String::len);
    field("AGENTS.md", &instructions.map_or("none".to_owned(), |bytes| format!("{bytes} bytes")));
    agents(definitions, config, output);
    if !definitions.models.is_empty() {
        sink.line("");
        models::table(definitions, output);
    }
    other_tables(definitions, output);
    let (errors, warnings) = (count(definitions, Severity::Error), count(definitions, Severity::Warning));
    if errors + warnings > 0 {
        let problems = [counted(errors, "error"), counted(warnings, "warning")].join(" and ");
        output.note(&format!("{problems}: see `remuda workspace check`"));
    }
    Ok(ExitCode::SUCCESS)
}

fn kind(definitions: &Definitions) -> &'static str {
    match definitions.settings.kind {
        WorkspaceKind::Project => "project",
        WorkspaceKind::Chat => "chat (agents have no tools)",
    }
}

fn count(definitions: &Definitions, severity: Severity) -> usize {
    definitions.problems.iter().filter(|problem| problem.severity == severity).count()
}

fn agents(definitions: &Definitions, config: &Config, output: Output) {
    output.out.line("");
    let mut table = Table::new(output.out, &["AGENT", "MODE", "MODEL", "TOOLS", "DEFINED IN", "DESCRIPTION"]);
    for agent in definitions.agents.values().filter(|agent| !agent.hidden) {
        let (model, style) = match model_of(definitions, agent, config) {
            Ok(model) => (model.reference.to_string(), None),
            Err(_) => match &agent.model {
                Some(model) => (format!("{} (missing)", model.reference), Some(Style::Bad)),
                None => ("none".to_owned(), Some(Style::Warn)),
            },
        };
        table.row([
            (agent.name.clone(), Some(Style::Bold)),
            (agent.mode.as_str().to_owned(), None),
            (model, style),
            (tools(agent), None),
            (origin(agent), Some(Style::Dim)),
            (agent.description.clone(), None),
        ]);
    }
    table.print();
}

/// The file that defines an agent, or the source of a built-in one.
fn origin(agent: &AgentDefinition) -> String {
    agent.origin.file.clone().unwrap_or_else(|| agent.origin.source.as_str().to_owned())
}

/// The native tools of an agent.
fn tools(agent: &AgentDefinition) -> String {
    let without = &agent.disallowed.native;
    let mut text = match &agent.tools.native {
        None => "all".to_owned(),
        Some(names) if names.is_empty() => "none".to_owned(),
        Some(names) => names.join(" "),
    };
    if !without.is_empty() {
        text.push_str(&format!(" except {}", without.join(" ")));
    }
    text
}

/// Prints tables of skills, actions and tool servers, if there are any.
fn other_tables(definitions: &Definitions, output: Output) {
    let rows = |title: &str, rows: Vec<(&str, String)>| {
        if rows.is_empty() {
            return;
        }
        output.out.line("");
        let mut table = Table::new(output.out, &[title, "DESCRIPTION"]);
        for (name, description) in rows {
            table.row([(name.to_owned(), Some(Style::Bold)), (description, None)]);
        }
        table.print();
    };
    let skills = definitions.skills.values().map(|skill| (skill.name.as_str(), skill.description.clone()));
    rows("SKILL", skills.collect());
    let actions =
        definitions.actions.values().map(|action| (action.name.as_str(), action.description.clone()));
    rows("ACTION", actions.collect());
    let enabled = |enabled: bool| if enabled { String::new() } else { "not enabled".to_owned() };
    let servers =
        definitions.tool_servers.values().map(|server| (server.name.as_str(), enabled(server.enabled)));
    rows("TOOL SERVER", servers.collect());
}

fn to_json(root: &Path, current: &LoadedWorkspace, config: &Config) -> Value {
    let definitions = &current.definitions;
    let agent = |agent: &AgentDefinition| {
        json!({
            "name": agent.name,
            "mode": agent.mode,
            "description": agent.description,
            "model": model_of(definitions, agent, config).ok().map(|model| &model.reference),
            "tools": agent.tools,
            "disallowed": agent.disallowed,
            "hidden": agent.hidden,
            "origin": agent.origin,
        })
    };
    let skill = |skill: &remuda_workspace::Skill| json!({ "name": skill.name, "description": skill.description, "directory": skill.directory });
    json!({
        "root": root,
        "version": current.content.hash,
        "kind": definitions.settings.kind,
        "default_agent": definitions.default_agent().ok().map(|agent| &agent.name),
        "instructions_bytes": definitions.instructions.as_ref().map(String::len),
        "agents": definitions.agents.values().map(agent).collect::<Vec<_>>(),
        "models": definitions.models.values().map(models::to_json).collect::<Vec<_>>(),
        "skills": definitions.skills.values().map(skill).collect::<Vec<_>>(),
        "actions": definitions.actions.keys().collect::<Vec<_>>(),
        "tool_servers": definitions.tool_servers.keys().collect::<Vec<_>>(),
        "errors": count(definitions, Severity::Error),
        "warnings": count(definitions, Severity::Warning),
    })
}
