//! `noop`: does nothing, for load tests and demonstrations.

use std::{borrow::Cow, sync::LazyLock, time::Duration};

use async_trait::async_trait;
use remuda_domain::{
    error::{Code, Error, Result},
    tool::{Effects, ToolDescriptor, ToolOffer},
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    arguments::{field, parse, schema_of},
    context::{ToolContext, cancelled},
    tool::{CallResult, Tool},
};

const MAX_SLEEP_MS: u64 = 600_000;

#[derive(Clone, Copy, Debug)]
pub struct Noop;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments<'a> {
    /// How long to sleep first, in milliseconds.
    #[serde(default)]
    #[schemars(range(max = MAX_SLEEP_MS))]
    sleep_ms: u64,
    /// Fail with this text.
    #[serde(borrow)]
    fail: Option<Cow<'a, str>>,
    /// What to answer.
    #[serde(default)]
    echo: Value,
}

impl<'a> Arguments<'a> {
    fn parse(arguments: &'a Value) -> Result<Self> {
        // Fast path for the load test, which makes millions of such calls.
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
    fn descriptor(&self) -> &ToolDescriptor {
        static DESCRIPTOR: LazyLock<ToolDescriptor> = LazyLock::new(|| ToolDescriptor {
            offer: ToolOffer::Never,
            ..ToolDescriptor::new("noop", Effects::ReadOnly)
        });
        &DESCRIPTOR
    }

    fn description(&self) -> &str {
        "Does nothing, after a while if asked to, and answers with what it was given. For load tests and demonstrations."
    }

    fn needs_sandbox(&self) -> bool {
        false
    }

    fn schema(&self) -> Value {
        static SCHEMA: LazyLock<Value> = LazyLock::new(schema_of::<Arguments<'static>>);
        SCHEMA.clone()
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
