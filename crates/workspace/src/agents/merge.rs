//! Merges layers of agents: of several agents with the same name, the one of the highest layer is used.

use std::collections::BTreeMap;

use remuda_domain::agent::AgentSource;

use super::{LoadOutcome, LoadedAgent, UnresolvedAgent};
use crate::{
    definitions::Absence,
    parse::Position,
    report::{Report, Reporter},
};

/// The merged agents by name.
#[derive(Default)]
pub(crate) struct MergedAgents {
    agents: BTreeMap<String, LoadedAgent>,
}

impl MergedAgents {
    /// Adds a layer whose agents replace those of the layers below.
    pub(crate) fn add_layer(&mut self, layer: Vec<LoadedAgent>, report: &Report) {
        // Keyed by lowercase name: some file systems do not distinguish case.
        let mut names: BTreeMap<String, (String, String)> = BTreeMap::new();
        for agent in layer {
            let reporter = Reporter::for_definition(report, &agent.file, agent.name.clone());
            if let Some((file, twin)) = names.get(&agent.name.to_lowercase()) {
                let message = format!("the agent `{}` is defined already, as `{twin}` in {file}", agent.name);
                reporter.error(Position::FILE, message);
                continue;
            }
            names.insert(agent.name.to_lowercase(), (agent.file.clone(), agent.name.clone()));
            if let Some(other) = self.agents.get(&agent.name).filter(|other| other.is_from_workspace()) {
                let message =
                    format!("the agent `{}` of {} is used instead of this one", agent.name, agent.file);
                Reporter::for_definition(report, &other.file, agent.name.clone())
                    .warn(Position::FILE, message);
            }
            let similar = |other: &&String| other.eq_ignore_ascii_case(&agent.name) && **other != agent.name;
            if let Some(other) = self.agents.keys().find(similar) {
                let message = format!("there is also an agent `{other}`, which differs only in capitals");
                reporter.warn(Position::FILE, message);
            }
            self.agents.insert(agent.name.clone(), agent);
        }
    }

    /// The agent of this name in the layers added so far.
    pub(crate) fn get(&self, name: &str) -> Option<&UnresolvedAgent> {
        match &self.agents.get(name)?.outcome {
            LoadOutcome::Usable(unresolved) => Some(unresolved),
            LoadOutcome::Disabled | LoadOutcome::Invalid => None,
        }
    }

    /// Agents that are defined but not usable, with the reason.
    pub(crate) fn absent(&self) -> BTreeMap<String, Absence> {
        let absent = |(name, agent): (&String, &LoadedAgent)| match agent.outcome {
            LoadOutcome::Usable(_) => None,
            LoadOutcome::Disabled => Some((name.clone(), Absence::Disabled)),
            LoadOutcome::Invalid => Some((name.clone(), Absence::Invalid)),
        };
        self.agents.iter().filter_map(absent).collect()
    }

    /// The usable agents.
    pub(crate) fn into_unresolved(self) -> BTreeMap<String, UnresolvedAgent> {
        let usable = |(name, agent): (String, LoadedAgent)| match agent.outcome {
            LoadOutcome::Usable(unresolved) => Some((name, *unresolved)),
            LoadOutcome::Disabled | LoadOutcome::Invalid => None,
        };
        self.agents.into_iter().filter_map(usable).collect()
    }
}

impl LoadedAgent {
    fn is_from_workspace(&self) -> bool {
        match &self.outcome {
            LoadOutcome::Usable(unresolved) => {
                !matches!(unresolved.definition.origin.source, AgentSource::BuiltIn | AgentSource::Platform)
            }
            LoadOutcome::Disabled | LoadOutcome::Invalid => false,
        }
    }
}
