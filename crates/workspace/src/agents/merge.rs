//! Which of several agents of the same name is used.

use std::collections::BTreeMap;

use remuda_domain::agent::AgentSource;

use super::{Draft, Found, Outcome};
use crate::{
    definitions::Absence,
    report::{Place, Report},
    text::Position,
};

/// Agents by name, from the built-in ones to the workspace's own.
#[derive(Default)]
pub(crate) struct Merged {
    agents: BTreeMap<String, Found>,
}

impl Merged {
    /// Lays the agents of another system over those that are there.
    pub(crate) fn lay(&mut self, layer: Vec<Found>, report: &Report) {
        // By name in small letters: file systems and people do not always tell them apart.
        let mut names: BTreeMap<String, (String, String)> = BTreeMap::new();
        for found in layer {
            let place = Place::of(report, &found.file, found.name.clone());
            if let Some((file, twin)) = names.get(&found.name.to_lowercase()) {
                let message = format!("the agent `{}` is defined already, as `{twin}` in {file}", found.name);
                place.error(Position::FILE, message);
                continue;
            }
            names.insert(found.name.to_lowercase(), (found.file.clone(), found.name.clone()));
            if let Some(other) = self.agents.get(&found.name).filter(|other| other.is_of_workspace()) {
                let message =
                    format!("the agent `{}` of {} is used instead of this one", found.name, found.file);
                Place::of(report, &other.file, found.name.clone()).warn(Position::FILE, message);
            }
            let similar = |other: &&String| other.eq_ignore_ascii_case(&found.name) && **other != found.name;
            if let Some(other) = self.agents.keys().find(similar) {
                let message = format!("there is also an agent `{other}`, which differs only in capitals");
                place.warn(Position::FILE, message);
            }
            self.agents.insert(found.name.clone(), found);
        }
    }

    /// The agent of that name as things are.
    pub(crate) fn get(&self, name: &str) -> Option<&Draft> {
        match &self.agents.get(name)?.outcome {
            Outcome::Usable(draft) => Some(draft),
            Outcome::Disabled | Outcome::Broken => None,
        }
    }

    /// Those that someone defined and that are not there, with the reason.
    pub(crate) fn absent(&self) -> BTreeMap<String, Absence> {
        let absent = |(name, found): (&String, &Found)| match found.outcome {
            Outcome::Usable(_) => None,
            Outcome::Disabled => Some((name.clone(), Absence::Disabled)),
            Outcome::Broken => Some((name.clone(), Absence::Broken)),
        };
        self.agents.iter().filter_map(absent).collect()
    }

    /// Those that can be used.
    pub(crate) fn into_drafts(self) -> BTreeMap<String, Draft> {
        let usable = |(name, found): (String, Found)| match found.outcome {
            Outcome::Usable(draft) => Some((name, *draft)),
            Outcome::Disabled | Outcome::Broken => None,
        };
        self.agents.into_iter().filter_map(usable).collect()
    }
}

impl Found {
    fn is_of_workspace(&self) -> bool {
        match &self.outcome {
            Outcome::Usable(draft) => {
                !matches!(draft.definition.origin.source, AgentSource::BuiltIn | AgentSource::Platform)
            }
            Outcome::Disabled | Outcome::Broken => false,
        }
    }
}
