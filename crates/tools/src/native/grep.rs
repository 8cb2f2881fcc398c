//! `Grep`: finds lines in files.

use std::{fmt::Write as _, sync::LazyLock};

use async_trait::async_trait;
use remuda_domain::{
    error::Result,
    tool::{CallSubject, DisplayFields, Effects, ForeignFormat, ResultDisplay, ToolDescriptor},
};
use remuda_sandbox::{GrepMode, GrepQuery, GrepResult, path};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::glob::{item_text, search_headline};
use crate::{
    arguments::{field, parse, rename, schema_of},
    context::ToolContext,
    tool::{CallResult, Tool},
};

const DEFAULT_LIMIT: usize = 250;

#[derive(Clone, Copy, Debug)]
pub struct Grep;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// A regular expression, as ripgrep has them.
    #[schemars(length(min = 1))]
    pattern: String,
    /// The file or directory to search; the workspace if missing.
    path: Option<String>,
    /// Only files whose path matches, like `*.js` or `src/**/*.{ts,tsx}`; `!*.md` leaves files out.
    glob: Option<String>,
    /// Only files of this type: rust, py, js, go, ….
    #[serde(rename = "type")]
    file_type: Option<String>,
    /// What to answer: `content` shows lines, `files_with_matches` (the default) names files, newest first, `count` says
    /// how many lines of each file match.
    #[serde(default)]
    output_mode: OutputMode,
    /// Lines to show after each match. Only for `content`.
    #[serde(rename = "-A")]
    after: Option<usize>,
    /// Lines to show before each match. Only for `content`.
    #[serde(rename = "-B")]
    before: Option<usize>,
    /// Lines to show before and after each match (also accepted as `context`). Only for `content`.
    #[serde(rename = "-C", alias = "context")]
    around: Option<usize>,
    /// Show line numbers; true if missing. Only for `content`.
    #[serde(rename = "-n")]
    numbers: Option<bool>,
    /// Ignore case.
    #[serde(rename = "-i", default)]
    ignore_case: bool,
    /// How many lines, files or counts to answer; 250 if missing, 0 for as many as fit into an answer.
    head_limit: Option<usize>,
    /// How many of them to leave out first.
    #[serde(default)]
    offset: usize,
    /// Let the pattern match across lines, and `.` match line ends.
    #[serde(default)]
    multiline: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum OutputMode {
    Content,
    #[default]
    FilesWithMatches,
    Count,
}

impl Arguments {
    fn parse(arguments: &Value) -> Result<Self> {
        let arguments: Self = parse(arguments)?;
        arguments.path.as_deref().map_or(Ok(()), |path| path::check(&field("path"), path))?;
        Ok(arguments)
    }

    fn query(self) -> GrepQuery {
        GrepQuery {
            pattern: self.pattern,
            path: self.path.unwrap_or_else(|| ".".to_owned()),
            glob: self.glob,
            file_type: self.file_type,
            ignore_case: self.ignore_case,
            multiline: self.multiline,
            before: self.before.or(self.around).unwrap_or(0),
            after: self.after.or(self.around).unwrap_or(0),
            mode: match self.output_mode {
                OutputMode::Content => GrepMode::Content,
                OutputMode::FilesWithMatches => GrepMode::FilesWithMatches,
                OutputMode::Count => GrepMode::Count,
            },
            limit: match self.head_limit {
                None => Some(DEFAULT_LIMIT),
                Some(0) => None,
                limit => limit,
            },
            offset: self.offset,
        }
    }
}

fn for_people(output: DisplayFields<'_>) -> ResultDisplay {
    let files = output.length("files", "file").or_else(|| output.length("counts", "file"));
    let body = match output.list("files") {
        Some(_) => output.lines("files", item_text),
        None => output.lines("counts", |item| {
            format!("{}: {}", item["path"].as_str().unwrap_or_default(), item["count"])
        }),
    };
    ResultDisplay::new([output.count("lines", "line"), files, output.cut()], body)
}

#[async_trait]
impl Tool for Grep {
    fn descriptor(&self) -> &ToolDescriptor {
        static DESCRIPTOR: LazyLock<ToolDescriptor> = LazyLock::new(|| ToolDescriptor {
            permission: "grep".into(),
            subject: |arguments| CallSubject::Search {
                path: arguments["path"].as_str().unwrap_or("."),
                filter: arguments["glob"].as_str(),
            },
            foreign_names: &[(ForeignFormat::CodingCode, "search_code")],
            headline: search_headline,
            result: for_people,
            ..ToolDescriptor::new("Grep", Effects::ReadOnly)
        });
        &DESCRIPTOR
    }

    fn description(&self) -> &str {
        "Searches files of the workspace with a regular expression, as ripgrep does: not in binary or hidden files, nor \
         in those that .gitignore leaves out. Names the files unless output_mode asks for lines or counts."
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
        let (mode, numbers) = (arguments.output_mode, arguments.numbers.unwrap_or(true));
        let query = arguments.query();
        let search = async { context.sandbox.get().await?.grep(query).await };
        let found = context.within_limits(search).await;
        let renamed = [("pattern", "pattern"), ("path", "path"), ("glob", "glob"), ("file_type", "type")]
            .into_iter()
            .fold(found, |found, (from, to)| found.map_err(rename(from, to)));
        Ok(answer(renamed?, mode, numbers))
    }
}

fn answer(found: GrepResult, mode: OutputMode, numbers: bool) -> Value {
    let count = found.matches.len();
    match mode {
        OutputMode::Content => {
            json!({ "content": lines(&found, numbers), "lines": count, "truncated": found.truncated })
        }
        OutputMode::FilesWithMatches => {
            let files: Vec<String> = found.matches.into_iter().map(|file| file.path).collect();
            json!({ "files": files, "truncated": found.truncated })
        }
        OutputMode::Count => {
            let counts: Vec<Value> = found
                .matches
                .into_iter()
                .map(|file| json!({ "path": file.path, "count": file.text.parse::<u64>().unwrap_or(0) }))
                .collect();
            json!({ "counts": counts, "truncated": found.truncated })
        }
    }
}

/// Formats lines like ripgrep: `path:12:text` for matches, `path-13-text` for context, `--` between groups.
fn lines(found: &GrepResult, numbers: bool) -> String {
    let mut text = String::new();
    let has_context = found.matches.iter().any(|line| line.context);
    for (index, line) in found.matches.iter().enumerate() {
        let follows =
            index.checked_sub(1).and_then(|before| found.matches.get(before)).is_none_or(|before| {
                before.path == line.path && before.line.map(|number| number + 1) == line.line
            });
        if has_context && !follows {
            text.push_str("--\n");
        }
        let separator = if line.context { '-' } else { ':' };
        text.push_str(&line.path);
        text.push(separator);
        if let (true, Some(number)) = (numbers, line.line) {
            // Writing to a string cannot fail.
            let _infallible = write!(text, "{number}{separator}");
        }
        text.push_str(&line.text);
        text.push('\n');
    }
    // Files with a NUL byte are skipped as binary, but UTF-16 can contain the character, which cannot be
    // stored.
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text }
}
