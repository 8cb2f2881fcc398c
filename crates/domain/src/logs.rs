//! What the processes of a fleet log, and how that is changed for a while.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    Timestamp,
    error::{Error, Result},
};

/// How long a change lasts when nobody says it.
pub const DEFAULT_LASTING: Duration = Duration::from_secs(15 * 60);
const SHORTEST: Duration = Duration::from_secs(1);
/// Nobody may forget for longer what they turned on. What is to stay belongs into the configuration.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    ControlPlane,
    Worker,
    Stream,
}

impl Role {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ControlPlane => "control-plane",
            Self::Worker => "worker",
            Self::Stream => "stream",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which processes are meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Processes {
    #[default]
    All,
    /// The control plane that answers.
    #[serde(rename = "self")]
    Answering,
    #[serde(untagged)]
    With(Role),
}

impl Processes {
    /// Whether a process with these roles is meant, other than the one that answers.
    #[must_use]
    pub fn include(self, roles: &[Role]) -> bool {
        match self {
            Self::All => true,
            Self::Answering => false,
            Self::With(role) => roles.contains(&role),
        }
    }
}

impl fmt::Display for Processes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::All => "all",
            Self::Answering => "self",
            Self::With(role) => role.as_str(),
        })
    }
}

impl FromStr for Processes {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "" => Self::All,
            "self" => Self::Answering,
            "control-plane" => Self::With(Role::ControlPlane),
            "worker" => Self::With(Role::Worker),
            "stream" => Self::With(Role::Stream),
            _ => {
                return Err(Error::invalid(
                    "only",
                    "expected control-plane, worker, stream or self, or nothing for all",
                ));
            }
        })
    }
}

/// How long a change may last.
pub fn check_lasting(lasts: Duration) -> Result<()> {
    if (SHORTEST..=LONGEST).contains(&lasts) {
        return Ok(());
    }
    Err(Error::invalid("lasts", "expected a time between one second and 24 hours"))
}

/// A wish to log more, less or something else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogChange {
    /// `None`: what the process started with.
    pub filter: Option<String>,
    pub lasts: Duration,
    pub only: Processes,
    /// Who wants it.
    pub by: String,
}

/// What a process logs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogReport {
    /// Names the process among all others, as its lines do.
    pub process: String,
    pub host: String,
    pub roles: Vec<Role>,
    pub filter: String,
    /// What it started with, and goes back to.
    pub start: String,
    /// When it does.
    pub until: Option<Timestamp>,
}

/// What processes tell all others. It may be lost, and nothing depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "notice", rename_all = "snake_case")]
pub enum Notice {
    /// Log otherwise, and say so.
    ChangeLog { question: Uuid, from: String, change: LogChange },
    /// Say what you log.
    AskLog { question: Uuid, from: String, only: Processes },
    /// The answer to both.
    LogFilter { question: Uuid, report: LogReport },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_read_as_they_are_written() {
        for text in ["self", "control-plane", "worker", "stream"] {
            let read: Processes = text.parse().unwrap();
            assert_eq!(read.to_string(), text);
            assert_eq!(serde_json::to_string(&read).unwrap(), format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<Processes>(&format!("\"{text}\"")).unwrap(), read);
        }
        assert_eq!("".parse::<Processes>().unwrap(), Processes::All);
        assert_eq!(serde_json::from_str::<Processes>("\"all\"").unwrap(), Processes::All);
        assert_eq!("workers".parse::<Processes>().unwrap_err().field(), Some("only"));
        assert!(Processes::With(Role::Worker).include(&[Role::Stream, Role::Worker]));
        assert!(!Processes::With(Role::Worker).include(&[Role::Stream]));
    }

    #[test]
    fn nothing_lasts_for_ever() {
        check_lasting(DEFAULT_LASTING).unwrap();
        for bad in [Duration::ZERO, Duration::from_millis(999), LONGEST + SHORTEST, Duration::MAX] {
            assert_eq!(check_lasting(bad).unwrap_err().field(), Some("lasts"), "{bad:?}");
        }
    }
}
