//! What is measured.

use clap::ValueEnum;

use crate::load::Work;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// Runs of one call that does nothing, over a thousand sessions.
    Noop,
    /// The same, all in one session.
    HotSession,
    /// The same, over a million sessions that were there before.
    ManySessions,
    /// Nine of ten runs do nothing, the others take 50 ms.
    Mixed,
    /// A command of the local backend.
    Bash,
    /// An agent with a rehearsed model: five steps.
    Agent,
    /// Readers that follow sessions over HTTP: from the commit of an event to each of them. See `loadtest fanout`.
    Fanout,
    /// A command in a container that is warm, without servers. See `loadtest sandbox`.
    Sandbox,
    /// A million queued runs, which are then worked off.
    Backlog,
}

impl Scenario {
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// How many sessions it is spread over, unless said otherwise.
    pub(super) fn sessions(self) -> usize {
        match self {
            Self::Noop | Self::Mixed => 1000,
            Self::HotSession | Self::Sandbox => 1,
            Self::ManySessions => 1_000_000,
            Self::Bash | Self::Agent => 256,
            Self::Fanout => 100,
            Self::Backlog => 10_000,
        }
    }

    /// How many runs are queued before, unless said otherwise.
    pub(super) fn queued(self) -> u64 {
        if self == Self::Backlog { 1_000_000 } else { 0 }
    }

    /// What its runs do. Those of `fanout` and `sandbox` are not runs of ours.
    pub(super) fn work(self) -> Work {
        match self {
            Self::Noop
            | Self::HotSession
            | Self::ManySessions
            | Self::Backlog
            | Self::Fanout
            | Self::Sandbox => Work::Noop,
            Self::Mixed => Work::Mixed { slow_ms: 50 },
            Self::Bash => Work::Bash { command: "true".into() },
            Self::Agent => Work::Message { text: "Read the notes.".into() },
        }
    }

    /// Whether clients submit runs in a loop.
    pub(super) fn is_looped(self) -> bool {
        !matches!(self, Self::Fanout | Self::Sandbox | Self::Backlog)
    }
}
