//! Errors and warnings about definitions, with their position.

use std::fmt;

use serde::Serialize;

/// An error or a warning about a definition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Relative to the workspace, or absolute if it is elsewhere.
    pub file: String,
    /// From 1; 0 means the whole file.
    pub line: usize,
    /// From 1; 0 means the whole line.
    pub column: usize,
    /// The agent, model or skill that the problem is about.
    pub subject: Option<String>,
    /// What was found and what was expected.
    pub message: String,
    pub severity: Severity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The definition is used, but probably not as intended.
    Warning,
    /// The definition is not used.
    Error,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
            if self.column > 0 {
                write!(f, ":{}", self.column)?;
            }
        }
        write!(f, ": {}", self.message)
    }
}
