//! Tasks of a worker: sessions that it is working on.

use crate::state::{RunIndex, SessionIndex};

/// A session that a worker is working on, and its progress.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Task {
    pub session: SessionIndex,
    /// Whether the broker still holds the token that was delivered. Acks name a token, so an ack of a removed one
    /// does not affect its successor.
    pub token_is_current: bool,
    pub origin: Origin,
    /// Runs ended under this grant.
    pub served: u8,
    pub phase: Phase,
}

/// How a task got its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// A token was delivered.
    Token,
    /// Granted when its run was submitted, or reclaimed by its owner. There is no token.
    Grant,
    /// Reclaimed without a free slot: it is claimed in order to be released.
    ReclaimWithoutSlot,
    /// A grant without a free slot: it is released, and the session does not become active.
    Declined,
}

impl Task {
    /// Whether another task of the same session has to wait.
    pub(crate) fn holds_session(&self) -> bool {
        match self.origin {
            Origin::Token | Origin::Grant => self.phase.holds_session(),
            Origin::ReclaimWithoutSlot => true,
            Origin::Declined => false,
        }
    }

    pub(crate) fn occupies_slot(&self) -> bool {
        matches!(self.origin, Origin::Token | Origin::Grant)
    }
}

/// What a task does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    Claim,
    /// Record that a call was announced but not finished.
    Interrupt(Grant, u8),
    Announce(Grant, u8),
    Start(Grant, u8),
    /// A tool process runs, or has been killed.
    Running(Grant, u8),
    /// Record the outcome of a call that is not the run's last.
    Record(Grant, u8),
    /// Commit the run's end.
    End(Grant),
    /// Release the session.
    Release(Grant),
    Ack,
    Recheck,
    Publish,
}

impl Phase {
    /// From claim to release: a second token of the session must not interfere, and an incarnation that has lost its
    /// lease drops the task immediately.
    pub(crate) fn holds_session(self) -> bool {
        !matches!(self, Self::Ack | Self::Recheck | Self::Publish)
    }

    /// The grant of the task, between claim and release.
    pub(crate) fn grant(mut self) -> Option<Grant> {
        self.grant_mut().copied()
    }

    pub(crate) fn grant_mut(&mut self) -> Option<&mut Grant> {
        match self {
            Self::Interrupt(grant, _)
            | Self::Announce(grant, _)
            | Self::Start(grant, _)
            | Self::Running(grant, _)
            | Self::Record(grant, _)
            | Self::End(grant)
            | Self::Release(grant) => Some(grant),
            Self::Claim | Self::Ack | Self::Recheck | Self::Publish => None,
        }
    }
}

/// What a claim granted: a run, and the epoch under which to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Grant {
    pub run: RunIndex,
    pub epoch: u8,
}

/// A live tool process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tool {
    pub session: SessionIndex,
    pub grant: Grant,
    pub call: u8,
}
