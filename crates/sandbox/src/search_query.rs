//! Queries and results of the file searches: glob and grep.

/// The most one result contains, whatever limit was requested.
pub(crate) const MAX_RESULT_BYTES: usize = 1024 * 1024;

/// A search for files by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GlobQuery {
    /// A glob like `src/**/*.rs`, matched against paths relative to `path`.
    pub pattern: String,
    /// Directory of the workspace to search.
    pub path: String,
    pub limit: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GlobResult {
    /// Relative to the workspace, newest first.
    pub paths: Vec<String>,
    /// Number of all matches.
    pub total: usize,
    /// The search hit its limit of files or time: there may be more.
    pub incomplete: bool,
}

/// A search for lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrepQuery {
    /// A regular expression in ripgrep's syntax.
    pub pattern: String,
    /// A file or a directory of the workspace.
    pub path: String,
    /// Only files whose path or name matches.
    pub glob: Option<String>,
    /// Only files of a type that ripgrep knows: `rust`, `py`, ….
    pub file_type: Option<String>,
    pub ignore_case: bool,
    /// Patterns may match across lines.
    pub multiline: bool,
    pub before: usize,
    pub after: usize,
    pub mode: GrepMode,
    /// Maximum of lines, files or counts, depending on the mode. `None`: as many as the byte limit allows.
    pub limit: Option<usize>,
    /// Number of results to skip first.
    pub offset: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrepMode {
    /// The matching lines.
    Content,
    FilesWithMatches,
    /// The number of matching lines per file.
    Count,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrepResult {
    /// Ordered by path; for [`GrepMode::FilesWithMatches`] newest first.
    pub matches: Vec<GrepMatch>,
    /// Results were omitted because of the query's limit or a search limit.
    pub truncated: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrepMatch {
    pub path: String,
    /// Line number from 1; `None` in modes without lines.
    pub line: Option<u64>,
    /// A context line, not a match.
    pub context: bool,
    /// The line without its terminator, or the count.
    pub text: String,
}
