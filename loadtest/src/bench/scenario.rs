//! What is measured.

use clap::ValueEnum;

use crate::load::Work;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// Runs of one call that does nothing, over a thousand sessions.
    Noop,
    /// The same, all in one session.
    HotSession,
    /// Nine of ten runs do nothing, the others take 50 ms.
    Mixed,
    /// A command of the local backend.
    Bash,
    /// An agent with a rehearsed model: five steps.
    Agent,
}

impl Scenario {
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// How many sessions it is spread over, unless said otherwise.
    pub(super) fn sessions(self) -> usize {
        match self {
            Self::Noop | Self::Mixed => 1000,
            Self::HotSession => 1,
            Self::Bash | Self::Agent => 256,
        }
    }

    pub(super) fn work(self) -> Work {
        match self {
            Self::Noop | Self::HotSession => Work::Noop,
            Self::Mixed => Work::Mixed { slow_ms: 50 },
            Self::Bash => Work::Bash { command: "true".into() },
            Self::Agent => Work::Message { text: "Read the notes.".into() },
        }
    }
}
