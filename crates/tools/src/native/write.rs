//! `Write`: replaces or creates a file.

use std::sync::LazyLock;

use async_trait::async_trait;
use remuda_domain::{
    error::{Code, Error, Result},
    tool::{CallSubject, Effects, ForeignFormat, ResultBody, ResultDisplay, ToolDescriptor},
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

/// The write that is needed.
enum NeededWrite {
    Create,
    Replace,
    /// The file already has the contents, for example when an interrupted call is repeated.
    Nothing,
}

#[async_trait]
impl Tool for Write {
    fn descriptor(&self) -> &ToolDescriptor {
        static DESCRIPTOR: LazyLock<ToolDescriptor> = LazyLock::new(|| ToolDescriptor {
            permission: "edit".into(),
            subject: |arguments| CallSubject::Path(arguments["file_path"].as_str()),
            foreign_names: &[
                (ForeignFormat::OpenHarness, "write_file"),
                (ForeignFormat::CodingCode, "write_file"),
            ],
            headline: |arguments| arguments.text("file_path"),
            result: |output| {
                let verb = if output.is_set("created") { "created" } else { "written" };
                let summary = [Some(verb.to_owned()), output.count("bytes_written", "byte")];
                ResultDisplay::new(summary, ResultBody::Nothing)
            },
            ..ToolDescriptor::new("Write", Effects::Idempotent)
        });
        &DESCRIPTOR
    }

    fn description(&self) -> &str {
        "Writes a file in the workspace, replacing what it held. Missing directories are made. A file that exists must \
         have been read in this session, and must not have changed since; to change part of it, use Edit."
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
        let prepare = async {
            let sandbox = context.sandbox.get().await?;
            let task = self.prepare(context, &*sandbox, &file_path, content.as_bytes()).await?;
            Ok((sandbox, task))
        };
        let (sandbox, task) = context.within_limits(prepare).await.map_err(rename("path", "file_path"))?;
        // Not cancellable from here on: a write abandoned halfway could still happen after the call.
        let mode = match task {
            NeededWrite::Create => Some(WriteMode::CreateNew),
            NeededWrite::Replace => Some(WriteMode::Overwrite),
            NeededWrite::Nothing => None,
        };
        if let Some(mode) = mode {
            self.history.record_intent(context.session, &*sandbox, &file_path, digest).await;
            let written = sandbox.write_file(&file_path, content.into_bytes(), mode).await;
            written.map_err(map_already_exists).map_err(rename("path", "file_path"))?;
        }
        if let Ok(stat) = sandbox.stat(&file_path).await {
            self.history.record(context.session, &*sandbox, &file_path, &stat, Some(digest)).await;
        }
        Ok(json!({ "bytes_written": bytes, "created": matches!(task, NeededWrite::Create) }))
    }
}

impl Write {
    pub(crate) fn new(history: ReadHistory) -> Self {
        Self { history }
    }

    async fn prepare(
        &self,
        context: &ToolContext,
        sandbox: &dyn Sandbox,
        path: &str,
        contents: &[u8],
    ) -> Result<NeededWrite> {
        let stat = match sandbox.stat(path).await {
            // Also if a parent is not a directory, which the write reports.
            Err(error) if error.code() == Code::FileNotFound => return Ok(NeededWrite::Create),
            result => result?,
        };
        let existing = sandbox.read_file(path, ByteRange::first(MAX_READ_BYTES)).await?;
        let is_whole = existing.bytes.len() as u64 >= existing.size;
        if is_whole && existing.bytes == contents {
            return Ok(NeededWrite::Nothing);
        }
        let digest = is_whole.then(|| Digest::of(&existing.bytes));
        self.history.check(context.session, sandbox, path, &stat, digest).await?;
        Ok(NeededWrite::Replace)
    }
}

/// Maps `already_exists` to `read_required`: a file that just appeared was not read.
pub(super) fn map_already_exists(error: Error) -> Error {
    if error.code() != Code::AlreadyExists {
        return error;
    }
    Error::new(Code::ReadRequired, "the file was made by someone else just now; read it first").at("path")
}
