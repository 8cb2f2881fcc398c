//! The tools an agent has.

use std::sync::Arc;

use remuda_domain::{agent::AgentDefinition, error::Result};
use remuda_models::ToolSpec;
use remuda_tools::{Registry, Tool};
use remuda_workspace::Definitions;

use super::skill::SkillTool;

/// For load tests and examples; no agent has a use for it.
const NOT_FOR_AGENTS: &str = "noop";

/// What of `all` the agent may use, and its skills. A session that only talks has neither.
pub(super) fn of_agent(
    all: &Registry,
    agent: &AgentDefinition,
    definitions: &Definitions,
    may_execute: bool,
) -> Result<Registry> {
    let wanted = |name: &str| {
        let selected = agent.tools.native.as_ref().is_none_or(|names| names.iter().any(|it| it == name));
        selected && name != NOT_FOR_AGENTS && !excluded(&agent.disallowed.native, name)
    };
    let mut tools = all.only(wanted);
    if may_execute && let Some(skills) = SkillTool::of_agent(agent, definitions) {
        tools = tools.with(Arc::new(skills))?;
    }
    Ok(tools)
}

/// Whether a name is matched by one of some patterns, in which `*` stands for anything.
pub(super) fn excluded(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| matches(pattern, name))
}

fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(rest) = name.strip_prefix(head) else { return false };
    (0..=rest.len()).filter(|at| rest.is_char_boundary(*at)).any(|at| matches(tail, &rest[at..]))
}

/// The tools as a model is shown them, by name.
pub(super) fn specs(tools: &Registry) -> Vec<ToolSpec> {
    let spec = |tool: &Arc<dyn Tool>| ToolSpec {
        name: tool.name().to_owned(),
        description: tool.description().to_owned(),
        schema: tool.schema(),
    };
    tools.iter().map(spec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, name, expected) in [
            ("Bash", "Bash", true),
            ("Bash", "BashOutput", false),
            ("Bash*", "BashOutput", true),
            ("*", "anything", true),
            ("Web*ch", "WebFetch", true),
            ("Web*ch", "WebFetcher", false),
            ("*é*", "caféine", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
