//! The system prompt.

use remuda_domain::{Timestamp, agent::AgentDefinition, model::ModelDefinition};

use crate::{
    definitions::Definitions,
    settings::{Segment, WorkspaceKind},
};

const SWITCH: &str =
    "Hand this session over with the tool AgentSwitch when one of these fits the work better.";
const DELEGATE: &str =
    "Delegate tasks that can be described on their own to one of these with the tool SubAgent.";

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
            Segment::Memory => {
                let reads = audience.agent.has_tool("Read") && self.settings.kind == WorkspaceKind::Project;
                self.memory.as_ref()?.told(reads)
            }
            Segment::AgentSwitches => self.agent_list(&self.switch_targets(audience.agent), segment, SWITCH),
            Segment::Subagents => self.agent_list(&self.delegates(audience.agent), segment, DELEGATE),
            Segment::Skills if audience.reads_skills => Some(self.skill_list(audience.agent)),
            Segment::Environment if settings.include_environment => Some(environment(audience.today)),
            // Nothing can be said of what no tool does.
            Segment::Skills | Segment::Environment | Segment::Actions => None,
        }
    }

    /// Agents with what they are for. There are no tools in a workspace where agents only talk.
    fn agent_list(&self, agents: &[&AgentDefinition], segment: Segment, how: &str) -> Option<String> {
        if agents.is_empty() || self.settings.kind == WorkspaceKind::Chat {
            return None;
        }
        let line = |agent: &&AgentDefinition| match agent.description.as_str() {
            "" => format!("- {}", agent.name),
            description => format!("- {}: {description}", agent.name),
        };
        let lines: Vec<String> = agents.iter().map(line).collect();
        let tag = segment.as_str();
        Some(format!("<{tag}>\n{how}\n{}\n</{tag}>", lines.join("\n")))
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
