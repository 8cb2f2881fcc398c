//! What a tool is.

use std::fmt;

use async_trait::async_trait;
use remuda_domain::{
    error::{Error, Result},
    tool::Effects,
};
use serde_json::Value;

use crate::context::ToolContext;

/// Something a run can call.
#[async_trait]
pub trait Tool: fmt::Debug + Send + Sync + 'static {
    /// The name it is called by, unique in a registry.
    fn name(&self) -> &str;

    /// What it does and when to use it, for models and people.
    fn description(&self) -> &str;

    /// What executing it twice, or half, would do. Recovery depends on it.
    fn effects(&self) -> Effects;

    /// The JSON Schema of its arguments, an object.
    fn schema(&self) -> Value;

    /// Checks arguments without doing anything. What passes here is only refused by [`call`](Self::call) for what the
    /// workspace holds. Errors name the argument: `arguments.file_path`.
    fn validate(&self, arguments: &Value) -> Result<()>;

    /// Whether it works on the session's files or runs commands there. Others can do without a sandbox.
    fn needs_sandbox(&self) -> bool {
        true
    }

    /// Does the work and returns what it has to say.
    ///
    /// Ends soon after `context.cancel` (error `cancelled`) and after `context.timeout` (error `tool_timed_out`), leaving
    /// nothing running. Dropping the call ends it too. The answer is bounded and holds no NUL
    /// character, which PostgreSQL cannot store, unless the arguments did.
    async fn call(&self, arguments: &Value, context: &ToolContext) -> CallResult;
}

pub type CallResult = std::result::Result<Value, CallError>;

/// Why a call gave no result, and what it had to say until then.
#[derive(Debug)]
pub struct CallError {
    pub error: Error,
    /// For example the output of a command that ran too long; `null` if there is none.
    pub output: Value,
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        Self { error, output: Value::Null }
    }
}
