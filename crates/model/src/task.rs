//! What a worker has in hand.

use crate::state::{RunIndex, SessionIndex};

/// A session in a worker's hands, and how far the work on it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Task {
    pub session: SessionIndex,
    /// Whether the broker still holds the very token that was delivered. Acks name a token, so an ack of one that is gone
    /// does not touch its successor.
    pub token_is_current: bool,
    pub origin: Origin,
    /// Runs ended under this grant.
    pub served: u8,
    pub phase: Phase,
}

/// How a task came by its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// A token was delivered.
    Token,
    /// It was granted when its run was submitted, or is claimed because it is the worker's own. There is no token.
    Grant,
    /// The same, without a free slot: it is claimed in order to be given back.
    OwnInExcess,
    /// A parcel for which there is no free slot: it is given back, and nobody holds the session for that.
    Declined,
}

impl Task {
    /// Whether another task of the same session has to wait.
    pub(crate) fn holds_session(&self) -> bool {
        match self.origin {
            Origin::Token | Origin::Grant => self.phase.holds_session(),
            Origin::OwnInExcess => true,
            Origin::Declined => false,
        }
    }

    pub(crate) fn has_slot(&self) -> bool {
        matches!(self.origin, Origin::Token | Origin::Grant)
    }
}

/// What a task does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    Claim,
    /// Record that a call was found announced but not finished.
    Interrupt(Grant, u8),
    Announce(Grant, u8),
    Start(Grant, u8),
    /// A tool process runs, or has been killed.
    Running(Grant, u8),
    /// Record the outcome of a call that is not the run's last.
    Record(Grant, u8),
    /// Commit the run's end.
    End(Grant),
    /// Give the session up.
    LetGo(Grant),
    Ack,
    Look,
    Publish,
}

impl Phase {
    /// From claim to release: what a second token of the session must not interfere with, and what a life that has lost
    /// its lease drops at once.
    pub(crate) fn holds_session(self) -> bool {
        !matches!(self, Self::Ack | Self::Look | Self::Publish)
    }

    /// Under what the task works, between claim and release.
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
            | Self::LetGo(grant) => Some(grant),
            Self::Claim | Self::Ack | Self::Look | Self::Publish => None,
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
