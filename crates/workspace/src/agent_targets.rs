//! The agents that an agent may switch its session to or delegate to.

use remuda_domain::{
    Code, Error,
    agent::{AgentDefinition, AgentMode},
    error::Result,
};

use crate::definitions::{Absence, Definitions};

/// Limit of names in a message.
const MAX_SHOWN: usize = 20;

impl Definitions {
    /// The agent `name`, if `from` may switch its session to it. Errors are written for the model that made the call.
    pub fn switch_target(&self, from: &AgentDefinition, name: &str) -> Result<&AgentDefinition> {
        let target = self.target(from, name, &from.switch, "switch")?;
        if target.mode.may_lead() {
            return Ok(target);
        }
        Err(refused(format!("the agent {name} only works for other agents (mode: subagent): delegate to it")))
    }

    /// The agent `name`, if `from` may delegate a task to it.
    pub fn delegation_target(&self, from: &AgentDefinition, name: &str) -> Result<&AgentDefinition> {
        let target = self.target(from, name, &from.subagents, "delegate")?;
        if target.mode != AgentMode::Primary {
            return Ok(target);
        }
        Err(refused(format!("the agent {name} only leads sessions (mode: primary)")))
    }

    /// The usable agents that `from` may switch to, in the order it lists them.
    #[must_use]
    pub fn switch_targets(&self, from: &AgentDefinition) -> Vec<&AgentDefinition> {
        let usable = |name: &String| self.switch_target(from, name).ok();
        from.switch.iter().filter_map(usable).collect()
    }

    /// The usable agents that `from` may delegate to, in the order it lists them.
    #[must_use]
    pub fn delegation_targets(&self, from: &AgentDefinition) -> Vec<&AgentDefinition> {
        let usable = |name: &String| self.delegation_target(from, name).ok();
        from.subagents.iter().filter_map(usable).collect()
    }

    fn target(
        &self,
        from: &AgentDefinition,
        name: &str,
        allowed: &[String],
        verb: &str,
    ) -> Result<&AgentDefinition> {
        if name == from.name {
            return Err(refused(format!("the agent {name} cannot {verb} to itself")));
        }
        if !allowed.iter().any(|allowed| allowed == name) {
            let message = match shown(allowed) {
                Some(names) => format!("{} may {verb} to {names}, not to {}", from.name, cut(name)),
                None => format!("{} may {verb} to no other agent", from.name),
            };
            return Err(refused(message));
        }
        self.agents.get(name).ok_or_else(|| {
            let message = match self.absent.get(name) {
                Some(Absence::Disabled) => format!("the agent {name} is disabled"),
                // Stored definitions contain no problems.
                Some(Absence::Invalid) => match self.problem_of(name) {
                    Some(problem) => format!("the agent {name} cannot be used: {problem}"),
                    None => format!("the agent {name} cannot be used: its definition has an error"),
                },
                None => format!("there is no agent {name}, though {} may {verb} to it", from.name),
            };
            Error::new(Code::AgentNotFound, message).at("agent")
        })
    }
}

fn refused(message: String) -> Error {
    Error::new(Code::AgentNotAllowed, message).at("agent")
}

fn shown(names: &[String]) -> Option<String> {
    let more = names.len().saturating_sub(MAX_SHOWN);
    let listed = names.iter().take(MAX_SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match (names.is_empty(), more) {
        (true, _) => None,
        (false, 0) => Some(listed),
        (false, more) => Some(format!("{listed} and {more} more")),
    }
}

/// Shortens a name that came from a model.
fn cut(name: &str) -> String {
    const MAX_NAME: usize = 64;
    name.chars().filter(|c| !c.is_control()).take(MAX_NAME).collect()
}
