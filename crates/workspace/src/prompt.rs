//! The system prompt.

use remuda_domain::{Timestamp, agent::AgentDefinition, model::ModelDefinition};

use crate::{definitions::Definitions, settings::Segment};

/// For whom and when a prompt is made.
#[derive(Clone, Copy, Debug)]
pub struct Audience<'a> {
    pub agent: &'a AgentDefinition,
    pub model: &'a ModelDefinition,
    /// Whether the agent has the tool that reads skills.
    pub reads_skills: bool,
    pub today: Timestamp,
}

impl Definitions {
    /// The prompt in the order that the workspace wants. The same definitions and the same day give the same text, so that it is
    /// stored once and cached by providers.
    #[must_use]
    pub fn system_prompt(&self, audience: &Audience<'_>) -> String {
        let segments = self.prompt_segments(audience);
        segments.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>().join("\n\n")
    }

    /// Its parts, without those that are empty.
    #[must_use]
    pub fn prompt_segments(&self, audience: &Audience<'_>) -> Vec<(Segment, String)> {
        let order = self.settings.prompt.order.iter().copied();
        let segments = order.filter_map(|segment| {
            let text = self.segment(segment, audience)?.trim().to_owned();
            (!text.is_empty()).then_some((segment, text))
        });
        segments.collect()
    }

    fn segment(&self, segment: Segment, audience: &Audience<'_>) -> Option<String> {
        let settings = &self.settings.prompt;
        match segment {
            Segment::Base => settings.base.clone(),
            Segment::LlmOptimized => {
                let by_model = settings.by_model.get(&audience.model.reference.to_string());
                by_model.or_else(|| settings.by_provider.get(audience.model.provider.as_str())).cloned()
            }
            Segment::Agent => Some(audience.agent.prompt.clone()),
            Segment::ProjectAgentsMd => self.instructions.as_deref().map(project_instructions),
            Segment::Skills if audience.reads_skills => Some(self.skill_list(audience.agent)),
            Segment::Environment if settings.include_environment => Some(environment(audience.today)),
            // Nothing can be said of what no tool does.
            Segment::Skills
            | Segment::Environment
            | Segment::Actions
            | Segment::AgentSwitches
            | Segment::Subagents => None,
        }
    }

    fn skill_list(&self, agent: &AgentDefinition) -> String {
        let given = self.skills.values().filter(|skill| agent.has_skill(&skill.name));
        let lines: Vec<String> =
            given.map(|skill| format!("- {}: {}", skill.name, skill.description)).collect();
        format!(
            "<skills>\nRead these with the tool Skill when a task calls for them.\n{}\n</skills>",
            lines.join("\n")
        )
    }
}

fn project_instructions(text: &str) -> String {
    format!("<project_instructions file=\"AGENTS.md\">\n{}\n</project_instructions>", text.trim())
}

fn environment(today: Timestamp) -> String {
    format!(
        "<environment>\ndate: {}\nplatform: {}\nworking_directory: the workspace; relative paths start there\n</environment>",
        today.format("%Y-%m-%d"),
        std::env::consts::OS
    )
}
