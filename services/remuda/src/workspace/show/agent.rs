//! `remuda workspace show --agent`: shows all properties of an agent.

use std::{path::Path, process::ExitCode};

use remuda_config::Config;
use remuda_domain::{
    agent::AgentDefinition, error::Result, model::ModelDefinition, permission::SessionPermissions,
};
use remuda_workspace::{Definitions, PromptContext};
use serde_json::json;

use super::{load, model_of, origin, tools};
use crate::output::{Output, Style, elapsed, one_line, sanitize};
use crate::workspace::rules::Rules;

pub(crate) async fn show_agent(dir: &Path, name: &str, config: &Config, output: Output) -> Result<ExitCode> {
    let (_, current) = load(dir, config).await?;
    let definitions = &current.definitions;
    let agent = definitions.agent(name)?;
    let model = model_of(definitions, agent, config);
    let segments = segments(definitions, agent, model.as_ref().ok().copied());
    let bytes: usize = segments.iter().map(|(_, bytes)| bytes).sum();
    let rules = Rules::of(definitions, agent, &SessionPermissions::default(), config)?;
    if output.json {
        let mut document = json!(agent);
        document["permissions"] = rules.to_json();
        document["resolved_model"] = json!(model.ok().map(|model| &model.reference));
        document["system_prompt_bytes"] = bytes.into();
        document["version"] = json!(current.content.hash);
        output.json_line(&document);
        return Ok(ExitCode::SUCCESS);
    }
    let sink = output.out;
    let mode = agent.mode.as_str();
    sink.line(&format!("{}  {mode}", sink.paint(Style::Bold, &one_line(&agent.name))));
    let field = |name: &str, value: String| {
        if !value.is_empty() {
            sink.line(&format!("  {} {}", sink.paint(Style::Dim, &format!("{name:13}")), one_line(&value)));
        }
    };
    field("description", agent.description.clone());
    field("defined in", origin(agent));
    match &model {
        Ok(model) => {
            field("model", format!("{} ({}, {})", model.reference, model.provider.as_str(), model.name))
        }
        Err(error) => field("model", format!("none: {}", error.message())),
    }
    let parameters = agent.model.as_ref().map(|model| model.parameters).unwrap_or(agent.parameters);
    let number = |name: &str, value: Option<String>| field(name, value.unwrap_or_default());
    number("temperature", parameters.temperature.map(|value| value.to_string()));
    number("top_p", parameters.top_p.map(|value| value.to_string()));
    number("max_tokens", parameters.max_tokens.map(|value| value.to_string()));
    field("tools", tools(agent));
    field("skills", agent.tools.skills.as_ref().map_or("all".to_owned(), |names| names.join(" ")));
    field("switches to", agent.switch.join(" "));
    field("delegates to", agent.subagents.join(" "));
    let policy = &agent.policy;
    field("max steps", policy.max_steps.to_string());
    number("run time", policy.run_timeout.map(elapsed));
    number("tool time", policy.tool_timeout.map(elapsed));
    field(
        "parallel",
        if policy.parallel_tool_calls { "tool calls of one response run in parallel" } else { "no" }
            .to_owned(),
    );
    field("mode", format!("{}, set by {}", rules.mode.as_str(), rules.mode_of));
    let mut layer = "";
    for (source, text) in rules.to_text() {
        // Name each layer only once.
        let name = if source == layer { String::new() } else { format!("{source}:") };
        layer = source;
        field("rules", format!("{name:10} {text}"));
    }
    for contradiction in rules.contradictions() {
        field("warning", contradiction);
    }
    field("reminder", agent.system_reminder.clone().unwrap_or_default());
    let parts: Vec<String> = segments.iter().map(|(name, bytes)| format!("{name} {bytes}")).collect();
    field("system prompt", format!("{bytes} bytes ({})", parts.join(", ")));
    sink.line("");
    sink.text(&sanitize(&agent.prompt));
    Ok(ExitCode::SUCCESS)
}

/// The segments of the system prompt with their sizes in bytes.
fn segments(
    definitions: &Definitions,
    agent: &AgentDefinition,
    model: Option<&ModelDefinition>,
) -> Vec<(&'static str, usize)> {
    let Some(model) = model else { return Vec::new() };
    let audience = PromptContext {
        agent,
        model,
        tools: remuda_node::tool_catalog(),
        reads_skills: !definitions.skills.is_empty(),
        today: chrono::Utc::now(),
    };
    let segments = definitions.prompt_segments(&audience);
    segments.iter().map(|(segment, text)| (segment.as_str(), text.len())).collect()
}
