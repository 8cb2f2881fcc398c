//! What is wrong with a definition, and where.

use std::fmt;

use serde::Serialize;

/// One thing that could not be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// As seen from the workspace's root, or absolute if it lies elsewhere.
    pub file: String,
    /// From 1; 0 when the whole file is meant.
    pub line: usize,
    /// From 1; 0 when the whole line is meant.
    pub column: usize,
    /// The agent, model or skill that is missing because of it.
    pub subject: Option<String>,
    /// What was found and what was expected.
    pub message: String,
    pub severity: Severity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It is used, but probably not as meant.
    Warning,
    /// It is not used.
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
