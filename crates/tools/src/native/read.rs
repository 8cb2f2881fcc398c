//! `Read`: shows a text file with line numbers, or an image.

mod kind;
mod window;

use std::sync::LazyLock;

use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use remuda_domain::{
    error::{Code, Error, Result},
    tool::{
        CallSubject, Effects, ForeignFormat, LongResults, ResultBody, ResultDisplay, ToolDescriptor, ToolRole,
    },
};
use remuda_sandbox::{ByteRange, FileContents, Sandbox, path};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use self::{
    kind::ContentKind,
    window::{DEFAULT_LINES, Window},
};
use crate::{
    arguments::{field, parse, rename, schema_of},
    context::ToolContext,
    read_history::{Digest, ReadHistory},
    tool::{CallResult, Tool},
};

/// Size of one read.
const CHUNK_BYTES: u64 = 1024 * 1024;
/// A larger file is read only as far as it is shown, and its lines are not counted.
const MAX_COUNTED_BYTES: u64 = 64 * 1024 * 1024;
/// A larger image is only described. As base64 it takes a mebibyte.
const MAX_IMAGE_BYTES: u64 = 768 * 1024;

#[derive(Clone, Debug)]
pub struct Read {
    history: ReadHistory,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// A path within the workspace.
    #[schemars(length(min = 1))]
    file_path: String,
    /// The first line to show, from 1.
    #[schemars(range(min = 1))]
    offset: Option<u64>,
    /// How many lines to show; 2000 if missing.
    #[schemars(range(min = 1))]
    limit: Option<u64>,
}

impl Arguments {
    fn parse(arguments: &Value) -> Result<Self> {
        let arguments: Self = parse(arguments)?;
        path::check(&field("file_path"), &arguments.file_path)?;
        for (name, value) in [("offset", arguments.offset), ("limit", arguments.limit)] {
            if value == Some(0) {
                return Err(Error::invalid(field(name), "expected 1 or more"));
            }
        }
        Ok(arguments)
    }

    fn window(&self) -> Window {
        Window::new(self.offset.unwrap_or(1), self.limit.unwrap_or(DEFAULT_LINES))
    }
}

#[async_trait]
impl Tool for Read {
    fn descriptor(&self) -> &ToolDescriptor {
        static DESCRIPTOR: LazyLock<ToolDescriptor> = LazyLock::new(|| ToolDescriptor {
            permission: "read".into(),
            subject: |arguments| CallSubject::Path(arguments["file_path"].as_str()),
            role: Some(ToolRole::ReadFiles),
            foreign_names: &[
                (ForeignFormat::OpenHarness, "read_file"),
                (ForeignFormat::CodingCode, "read_file"),
            ],
            long_results: LongResults::InFile,
            headline: |arguments| arguments.text("file_path"),
            result: |output| match output.text("kind").as_deref() {
                Some("image") => {
                    let summary = [output.text("media_type"), output.count("bytes", "byte")];
                    ResultDisplay::new(summary, ResultBody::Nothing)
                }
                _ => ResultDisplay::new(
                    [output.count("lines", "line"), output.cut()],
                    ResultBody::OutputIfFull,
                ),
            },
            ..ToolDescriptor::new("Read", Effects::ReadOnly)
        });
        &DESCRIPTOR
    }

    fn description(&self) -> &str {
        "Shows a text file of the workspace with line numbers, 2000 lines at a time unless told otherwise; an image is \
         returned as base64. A file has to be read before Write or Edit may change it."
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
        let read = async {
            let sandbox = context.sandbox.get().await?;
            let path = arguments.file_path.as_str();
            // Read before the contents: if they change in between, the history errs on the safe side.
            let stat = sandbox.stat(path).await?;
            let first = sandbox.read_file(path, ByteRange::first(CHUNK_BYTES)).await?;
            let (answer, digest) = match ContentKind::of(&first.bytes) {
                ContentKind::Image(media_type) => image(&*sandbox, path, media_type, first.size).await?,
                ContentKind::Binary(what) => return Err(not_text(what, first.size)),
                ContentKind::Text => text(&*sandbox, first, &arguments).await?,
            };
            self.history.record(context.session, &*sandbox, path, &stat, digest).await;
            Ok(answer)
        };
        Ok(context.within_limits(read).await.map_err(rename("path", "file_path"))?)
    }
}

impl Read {
    pub(crate) fn new(history: ReadHistory) -> Self {
        Self { history }
    }
}

fn not_text(what: &str, size: u64) -> Error {
    Error::new(Code::ToolFailed, format!("{what} of {size} bytes, not text")).at(field("file_path"))
}

async fn image(
    sandbox: &dyn Sandbox,
    path: &str,
    media_type: &str,
    size: u64,
) -> Result<(Value, Option<Digest>)> {
    let mut answer = json!({ "kind": "image", "media_type": media_type, "bytes": size });
    if size > MAX_IMAGE_BYTES {
        answer["truncated"] = true.into();
        return Ok((answer, None));
    }
    let contents = sandbox.read_file(path, ByteRange::first(MAX_IMAGE_BYTES)).await?;
    answer["data"] = STANDARD.encode(&contents.bytes).into();
    Ok((answer, Some(Digest::of(&contents.bytes))))
}

/// Reads the file from the beginning in chunks and keeps only what is shown.
async fn text(
    sandbox: &dyn Sandbox,
    first: FileContents,
    arguments: &Arguments,
) -> Result<(Value, Option<Digest>)> {
    let size = first.size;
    let counted = size <= MAX_COUNTED_BYTES;
    let (mut window, mut hasher) = (arguments.window(), Sha256::new());
    let (mut chunk, mut offset) = (first.bytes, 0);
    loop {
        offset += chunk.len() as u64;
        window.push(&chunk);
        if counted {
            hasher.update(&chunk);
        }
        if chunk.is_empty() || offset >= size || (!counted && window.is_over()) {
            break;
        }
        let range = ByteRange { offset, limit: CHUNK_BYTES };
        chunk = sandbox.read_file(&arguments.file_path, range).await?.bytes;
    }
    let at_end = offset >= size;
    let answer = window.finish(at_end)?;
    Ok((answer, (counted && at_end).then(|| Digest::finish(hasher))))
}
