//! `Bash`: runs a shell command in the workspace.

mod interactive;
pub(super) mod result;
mod simple_commands;

use std::{sync::LazyLock, time::Duration};

use async_trait::async_trait;
use remuda_domain::{
    error::{Code, Error, Result},
    tool::{CallSubject, Effects, ForeignFormat, ToolDescriptor},
};
use remuda_sandbox::{Command, ExecResult, Sandbox, Spill, check_script, guarded_script};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    arguments::{field, parse, rename, schema_of},
    artifacts::DIRECTORY as ARTIFACTS,
    context::ToolContext,
    state::exclude_from_git,
    tool::{CallResult, Tool},
};

/// The longest `timeout_ms`.
const MAX_TIMEOUT_MS: u64 = 600_000;
/// Bytes of each stream in a result.
const INLINE_BYTES: usize = 16_000;
/// Bytes of each stream that are spilled to the workspace.
const ARTIFACT_BYTES: u64 = 16 << 20;
/// Variable with the path of the workspace.
const WORKSPACE_VARIABLE: &str = "OPENHARNESS_WORKSPACE_ROOT";
/// Variable with the W3C trace context of the call.
const TRACE_VARIABLE: &str = "TRACEPARENT";

#[derive(Clone, Copy, Debug)]
pub struct Bash;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The command, for bash. It runs in the workspace.
    #[schemars(length(min = 1))]
    command: String,
    /// Time limit in milliseconds (also accepted as `timeout`). The call's own limit, 120000 unless the caller set another,
    /// counts if this is missing or longer. Background tasks have as much time as their run.
    #[serde(alias = "timeout")]
    #[schemars(range(min = 1, max = MAX_TIMEOUT_MS))]
    timeout_ms: Option<u64>,
    /// What the command does, in a few words, for people who read along.
    #[serde(rename = "description")]
    _description: Option<String>,
    /// Answer at once with a `task_id` and let the command go on, until it ends or the run does. See its output with
    /// BashOutput, end it with KillBash.
    #[serde(default)]
    run_in_background: bool,
}

impl Arguments {
    fn parse(arguments: &Value) -> Result<Self> {
        let arguments: Self = parse(arguments)?;
        check_script(&field("command"), &arguments.command)?;
        if arguments.timeout_ms.is_some_and(|timeout| !(1..=MAX_TIMEOUT_MS).contains(&timeout)) {
            return Err(Error::invalid(field("timeout_ms"), format!("expected 1 to {MAX_TIMEOUT_MS}")));
        }
        if let Some(advice) = interactive::advice(&arguments.command) {
            return Err(Error::new(Code::NeedsInput, advice).at(field("command")));
        }
        Ok(arguments)
    }

    /// Builds the command with its timeout, spill directory and environment.
    fn command(&self, timeout: Duration, sandbox: &dyn Sandbox, context: &ToolContext) -> Command {
        // Rules have judged the script as bash reads it.
        let mut command = Command::shell(guarded_script(&self.command), timeout);
        command.output_limit = INLINE_BYTES;
        command.spill =
            Some(Spill { directory: format!("{ARTIFACTS}/{}", context.call), max_bytes: ARTIFACT_BYTES });
        if let Some(path) = sandbox.workspace_path() {
            command.env.push((WORKSPACE_VARIABLE.to_owned(), path.to_owned()));
        }
        if let Some(trace) = context.trace {
            command.env.push((TRACE_VARIABLE.to_owned(), trace.to_string()));
        }
        command
    }
}

#[async_trait]
impl Tool for Bash {
    fn descriptor(&self) -> &ToolDescriptor {
        static DESCRIPTOR: LazyLock<ToolDescriptor> = LazyLock::new(|| ToolDescriptor {
            permission: "bash".into(),
            subject: |arguments| CallSubject::Script {
                argument: "command",
                script: arguments["command"].as_str(),
            },
            foreign_names: &[(ForeignFormat::CodingCode, "execute_command")],
            headline: |arguments| arguments.text("command"),
            result: result::for_people,
            ..ToolDescriptor::new("Bash", Effects::Mutating)
        });
        &DESCRIPTOR
    }

    fn description(&self) -> &str {
        "Runs a shell command in the workspace and returns its exit code and output. A non-zero exit code is a result, not \
         an error. The command gets no input and no terminal, and nothing it starts outlives it; use run_in_background \
         for servers and other long work. Of output beyond 16000 bytes per stream the beginning and the end are \
         answered, and all of it (up to 16 MiB) is kept in a file that the answer names."
    }

    fn schema(&self) -> Value {
        static SCHEMA: LazyLock<Value> = LazyLock::new(schema_of::<Arguments>);
        SCHEMA.clone()
    }

    fn validate(&self, arguments: &Value) -> Result<()> {
        Arguments::parse(arguments).map(drop)
    }

    async fn call(&self, arguments: &Value, context: &ToolContext) -> CallResult {
        let arguments = Arguments::parse(arguments)?;
        let timeout = arguments
            .timeout_ms
            .map_or(context.timeout, |asked| context.timeout.min(Duration::from_millis(asked)));
        let sandbox = context.within_limits(context.sandbox.get()).await?;
        let command = arguments.command(timeout, &*sandbox, context);
        if arguments.run_in_background {
            let task = context.background.start(sandbox, command)?;
            return Ok(json!({ "task_id": task, "status": "running" }));
        }
        let result = sandbox
            .exec(command, &*context.output, &context.cancel)
            .await
            .map_err(rename("command", "command"))?;
        exclude_artifacts_from_git(&*sandbox, &result).await;
        result::tool_result(result, timeout)
    }
}

/// Excludes spilled output from git. Best effort: the result is valid without it.
pub(crate) async fn exclude_artifacts_from_git(sandbox: &dyn Sandbox, result: &ExecResult) {
    if (result.stdout.artifact.is_some() || result.stderr.artifact.is_some())
        && let Err(error) = exclude_from_git(sandbox).await
    {
        tracing::debug!(error = error.chain(), "cannot exclude artifacts from git");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documented_limits_are_the_enforced_ones() {
        let docs = include_str!("../../../../docs/sandboxes.md");
        let (inline, artifact) = (INLINE_BYTES / 1000, ARTIFACT_BYTES >> 20);
        for text in [format!("beyond {inline},000 bytes per stream"), format!("the first {artifact} MiB")] {
            assert!(docs.contains(&text), "{text}");
        }
        for text in [format!("beyond {INLINE_BYTES} bytes per stream"), format!("(up to {artifact} MiB)")] {
            assert!(Bash.description().contains(&text), "{text}");
        }
        assert!(docs.contains(ARTIFACTS));
    }
}
