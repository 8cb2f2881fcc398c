//! Questions about many files at once.

/// The most one answer says, whatever was asked for.
pub(crate) const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// Which files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GlobQuery {
    /// Like `src/**/*.rs`, matched against the path from `path` on.
    pub pattern: String,
    /// Where to look: a directory of the workspace.
    pub path: String,
    pub limit: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GlobAnswer {
    /// From the workspace on, newest first.
    pub paths: Vec<String>,
    /// How many there are in all.
    pub total: usize,
    /// The search was given up at its bound of files or time: there may be more.
    pub incomplete: bool,
}

/// Which lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrepQuery {
    /// A regular expression, as ripgrep has them.
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
    /// Of lines, files or counts, whatever the mode gives. `None` is as many as the bound of bytes allows.
    pub limit: Option<usize>,
    /// How many of them to leave out first.
    pub offset: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrepMode {
    /// The lines themselves.
    Content,
    FilesWithMatches,
    /// How many matching lines each file has.
    Count,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrepAnswer {
    /// By path; for [`GrepMode::FilesWithMatches`] newest first.
    pub matches: Vec<GrepMatch>,
    /// Something was left out, by the limit or by a bound.
    pub truncated: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrepMatch {
    pub path: String,
    /// From 1; `None` in the modes that show no lines.
    pub line: Option<u64>,
    /// Only around a match, not one itself.
    pub context: bool,
    /// The line without its end, or the count.
    pub text: String,
}
