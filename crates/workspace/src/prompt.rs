//! Composes the system prompt.

use remuda_domain::{
    Timestamp,
    agent::AgentDefinition,
    model::ModelDefinition,
    tool::{ToolCatalog, ToolRole},
};

use crate::{
    definitions::Definitions,
    settings::{Segment, WorkspaceKind},
};

/// The agent, model and date that a prompt is composed for.
#[derive(Clone, Copy, Debug)]
pub struct PromptContext<'a> {
    pub agent: &'a AgentDefinition,
    pub model: &'a ModelDefinition,
    pub tools: &'a ToolCatalog,
    /// Whether the agent has the tool that reads skills.
    pub reads_skills: bool,
    pub today: Timestamp,
}

impl Definitions {
    /// The system prompt, in the order that the workspace sets. It depends only on the definitions, the context and the day:
    /// so it is stored once, and providers can cache it.
    #[must_use]
    pub fn system_prompt(&self, context: &PromptContext<'_>) -> String {
        let segments = self.prompt_segments(context);
        segments.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>().join("\n\n")
    }

    /// The nonempty segments of the system prompt.
    #[must_use]
    pub fn prompt_segments(&self, context: &PromptContext<'_>) -> Vec<(Segment, String)> {
        let order = self.settings.prompt.order.iter().copied();
        let segments = order.filter_map(|segment| {
            let text = self.segment(segment, context)?.trim().to_owned();
            (!text.is_empty()).then_some((segment, text))
        });
        segments.collect()
    }

    fn segment(&self, segment: Segment, context: &PromptContext<'_>) -> Option<String> {
        let settings = &self.settings.prompt;
        let tool = |role| context.tools.with_role(role).map(|tool| &*tool.name);
        match segment {
            Segment::Base => settings.base.clone(),
            Segment::LlmOptimized => {
                let by_model = settings.by_model.get(&context.model.reference.to_string());
                by_model.or_else(|| settings.by_provider.get(context.model.provider.as_str())).cloned()
            }
            Segment::Agent => Some(context.agent.prompt.clone()),
            Segment::ProjectAgentsMd => self.instructions.as_deref().map(project_instructions),
            Segment::Memory => {
                let reader = tool(ToolRole::ReadFiles).filter(|reader| {
                    context.agent.has_tool(reader) && self.settings.kind == WorkspaceKind::Project
                });
                self.memory.as_ref()?.prompt_segment(reader)
            }
            Segment::AgentSwitches => {
                let tool = tool(ToolRole::SwitchAgents)?;
                let how = format!(
                    "Hand this session over with the tool {tool} when one of these fits the work better."
                );
                self.agent_list(&self.switch_targets(context.agent), segment, &how)
            }
            Segment::Subagents => {
                let tool = tool(ToolRole::Delegate)?;
                let how = format!(
                    "Delegate tasks that can be described on their own to one of these with the tool {tool}."
                );
                self.agent_list(&self.delegation_targets(context.agent), segment, &how)
            }
            Segment::Skills if context.reads_skills => {
                Some(self.skill_list(context.agent, tool(ToolRole::ReadSkills)?))
            }
            Segment::Environment if settings.include_environment => Some(environment(context.today)),
            // Not included without a tool that uses them.
            Segment::Skills | Segment::Environment | Segment::Actions => None,
        }
    }

    /// A list of agents with their descriptions. Chat workspaces have no tools, so they get none.
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

    fn skill_list(&self, agent: &AgentDefinition, tool: &str) -> String {
        let given = self.skills.values().filter(|skill| agent.has_skill(&skill.name));
        let lines: Vec<String> =
            given.map(|skill| format!("- {}: {}", skill.name, skill.description)).collect();
        format!(
            "<skills>\nRead these with the tool {tool} when a task calls for them.\n{}\n</skills>",
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
