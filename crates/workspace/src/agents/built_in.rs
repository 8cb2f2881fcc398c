//! The built-in agents, which a workspace may replace. They are written in the same format as user-defined agents.

use remuda_domain::{agent::AgentSource, tool::ToolCatalog};

use super::{LoadOutcome, LoadedAgent, openharness::agent};
use crate::{
    parse::{FrontmatterStyle, split_frontmatter},
    report::{Report, Reporter},
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

pub(crate) fn read(report: &Report, tools: &ToolCatalog) -> Vec<LoadedAgent> {
    let read = |(name, text): (&str, &str)| {
        let file = format!("built-in {name}.md");
        let reporter = Reporter::for_definition(report, &file, name);
        let document =
            split_frontmatter(text, FrontmatterStyle::Strict).map_err(|fault| reporter.fault(fault)).ok();
        let draft =
            document.and_then(|document| agent(name, &document, AgentSource::BuiltIn, tools, &reporter));
        let outcome = match draft {
            Some(mut draft) => {
                draft.definition.origin.file = None;
                LoadOutcome::Usable(Box::new(draft))
            }
            None => LoadOutcome::Invalid,
        };
        LoadedAgent { name: name.to_owned(), file: file.clone(), outcome }
    };
    AGENTS.into_iter().map(read).collect()
}
