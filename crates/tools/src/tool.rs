//! The [`Tool`] trait.

use std::fmt;

use async_trait::async_trait;
use remuda_domain::{
    error::{Error, Result},
    tool::{Effects, ToolDescriptor},
};
use serde_json::Value;

use crate::context::ToolContext;

/// A tool that a run can call.
///
/// A tool is one file: it implements this trait there, and nothing outside of the file knows its name.
#[async_trait]
pub trait Tool: fmt::Debug + Send + Sync + 'static {
    /// What is known about the tool besides how it executes. Always the same; its name is unique in a registry.
    fn descriptor(&self) -> &ToolDescriptor;

    fn name(&self) -> &str {
        &self.descriptor().name
    }

    fn effects(&self) -> Effects {
        self.descriptor().effects
    }

    /// What it does and when to use it, for models and people.
    fn description(&self) -> &str;

    /// JSON Schema of the arguments, an object.
    fn schema(&self) -> Value;

    /// Checks arguments without side effects. Valid arguments are rejected by [`call`](Self::call) only
    /// because of the state of the workspace. Errors name the argument: `arguments.file_path`.
    fn validate(&self, arguments: &Value) -> Result<()>;

    /// Whether the tool uses the session's files or runs commands. Other tools work without a sandbox.
    fn needs_sandbox(&self) -> bool {
        true
    }

    /// Executes the call and returns its result.
    ///
    /// Ends soon after `context.cancel` (error `cancelled`) and after `context.timeout` (error
    /// `tool_timed_out`), leaving nothing running. Dropping the call ends it, too. The result is bounded and
    /// contains no NUL character, which PostgreSQL cannot store, unless the arguments did.
    async fn call(&self, arguments: &Value, context: &ToolContext) -> CallResult;
}

pub type CallResult = std::result::Result<Value, CallError>;

/// Error of a call, with its partial output.
#[derive(Debug)]
pub struct CallError {
    pub error: Error,
    /// For example the output of a command that timed out; `null` if there is none.
    pub output: Value,
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        Self { error, output: Value::Null }
    }
}
