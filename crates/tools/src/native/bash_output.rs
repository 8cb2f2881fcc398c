//! `BashOutput`: returns the output of a background task since the last call.

use std::sync::LazyLock;

use async_trait::async_trait;
use regex::bytes::{Regex, RegexBuilder};
use remuda_domain::{
    error::{Error, Result},
    tool::{CallSubject, Effects, ForeignFormat, ToolDescriptor},
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{bash::result::for_people, task_report::add_report};
use crate::{
    arguments::{field, parse, schema_of},
    context::ToolContext,
    tool::{CallResult, Tool},
};

/// Size limit of a compiled filter.
const MAX_FILTER_BYTES: usize = 1 << 20;

#[derive(Clone, Copy, Debug)]
pub struct BashOutput;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The `task_id` that Bash answered with.
    task_id: String,
    /// A regular expression: only lines that match are shown, the others count as seen.
    filter: Option<String>,
}

impl Arguments {
    fn parse(arguments: &Value) -> Result<(Self, Option<Regex>)> {
        let arguments: Self = parse(arguments)?;
        let compile = |filter: &str| {
            let built = RegexBuilder::new(filter)
                .size_limit(MAX_FILTER_BYTES)
                .dfa_size_limit(MAX_FILTER_BYTES)
                .build();
            built.map_err(|error| {
                Error::invalid(field("filter"), format!("expected a regular expression: {error}"))
            })
        };
        let filter = arguments.filter.as_deref().map(compile).transpose()?;
        Ok((arguments, filter))
    }
}

#[async_trait]
impl Tool for BashOutput {
    fn descriptor(&self) -> &ToolDescriptor {
        static DESCRIPTOR: LazyLock<ToolDescriptor> = LazyLock::new(|| ToolDescriptor {
            permission: "bash".into(),
            subject: |_| CallSubject::WholeCall,
            is_follow_up: true,
            foreign_names: &[(ForeignFormat::CodingCode, "execute_command")],
            polls: true,
            headline: |arguments| arguments.text("task_id"),
            result: for_people,
            // A repeated call misses the output that the first one consumed. But a call is repeated only after a
            // crash, and then the task is gone.
            ..ToolDescriptor::new("BashOutput", Effects::ReadOnly)
        });
        &DESCRIPTOR
    }

    fn description(&self) -> &str {
        "Returns what a background task of this run has written since the last look, and whether it still runs: status is \
         running, exited (with exit_code), killed, timed_out or failed. At most 16000 bytes of each stream at once; `more` \
         says that the next look has something already."
    }

    fn schema(&self) -> Value {
        static SCHEMA: LazyLock<Value> = LazyLock::new(schema_of::<Arguments>);
        SCHEMA.clone()
    }

    fn validate(&self, arguments: &Value) -> Result<()> {
        Arguments::parse(arguments).map(drop)
    }

    fn needs_sandbox(&self) -> bool {
        // The task has its own sandbox handle.
        false
    }

    async fn call(&self, arguments: &Value, context: &ToolContext) -> CallResult {
        let (arguments, filter) = Arguments::parse(arguments)?;
        let task = context.background.get(&arguments.task_id).map_err(|error| error.at(field("task_id")))?;
        let mut answer = json!({ "task_id": arguments.task_id });
        add_report(&mut answer, task.read_report(filter.as_ref()));
        Ok(answer)
    }
}
