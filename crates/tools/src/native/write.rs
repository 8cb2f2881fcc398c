//! `Write`: replaces or creates a file.

use std::sync::LazyLock;

use async_trait::async_trait;
use remuda_domain::{
    error::{Code, Error, Result},
    tool::Effects,
};
use remuda_sandbox::{ByteRange, MAX_READ_BYTES, Sandbox, WriteMode, path};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    arguments::{field, parse, rename, schema_of},
    context::ToolContext,
    read_history::{Digest, ReadHistory},
    tool::{CallResult, Tool},
};

#[derive(Clone, Debug)]
pub struct Write {
    history: ReadHistory,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// A path within the workspace.
    #[schemars(length(min = 1))]
    file_path: String,
    /// Everything the file is to hold.
    content: String,
}

impl Arguments {
    fn parse(arguments: &Value) -> Result<Self> {
        let arguments: Self = parse(arguments)?;
        path::check(&field("file_path"), &arguments.file_path)?;
        Ok(arguments)
    }
}

/// What there is to do.
enum Task {
    Create,
    Replace,
    /// The file holds it already: someone who repeats a write that was cut short finds it done.
    Nothing,
}

#[async_trait]
impl Tool for Write {
    fn name(&self) -> &str {
        "Write"
    }

    fn description(&self) -> &str {
        "Writes a file in the workspace, replacing what it held. Missing directories are made. A file that exists must \
         have been read in this session, and must not have changed since; to change part of it, use Edit."
    }

    fn effects(&self) -> Effects {
        Effects::Idempotent
    }

    fn schema(&self) -> Value {
        static SCHEMA: LazyLock<Value> = LazyLock::new(schema_of::<Arguments>);
        SCHEMA.clone()
    }

    fn validate(&self, arguments: &Value) -> Result<()> {
        Arguments::parse(arguments).map(drop)
    }

    async fn call(&self, arguments: &Value, context: &ToolContext) -> CallResult {
        let Arguments { file_path, content } = Arguments::parse(arguments)?;
        let (bytes, digest) = (content.len(), Digest::of(content.as_bytes()));
        let look = async {
            let sandbox = context.sandbox.get().await?;
            let task = self.look(context, &*sandbox, &file_path, content.as_bytes()).await?;
            Ok((sandbox, task))
        };
        let (sandbox, task) = context.within_limits(look).await.map_err(rename("path", "file_path"))?;
        // From here on to its end, which is near: a write given up midway could still happen after the call.
        let mode = match task {
            Task::Create => Some(WriteMode::CreateNew),
            Task::Replace => Some(WriteMode::Overwrite),
            Task::Nothing => None,
        };
        if let Some(mode) = mode {
            self.history.intend(context.session, &*sandbox, &file_path, digest).await;
            let written = sandbox.write_file(&file_path, content.into_bytes(), mode).await;
            written.map_err(appeared).map_err(rename("path", "file_path"))?;
        }
        if let Ok(stat) = sandbox.stat(&file_path).await {
            self.history.note(context.session, &*sandbox, &file_path, &stat, Some(digest)).await;
        }
        Ok(json!({ "bytes_written": bytes, "created": matches!(task, Task::Create) }))
    }
}

impl Write {
    pub(crate) fn new(history: ReadHistory) -> Self {
        Self { history }
    }

    async fn look(
        &self,
        context: &ToolContext,
        sandbox: &dyn Sandbox,
        path: &str,
        wanted: &[u8],
    ) -> Result<Task> {
        let stat = match sandbox.stat(path).await {
            // Also what is no directory on the way to it, which the write will say.
            Err(error) if error.code() == Code::FileNotFound => return Ok(Task::Create),
            result => result?,
        };
        let held = sandbox.read_file(path, ByteRange::first(MAX_READ_BYTES)).await?;
        let is_whole = held.bytes.len() as u64 >= held.size;
        if is_whole && held.bytes == wanted {
            return Ok(Task::Nothing);
        }
        let digest = is_whole.then(|| Digest::of(&held.bytes));
        self.history.check(context.session, sandbox, path, &stat, digest).await?;
        Ok(Task::Replace)
    }
}

/// A file that was not there a moment ago was not read either.
pub(super) fn appeared(error: Error) -> Error {
    if error.code() != Code::AlreadyExists {
        return error;
    }
    Error::new(Code::ReadRequired, "the file was made by someone else just now; read it first").at("path")
}
