//! The scenarios of `loadtest bench`.

use clap::ValueEnum;

use crate::load::Work;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// Runs of one call that does nothing, over 1,000 sessions.
    Noop,
    /// The same, all in one session.
    HotSession,
    /// The same, over a million seeded sessions.
    ManySessions,
    /// Nine of ten runs do nothing; the others take 50 ms.
    Mixed,
    /// A command on the local backend.
    Bash,
    /// An agent run of five steps with a scripted model.
    Agent,
    /// Readers that follow sessions over HTTP: latency from the commit of an event to each reader. See `loadtest fanout`.
    Fanout,
    /// A command in a warm container, without servers. See `loadtest sandbox`.
    Sandbox,
    /// A million queued runs that are drained.
    Backlog,
}

impl Scenario {
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// The default number of sessions.
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

    /// The default number of queued runs.
    pub(super) fn queued(self) -> u64 {
        if self == Self::Backlog { 1_000_000 } else { 0 }
    }

    /// What its runs do. `fanout` and `sandbox` do not use this.
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
    pub(super) fn uses_client_loop(self) -> bool {
        !matches!(self, Self::Fanout | Self::Sandbox | Self::Backlog)
    }
}
