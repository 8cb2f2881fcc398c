//! The agents that every workspace has unless it has its own. They are written in the same format as everyone's.

use remuda_domain::agent::AgentSource;

use super::{Found, Outcome, openharness::agent};
use crate::{
    report::{Place, Report},
    text::{Style, split},
};

const AGENTS: [(&str, &str); 8] = [
    ("assistant", include_str!("../built_in/assistant.md")),
    ("build", include_str!("../built_in/build.md")),
    ("explore", include_str!("../built_in/explore.md")),
    ("fixer", include_str!("../built_in/fixer.md")),
    ("general", include_str!("../built_in/general.md")),
    ("plan", include_str!("../built_in/plan.md")),
    ("reviewer", include_str!("../built_in/reviewer.md")),
    ("test", include_str!("../built_in/test.md")),
];

pub(crate) fn read(report: &Report) -> Vec<Found> {
    let read = |(name, text): (&str, &str)| {
        let file = format!("built-in {name}.md");
        let place = Place::of(report, &file, name);
        let document = split(text, Style::Yaml).map_err(|fault| place.fault(fault)).ok();
        let draft = document.and_then(|document| agent(name, &document, AgentSource::BuiltIn, &place));
        let outcome = match draft {
            Some(mut draft) => {
                draft.definition.origin.file = None;
                Outcome::Usable(Box::new(draft))
            }
            None => Outcome::Broken,
        };
        Found { name: name.to_owned(), file: file.clone(), outcome }
    };
    AGENTS.into_iter().map(read).collect()
}
