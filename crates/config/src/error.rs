//! Configuration errors.

use std::{fmt, path::PathBuf};

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    File(PathBuf),
    /// An environment variable.
    Variable(String),
    CommandLine,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::CommandLine => f.write_str("command line"),
        }
    }
}

/// One invalid setting, displayed as `worker.slots (REMUDA_WORKER__SLOTS): expected 1 to 4096`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The key, such as `worker.slots`. Empty if the problem concerns a whole file or variable.
    pub key: String,
    pub origin: Origin,
    /// What was expected, and what to do.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, origin, message } = self;
        if key.is_empty() {
            return write!(f, "{origin}: {message}");
        }
        write!(f, "{key} ({origin}): {message}")
    }
}

/// All problems of a configuration; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    problems: Vec<Problem>,
}

impl Error {
    pub(crate) fn one(problem: Problem) -> Self {
        Self { problems: vec![problem] }
    }

    /// `Ok` if there are no problems.
    pub(crate) fn unless_empty(problems: Vec<Problem>) -> Result<(), Self> {
        if problems.is_empty() { Ok(()) } else { Err(Self { problems }) }
    }

    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Self {
        Self { problems: vec![problem] }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid configuration")?;
        let one = self.problems.len() == 1;
        for problem in &self.problems {
            let lead = if one { ": " } else { "\n  " };
            write!(f, "{lead}{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}
