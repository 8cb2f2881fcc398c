//! `remuda tools`: lists the native tools.

use std::process::ExitCode;

use remuda_config::Config;
use remuda_domain::{
    error::Result,
    tool::{Effects, ToolOffer},
};
use serde_json::json;

use crate::output::{Output, Style, Table};

pub(crate) const EXAMPLES: &str = "\
Examples:
  remuda tools                                              what each tool does, and which permission governs it
  remuda tools --json                                       with the JSON Schema of the arguments
  remuda run --tool Bash --arg command='echo hi'            calls one without an agent

Agents have the tools that their definition lists: `remuda workspace show AGENT`.";

pub(crate) fn execute(config: &Config, output: Output) -> Result<ExitCode> {
    let tools = remuda_node::tools(config)?;
    let listed = tools.catalog().iter().filter_map(|descriptor| {
        let tool = tools.get(&descriptor.name)?;
        Some((tool, descriptor))
    });
    let mut table = Table::new(output.out, &["TOOL", "PERMISSION", "EFFECTS", "DESCRIPTION"]);
    for (tool, descriptor) in listed {
        let effects = match descriptor.effects {
            Effects::ReadOnly => "reads",
            Effects::Idempotent => "may be repeated",
            Effects::Mutating => "changes",
        };
        if output.json {
            output.json_line(&json!({
                "name": descriptor.name,
                "permission": descriptor.permission,
                "read_only": descriptor.effects == Effects::ReadOnly,
                "idempotent": descriptor.effects.repeatable(),
                "for_agents": descriptor.offer != ToolOffer::Never,
                "description": tool.description(),
                "input_schema": tool.schema(),
            }));
            continue;
        }
        let summary = tool.description().split_inclusive(". ").next().unwrap_or_default();
        table.row([
            (descriptor.name.clone().into_owned(), Some(Style::Bold)),
            (descriptor.permission.clone().into_owned(), None),
            (effects.to_owned(), None),
            (summary.trim().to_owned(), None),
        ]);
    }
    if !output.json {
        table.print();
    }
    Ok(ExitCode::SUCCESS)
}
