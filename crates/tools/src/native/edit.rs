//! `Edit`: replaces text within a file.

mod diff;

use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use memchr::memmem;
use remuda_domain::{
    error::{Code, Error, Result},
    tool::{CallSubject, Effects, ForeignFormat, ResultBody, ResultDisplay, ToolDescriptor},
};
use remuda_sandbox::{ByteRange, MAX_READ_BYTES, Sandbox, WriteMode, path};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::write::map_already_exists;
use crate::{
    arguments::{field, parse, rename, schema_of},
    context::ToolContext,
    read_history::{Digest, ReadHistory},
    tool::{CallResult, Tool},
};

#[derive(Clone, Debug)]
pub struct Edit {
    history: ReadHistory,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// A path within the workspace.
    #[schemars(length(min = 1))]
    file_path: String,
    /// The text to replace, exactly as it is in the file, line ends included. Empty to create a file that does not exist.
    old_string: String,
    /// What to put in its place. Must differ.
    new_string: String,
    /// Replace every occurrence. Without it, there must be exactly one.
    #[serde(default)]
    replace_all: bool,
}

impl Arguments {
    fn parse(arguments: &Value) -> Result<Self> {
        let arguments: Self = parse(arguments)?;
        path::check(&field("file_path"), &arguments.file_path)?;
        if arguments.old_string == arguments.new_string {
            return Err(Error::invalid(field("new_string"), "expected something else than old_string"));
        }
        Ok(arguments)
    }
}

/// New contents of the file, and the description of the change.
struct Change {
    contents: Vec<u8>,
    replacements: usize,
    diff: String,
    mode: WriteMode,
}

#[async_trait]
impl Tool for Edit {
    fn descriptor(&self) -> &ToolDescriptor {
        static DESCRIPTOR: LazyLock<ToolDescriptor> = LazyLock::new(|| ToolDescriptor {
            permission: "edit".into(),
            subject: |arguments| CallSubject::Path(arguments["file_path"].as_str()),
            foreign_names: &[
                (ForeignFormat::OpenHarness, "edit_file"),
                (ForeignFormat::OpenHarness, "notebook_edit"),
                (ForeignFormat::CodingCode, "edit_file"),
            ],
            headline: |arguments| arguments.text("file_path"),
            result: |output| {
                let diff = output.0["diff"].as_str().map(|diff| ResultBody::Diff(diff.to_owned()));
                let summary = [output.count("replacements", "replacement")];
                ResultDisplay::new(summary, diff.unwrap_or_default())
            },
            ..ToolDescriptor::new("Edit", Effects::Mutating)
        });
        &DESCRIPTOR
    }

    fn description(&self) -> &str {
        "Replaces text in a file of the workspace. The file must have been read in this session. old_string must occur \
         exactly once, or replace_all be set; without the line numbers that Read shows. Line ends are kept as they are."
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
        let path = arguments.file_path.as_str();
        let prepare = self.prepare(context, &arguments);
        let (sandbox, change) = context.within_limits(prepare).await.map_err(rename("path", "file_path"))?;
        let Change { contents, replacements, diff, mode } = change;
        let digest = Digest::of(&contents);
        // Not cancellable from here on: a write abandoned halfway could still happen after the call.
        let written = sandbox.write_file(path, contents, mode).await;
        written.map_err(map_already_exists).map_err(rename("path", "file_path"))?;
        if let Ok(stat) = sandbox.stat(path).await {
            self.history.record(context.session, &*sandbox, path, &stat, Some(digest)).await;
        }
        let created = mode == WriteMode::CreateNew;
        Ok(json!({ "replacements": replacements, "created": created, "diff": diff }))
    }
}

impl Edit {
    pub(crate) fn new(history: ReadHistory) -> Self {
        Self { history }
    }

    async fn prepare(
        &self,
        context: &ToolContext,
        arguments: &Arguments,
    ) -> Result<(Arc<dyn Sandbox>, Change)> {
        let sandbox = context.sandbox.get().await?;
        let path = arguments.file_path.as_str();
        let stat = match sandbox.stat(path).await {
            Err(error) if error.code() == Code::FileNotFound && arguments.old_string.is_empty() => {
                return Ok((sandbox, create(&arguments.new_string)));
            }
            result => result?,
        };
        let existing = sandbox.read_file(path, ByteRange::first(MAX_READ_BYTES)).await?;
        if existing.size > existing.bytes.len() as u64 {
            let message = format!("{} bytes, at most {MAX_READ_BYTES} can be edited", existing.size);
            return Err(Error::new(Code::TooLarge, message).at("path"));
        }
        if arguments.old_string.is_empty() {
            return Err(Error::invalid(
                field("old_string"),
                "expected text to replace, because the file exists",
            ));
        }
        let digest = Digest::of(&existing.bytes);
        self.history.check(context.session, &*sandbox, path, &stat, Some(digest)).await?;
        let change = replace(&existing.bytes, arguments)?;
        Ok((sandbox, change))
    }
}

fn create(text: &str) -> Change {
    let contents = text.as_bytes().to_vec();
    let diff = diff::unified(b"", &[0], 0, &contents);
    Change { contents, replacements: 0, diff, mode: WriteMode::CreateNew }
}

fn replace(contents: &[u8], arguments: &Arguments) -> Result<Change> {
    let (old, new) = (arguments.old_string.as_bytes(), arguments.new_string.as_bytes());
    let starts: Vec<usize> = memmem::find_iter(contents, old).collect();
    match starts.as_slice() {
        [] => return Err(no_match(contents, &arguments.old_string)),
        _ if arguments.replace_all => {}
        [first] if memmem::find(&contents[first + 1..], old).is_none() => {}
        starts => {
            let count = starts.len().max(2);
            let message = format!("found {count} times; give more of the text around it, or set replace_all");
            return Err(Error::new(Code::SeveralMatches, message).at(field("old_string")));
        }
    }
    let size = contents.len() - starts.len() * old.len() + starts.len().saturating_mul(new.len());
    if size as u64 > MAX_READ_BYTES {
        let message = format!("the file would have {size} bytes, at most {MAX_READ_BYTES} can be edited");
        return Err(Error::new(Code::TooLarge, message).at(field("new_string")));
    }
    let mut changed = Vec::with_capacity(size);
    let mut done = 0;
    for start in &starts {
        changed.extend_from_slice(&contents[done..*start]);
        changed.extend_from_slice(new);
        done = start + old.len();
    }
    changed.extend_from_slice(&contents[done..]);
    let diff = diff::unified(contents, &starts, old.len(), new);
    Ok(Change { contents: changed, replacements: starts.len(), diff, mode: WriteMode::Overwrite })
}

fn no_match(contents: &[u8], old: &str) -> Error {
    // `Read` does not show line terminators, so this mistake is likely.
    let crlf = old.replace("\r\n", "\n").replace('\n', "\r\n");
    let hint = if crlf != old && memmem::find(contents, crlf.as_bytes()).is_some() {
        "; the lines of this file end with \\r\\n"
    } else {
        ""
    };
    Error::new(Code::NoMatch, format!("not found in the file{hint}")).at(field("old_string"))
}
