//! `KillBash`: ends a background task.

use std::sync::LazyLock;

use async_trait::async_trait;
use remuda_domain::{
    error::Result,
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

#[derive(Clone, Copy, Debug)]
pub struct KillBash;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The `task_id` that Bash answered with.
    task_id: String,
}

#[async_trait]
impl Tool for KillBash {
    fn descriptor(&self) -> &ToolDescriptor {
        static DESCRIPTOR: LazyLock<ToolDescriptor> = LazyLock::new(|| ToolDescriptor {
            permission: "bash".into(),
            subject: |_| CallSubject::WholeCall,
            is_follow_up: true,
            foreign_names: &[(ForeignFormat::CodingCode, "execute_command")],
            headline: |arguments| arguments.text("task_id"),
            result: for_people,
            ..ToolDescriptor::new("KillBash", Effects::Idempotent)
        });
        &DESCRIPTOR
    }

    fn description(&self) -> &str {
        "Ends a background task of this run with everything it started, and returns the last of its output. One that has \
         ended already stays as it is."
    }

    fn schema(&self) -> Value {
        static SCHEMA: LazyLock<Value> = LazyLock::new(schema_of::<Arguments>);
        SCHEMA.clone()
    }

    fn validate(&self, arguments: &Value) -> Result<()> {
        parse::<Arguments>(arguments).map(drop)
    }

    fn needs_sandbox(&self) -> bool {
        // The task has its own sandbox handle.
        false
    }

    async fn call(&self, arguments: &Value, context: &ToolContext) -> CallResult {
        let arguments: Arguments = parse(arguments)?;
        let task = context.background.get(&arguments.task_id).map_err(|error| error.at(field("task_id")))?;
        let kill = async {
            task.kill().await;
            Ok(())
        };
        context.within_limits(kill).await?;
        let mut answer = json!({ "task_id": arguments.task_id });
        add_report(&mut answer, task.read_report(None));
        Ok(answer)
    }
}
