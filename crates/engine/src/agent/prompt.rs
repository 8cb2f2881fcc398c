//! The system prompt.

use remuda_domain::{Timestamp, agent::AgentDefinition, model::ModelDefinition};
use remuda_tools::Registry;
use remuda_workspace::{Definitions, Segment};

/// Puts the prompt together in the order that the workspace wants. The same definitions and the same day give the same text, so
/// that it is stored once and cached by providers.
pub(super) fn system_prompt(
    definitions: &Definitions,
    agent: &AgentDefinition,
    model: &ModelDefinition,
    tools: &Registry,
    today: Timestamp,
) -> String {
    let settings = &definitions.settings.prompt;
    let segment = |segment: &Segment| match segment {
        Segment::Base => settings.base.clone(),
        Segment::LlmOptimized => {
            let by_model = settings.by_model.get(&model.reference.to_string());
            by_model.or_else(|| settings.by_provider.get(model.provider.as_str())).cloned()
        }
        Segment::Agent => Some(agent.prompt.clone()),
        Segment::ProjectAgentsMd => definitions.instructions.as_deref().map(project_instructions),
        Segment::Skills => skills(definitions, agent, tools),
        Segment::Environment if settings.include_environment => Some(environment(today)),
        // Nothing can be said of what no tool does.
        Segment::Environment | Segment::Actions | Segment::AgentSwitches | Segment::Subagents => None,
    };
    let segments = settings.order.iter().filter_map(segment);
    let segments: Vec<String> =
        segments.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()).collect();
    segments.join("\n\n")
}

fn project_instructions(text: &str) -> String {
    format!("<project_instructions file=\"AGENTS.md\">\n{}\n</project_instructions>", text.trim())
}

fn skills(definitions: &Definitions, agent: &AgentDefinition, tools: &Registry) -> Option<String> {
    tools.get("Skill")?;
    let shown = |name: &str| {
        let selected = agent.tools.skills.as_ref().is_none_or(|names| names.iter().any(|it| it == name));
        selected && !super::toolset::excluded(&agent.disallowed.skills, name)
    };
    let lines: Vec<String> = definitions
        .skills
        .values()
        .filter(|skill| shown(&skill.name))
        .map(|skill| format!("- {}: {}", skill.name, skill.description))
        .collect();
    Some(format!(
        "<skills>\nRead these with the tool Skill when a task calls for them.\n{}\n</skills>",
        lines.join("\n")
    ))
}

fn environment(today: Timestamp) -> String {
    format!(
        "<environment>\ndate: {}\nplatform: {}\nworking_directory: the workspace; relative paths start there\n</environment>",
        today.format("%Y-%m-%d"),
        std::env::consts::OS
    )
}
