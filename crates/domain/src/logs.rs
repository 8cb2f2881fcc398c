//! Log filters of the fleet's processes, and temporary changes to them.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    Timestamp,
    error::{Error, Result},
};

/// Default duration of a change.
pub const DEFAULT_LASTING: Duration = Duration::from_secs(15 * 60);
const MIN_DURATION: Duration = Duration::from_secs(1);
/// Upper limit, so that a forgotten change ends. Permanent changes belong in the configuration.
const MAX_DURATION: Duration = Duration::from_secs(24 * 60 * 60);

/// Role of a process.
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

/// Selects processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Processes {
    #[default]
    All,
    /// The control plane that handles the request.
    #[serde(rename = "self")]
    Answering,
    #[serde(untagged)]
    With(Role),
}

impl Processes {
    /// Whether a process with these roles is selected, other than the one that handles the request.
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

/// Checks the duration of a change.
pub fn check_lasting(lasts: Duration) -> Result<()> {
    if (MIN_DURATION..=MAX_DURATION).contains(&lasts) {
        return Ok(());
    }
    Err(Error::invalid("lasts", "expected a time between one second and 24 hours"))
}

/// A requested change of the log filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogChange {
    /// `None` restores the filter that the process started with.
    pub filter: Option<String>,
    pub lasts: Duration,
    pub only: Processes,
    /// Who requested it.
    pub by: String,
}

/// The log filter of one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogReport {
    /// Identifies the process, as in its log lines.
    pub process: String,
    pub host: String,
    pub roles: Vec<Role>,
    pub filter: String,
    /// The filter that it started with, and returns to.
    pub start: String,
    /// When it returns to it.
    pub until: Option<Timestamp>,
}

/// A broadcast message between processes. It may be lost, and nothing depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "notice", rename_all = "snake_case")]
pub enum Notice {
    /// Change the log filter, and report the result.
    ChangeLog { question: Uuid, from: String, change: LogChange },
    /// Report the log filter.
    AskLog { question: Uuid, from: String, only: Processes },
    /// The response to both.
    LogFilter { question: Uuid, report: LogReport },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_selection_parses_back_from_its_text() {
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
    fn changes_without_a_sensible_duration_are_rejected() {
        check_lasting(DEFAULT_LASTING).unwrap();
        for bad in [Duration::ZERO, Duration::from_millis(999), MAX_DURATION + MIN_DURATION, Duration::MAX] {
            assert_eq!(check_lasting(bad).unwrap_err().field(), Some("lasts"), "{bad:?}");
        }
    }
}
