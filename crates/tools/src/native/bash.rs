//! `Bash`: runs a shell command in the workspace.

use std::time::Duration;

use async_trait::async_trait;
use remuda_domain::{
    error::{Error, Result},
    tool::Effects,
};
use remuda_sandbox::{Captured, Command, ExecResult, ExecStatus, check_script};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    arguments::{field, parse, rename},
    context::{ToolContext, cancelled, timed_out},
    tool::{CallResult, Tool},
};

/// The longest `timeout_ms`.
const MAX_TIMEOUT_MS: u64 = 600_000;

#[derive(Clone, Copy, Debug)]
pub struct Bash;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    command: String,
    timeout_ms: Option<u64>,
    /// For people who read along.
    #[serde(rename = "description")]
    _description: Option<String>,
}

impl Arguments {
    fn parse(arguments: &Value) -> Result<Self> {
        let arguments: Self = parse(arguments)?;
        check_script(&field("command"), &arguments.command)?;
        if arguments.timeout_ms.is_some_and(|timeout| !(1..=MAX_TIMEOUT_MS).contains(&timeout)) {
            return Err(Error::invalid(field("timeout_ms"), format!("expected 1 to {MAX_TIMEOUT_MS}")));
        }
        Ok(arguments)
    }
}

#[async_trait]
impl Tool for Bash {
    fn name(&self) -> &str {
        "Bash"
    }

    fn description(&self) -> &str {
        "Runs a shell command in the workspace and returns its exit code and output. A non-zero exit code is a result, not \
         an error. The command gets no input, and nothing it starts outlives it."
    }

    fn effects(&self) -> Effects {
        Effects::Mutating
    }

    fn schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "command": { "type": "string", "minLength": 1, "description": "the command, for bash" },
                "timeout_ms": {
                    "type": "integer", "minimum": 1, "maximum": MAX_TIMEOUT_MS,
                    "description": "time limit in milliseconds; the call's own limit if missing or later"
                },
                "description": { "type": "string", "description": "what the command does, in a few words" }
            },
            "required": ["command"],
            "additionalProperties": false
        })
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
        let command = Command::shell(arguments.command, timeout);
        let result = sandbox
            .exec(command, &*context.output, &context.cancel)
            .await
            .map_err(rename("command", "command"))?;
        answer(result, timeout)
    }
}

fn answer(result: ExecResult, timeout: Duration) -> CallResult {
    let mut answer = match result.status {
        ExecStatus::Exited(code) => json!({ "exit_code": code }),
        ExecStatus::Signalled(signal) => json!({ "exit_code": null, "signal": signal }),
        ExecStatus::OutOfMemory => json!({ "exit_code": null, "out_of_memory": true }),
        ExecStatus::TimedOut => return Err(timed_out(timeout).into()),
        ExecStatus::Cancelled => return Err(cancelled().into()),
    };
    add(&mut answer, "stdout", result.stdout);
    add(&mut answer, "stderr", result.stderr);
    Ok(answer)
}

/// The text, and its real size where some is missing.
fn add(answer: &mut Value, stream: &str, captured: Captured) {
    if captured.truncated {
        answer["truncated"] = true.into();
        answer[format!("{stream}_bytes")] = captured.total_bytes.into();
    }
    answer[stream] = captured.text.into();
}
