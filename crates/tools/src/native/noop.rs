//! `noop`: does nothing, for load tests and demonstrations.

use std::{borrow::Cow, time::Duration};

use async_trait::async_trait;
use remuda_domain::{
    error::{Code, Error, Result},
    tool::Effects,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    arguments::{field, parse},
    context::{ToolContext, cancelled},
    tool::{CallResult, Tool},
};

const MAX_SLEEP_MS: u64 = 600_000;

#[derive(Clone, Copy, Debug)]
pub struct Noop;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments<'a> {
    #[serde(default)]
    sleep_ms: u64,
    #[serde(borrow)]
    fail: Option<Cow<'a, str>>,
    #[serde(default)]
    echo: Value,
}

impl<'a> Arguments<'a> {
    fn parse(arguments: &'a Value) -> Result<Self> {
        // The load test's call, millions of times.
        if arguments.as_object().is_some_and(serde_json::Map::is_empty) {
            return Ok(Self::default());
        }
        let arguments: Self = parse(arguments)?;
        if arguments.sleep_ms > MAX_SLEEP_MS {
            return Err(Error::invalid(field("sleep_ms"), format!("expected at most {MAX_SLEEP_MS}")));
        }
        Ok(arguments)
    }
}

#[async_trait]
impl Tool for Noop {
    fn name(&self) -> &str {
        "noop"
    }

    fn description(&self) -> &str {
        "Does nothing, after a while if asked to, and answers with what it was given. For load tests and demonstrations."
    }

    fn effects(&self) -> Effects {
        Effects::ReadOnly
    }

    fn needs_sandbox(&self) -> bool {
        false
    }

    fn schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "sleep_ms": {
                    "type": "integer", "minimum": 0, "maximum": MAX_SLEEP_MS,
                    "description": "how long to sleep first, in milliseconds"
                },
                "fail": { "type": "string", "description": "fail with this text" },
                "echo": { "description": "what to answer" }
            },
            "additionalProperties": false
        })
    }

    fn validate(&self, arguments: &Value) -> Result<()> {
        Arguments::parse(arguments).map(drop)
    }

    async fn call(&self, arguments: &Value, context: &ToolContext) -> CallResult {
        let Arguments { sleep_ms, fail, echo } = Arguments::parse(arguments)?;
        if context.cancel.is_cancelled() {
            return Err(cancelled().into());
        }
        if sleep_ms > 0 {
            let sleep = async {
                tokio::time::sleep(Duration::from_millis(sleep_ms)).await;
                Ok(())
            };
            context.within_limits(sleep).await?;
        }
        match fail {
            Some(text) => Err(Error::new(Code::ToolFailed, text).into()),
            None => Ok(echo),
        }
    }
}
