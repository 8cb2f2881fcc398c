//! `Glob`: finds files by name.

use std::sync::LazyLock;

use async_trait::async_trait;
use remuda_domain::{
    error::Result,
    tool::{CallSubject, DisplayFields, Effects, ForeignFormat, ResultDisplay, ToolDescriptor},
};
use remuda_sandbox::{GlobQuery, path};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    arguments::{field, parse, rename, schema_of},
    context::ToolContext,
    tool::{CallResult, Tool},
};

const MAX_FILES: usize = 100;

#[derive(Clone, Copy, Debug)]
pub struct Glob;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// Like `src/**/*.rs`, matched against paths beneath `path`. `*` stays within a directory, `**` does not.
    #[schemars(length(min = 1))]
    pattern: String,
    /// The directory to look in; the workspace if missing.
    path: Option<String>,
}

impl Arguments {
    fn parse(arguments: &Value) -> Result<Self> {
        let arguments: Self = parse(arguments)?;
        path::check(&field("pattern"), &arguments.pattern)?;
        arguments.path.as_deref().map_or(Ok(()), |path| path::check(&field("path"), path))?;
        Ok(arguments)
    }
}

/// The pattern and the directory of a search.
pub(super) fn search_headline(arguments: DisplayFields<'_>) -> Option<String> {
    let pattern = arguments.text("pattern")?;
    Some(arguments.text("path").map_or_else(|| pattern.clone(), |path| format!("{pattern} in {path}")))
}

/// A file in a list of files.
pub(super) fn item_text(item: &Value) -> String {
    item.as_str().map_or_else(|| item.to_string(), str::to_owned)
}

#[async_trait]
impl Tool for Glob {
    fn descriptor(&self) -> &ToolDescriptor {
        static DESCRIPTOR: LazyLock<ToolDescriptor> = LazyLock::new(|| ToolDescriptor {
            permission: "glob".into(),
            subject: |arguments| CallSubject::Search {
                path: arguments["path"].as_str().unwrap_or("."),
                filter: arguments["pattern"].as_str(),
            },
            foreign_names: &[(ForeignFormat::CodingCode, "search_files")],
            headline: search_headline,
            result: |output| {
                let files = output.lines("files", item_text);
                ResultDisplay::new([output.count("total", "file"), output.cut()], files)
            },
            ..ToolDescriptor::new("Glob", Effects::ReadOnly)
        });
        &DESCRIPTOR
    }

    fn description(&self) -> &str {
        "Finds files of the workspace by a pattern, newest first, at most 100. Hidden files and those that .gitignore \
         leaves out are found only if the pattern names them, as in `.github/**` or `target/*.json`."
    }

    fn schema(&self) -> Value {
        static SCHEMA: LazyLock<Value> = LazyLock::new(schema_of::<Arguments>);
        SCHEMA.clone()
    }

    fn validate(&self, arguments: &Value) -> Result<()> {
        Arguments::parse(arguments).map(drop)
    }

    async fn call(&self, arguments: &Value, context: &ToolContext) -> CallResult {
        let Arguments { pattern, path } = Arguments::parse(arguments)?;
        let path = path.unwrap_or_else(|| ".".to_owned());
        let query = GlobQuery { pattern, path, limit: MAX_FILES };
        let find = async { context.sandbox.get().await?.glob(query).await };
        let found = context.within_limits(find).await;
        let found = found.map_err(rename("pattern", "pattern")).map_err(rename("path", "path"))?;
        let mut answer = json!({
            "total": found.total,
            "truncated": found.total > found.paths.len(),
            "files": found.paths,
        });
        if found.incomplete {
            answer["incomplete"] = true.into();
        }
        Ok(answer)
    }
}
