//! Sessions and the rules of ownership.
//!
//! [`Head`] is the small part of a session that changes with every run: its owner, the epoch, how many runs wait,
//! which cursor comes next. Stores load it under a lock, let it decide, and write it back. All ownership rules are
//! here and nowhere else.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    Timestamp,
    budget::Budget,
    content::ContentHash,
    error::{Code, Error, Result},
    event::Cursor,
    execution::ExecutionChoice,
    ids::{CommitId, RunId, SessionId, TenantId, WorkerId, WorkspaceId},
    permission::SessionPermissions,
    pool::Pool,
    run::IfBusy,
};

/// Counts the owners a session has had. A write carries the epoch it was made under; writes of older epochs are
/// rejected.
pub type Epoch = i64;

/// Proof of ownership that a worker presents with every write to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fence {
    pub tenant: TenantId,
    pub session: SessionId,
    pub worker: WorkerId,
    pub epoch: Epoch,
}

/// The owner recorded in a session, and whether its lease is alive by the database's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Nobody,
    Alive {
        worker: WorkerId,
        lease_left: Duration,
    },
    /// The lease has expired: this worker has killed everything it started.
    Expired {
        worker: WorkerId,
    },
}

impl Owner {
    #[must_use]
    pub const fn worker(self) -> Option<WorkerId> {
        match self {
            Self::Nobody => None,
            Self::Alive { worker, .. } | Self::Expired { worker } => Some(worker),
        }
    }
}

/// The part of a session that decides on runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub tenant: TenantId,
    pub session: SessionId,
    pub pool: Pool,
    pub closed: bool,
    pub epoch: Epoch,
    pub owner: Owner,
    /// The run that the owner executes, or executed when it was lost.
    pub current: Option<RunId>,
    /// Runs without a terminal state, the current one included.
    pub pending: i64,
    pub last_seq: i64,
    pub last_cursor: Cursor,
    /// The newest commit of an owner. An owner commits sequentially, so only this one can be retried.
    pub last_commit: Option<CommitId>,
}

/// Whether a write of an owner has to be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    New,
    /// Applied before, and only the response was lost: respond again without applying it.
    Repeated,
}

/// Result of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimDecision {
    Granted {
        fence: Fence,
    },
    /// A live worker owns the session. Retry when its lease could have expired.
    Refused {
        owner: WorkerId,
        retry_after: Duration,
    },
    /// No run is waiting.
    NothingToDo,
}

impl Head {
    /// The head of a new session.
    #[must_use]
    pub const fn new(tenant: TenantId, session: SessionId, pool: Pool) -> Self {
        Self {
            tenant,
            session,
            pool,
            closed: false,
            epoch: 0,
            owner: Owner::Nobody,
            current: None,
            pending: 0,
            last_seq: 0,
            last_cursor: 0,
            last_commit: None,
        }
    }

    /// Adds a new run to the queue and returns its sequence number.
    pub fn admit(&mut self, if_busy: IfBusy, max_pending: i64) -> Result<i64> {
        if self.closed {
            return Err(Error::new(Code::SessionClosed, "the session is closed").at("session"));
        }
        if if_busy == IfBusy::Reject && self.pending > 0 {
            return Err(Error::new(
                Code::SessionBusy,
                format!("the session has {} unfinished runs and if_busy is reject", self.pending),
            ));
        }
        if self.pending >= max_pending {
            return Err(Error::new(
                Code::QueueFull,
                format!(
                    "the session already has {} unfinished runs, the limit is {max_pending}",
                    self.pending
                ),
            )
            .retry_after(Duration::from_secs(1)));
        }
        self.last_seq += 1;
        self.pending += 1;
        Ok(self.last_seq)
    }

    /// Whether the run with this sequence number is the next one: no unfinished run precedes it.
    #[must_use]
    pub const fn is_first(&self, seq: i64) -> bool {
        self.last_seq - self.pending + 1 == seq
    }

    /// Allocates the next `count` cursors and returns the first of them.
    pub fn take_cursors(&mut self, count: usize) -> Cursor {
        let first = self.last_cursor + 1;
        self.last_cursor += i64::try_from(count).unwrap_or(i64::MAX);
        first
    }

    /// Decides whether `worker` becomes the owner. A grant starts a new epoch, which fences off all earlier owners.
    pub fn claim(&mut self, worker: WorkerId) -> ClaimDecision {
        match self.owner {
            Owner::Alive { worker: owner, lease_left } if owner != worker => {
                ClaimDecision::Refused { owner, retry_after: lease_left }
            }
            _ if self.pending == 0 => ClaimDecision::NothingToDo,
            _ => {
                self.epoch += 1;
                self.owner = Owner::Alive { worker, lease_left: Duration::ZERO };
                let fence = Fence { tenant: self.tenant, session: self.session, worker, epoch: self.epoch };
                ClaimDecision::Granted { fence }
            }
        }
    }

    /// Fails unless the fence is the newest one. Every write of a worker is checked by this.
    pub fn verify(&self, fence: &Fence) -> Result<()> {
        let owns = self.owner.worker() == Some(fence.worker);
        if owns && self.epoch == fence.epoch && self.tenant == fence.tenant {
            return Ok(());
        }
        Err(Error::new(
            Code::OwnershipLost,
            format!("the write carries epoch {}, the session is at epoch {}", fence.epoch, self.epoch),
        ))
    }

    /// Decides on a write of the owner for its current run: rejected under an old fence, applied once under the
    /// newest.
    pub fn accept(&mut self, fence: &Fence, commit: CommitId, run: RunId) -> Result<Write> {
        if self.epoch == fence.epoch && self.last_commit == Some(commit) {
            return Ok(Write::Repeated);
        }
        self.verify(fence)?;
        if self.current != Some(run) {
            return Err(Error::new(Code::OwnershipLost, "the run is no longer the session's current one"));
        }
        self.last_commit = Some(commit);
        Ok(Write::New)
    }

    /// The owner has ended its current run and continues with the next one of the queue, in the same write.
    pub fn follow(&mut self, run: RunId) -> Result<()> {
        if self.current.is_some() || self.pending <= 0 || self.owner.worker().is_none() {
            return Err(Error::internal("a run cannot follow one that has not ended"));
        }
        self.current = Some(run);
        Ok(())
    }

    /// Counts a run as ended.
    pub fn retire(&mut self, run: RunId) {
        self.pending -= 1;
        if self.current == Some(run) {
            self.current = None;
        }
    }

    /// Ends an ownership: given up, or reclaimed from a lost worker. A current run returns to the head of the queue.
    pub fn release(&mut self) {
        self.owner = Owner::Nobody;
        self.current = None;
    }
}

/// A session as readers see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    pub id: SessionId,
    pub tenant: TenantId,
    pub workspace: WorkspaceId,
    /// The parent session. Cancelling a tree of sessions follows these links downwards.
    pub parent: Option<SessionId>,
    /// A name chosen by the caller, unique within the tenant.
    pub name: Option<String>,
    pub title: String,
    pub pool: Pool,
    pub status: SessionStatus,
    pub pending: i64,
    pub current: Option<RunId>,
    pub owner: Option<WorkerId>,
    pub epoch: Epoch,
    pub last_cursor: Cursor,
    pub created_at: Timestamp,
    /// Where its tools execute, as requested.
    pub execution: ExecutionChoice,
    /// The agent that leads it; the workspace's default if missing.
    pub agent: Option<String>,
    /// The model it was created with; its agent's if missing.
    pub model: Option<String>,
    pub permissions: SessionPermissions,
    /// Number of ancestors.
    pub depth: u32,
    /// Budget of the session and its descendants, if set.
    pub budget: Option<Budget>,
}

impl Session {
    /// Identifies the current version of the editable fields. It changes with an edit, not with work.
    #[must_use]
    pub fn revision(&self) -> String {
        let Self { title, agent, model, permissions, .. } = self;
        // Texts and rules can always be serialized as JSON.
        let editable = serde_json::to_string(&(title, agent, model, permissions)).unwrap_or_default();
        ContentHash::of(&editable).short()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionStatus {
    Open,
    Closed,
}

impl SessionStatus {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
        }
    }
}

/// How a request refers to a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionRef {
    Id(SessionId),
    Name(String),
}

/// A workspace as readers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workspace {
    pub id: WorkspaceId,
    pub tenant: TenantId,
    pub name: String,
    /// The directory on the worker.
    pub root: String,
    pub created_at: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        Head::new(TenantId::new(), SessionId::new(), Pool::default())
    }

    fn granted(decision: ClaimDecision) -> Fence {
        match decision {
            ClaimDecision::Granted { fence } => fence,
            other => panic!("not granted: {other:?}"),
        }
    }

    #[test]
    fn takeover_fences_off_the_previous_owner() {
        let mut head = head();
        head.admit(IfBusy::Enqueue, 10).unwrap();
        let (first, second) = (WorkerId::new(), WorkerId::new());
        let old = granted(head.claim(first));
        assert!(head.verify(&old).is_ok());
        head.owner = Owner::Expired { worker: first };
        let new = granted(head.claim(second));
        assert_eq!(head.verify(&old).unwrap_err().code(), Code::OwnershipLost);
        assert!(head.verify(&new).is_ok());
    }

    #[test]
    fn owner_continues_with_the_next_run_only_after_the_current_one_ended() {
        let mut head = head();
        let (first, second) = (RunId::new(), RunId::new());
        head.admit(IfBusy::Enqueue, 10).unwrap();
        head.admit(IfBusy::Enqueue, 10).unwrap();
        assert!(head.follow(first).is_err(), "the session has no owner");
        granted(head.claim(WorkerId::new()));
        head.current = Some(first);
        assert!(head.follow(second).is_err(), "the first run has not ended");
        head.retire(first);
        head.follow(second).unwrap();
        head.retire(second);
        assert_eq!((head.current, head.pending), (None, 0));
        assert!(head.follow(RunId::new()).is_err(), "no run is left");
    }

    #[test]
    fn second_claim_of_the_same_worker_fences_off_its_first() {
        let mut head = head();
        head.admit(IfBusy::Enqueue, 10).unwrap();
        let worker = WorkerId::new();
        let old = granted(head.claim(worker));
        let new = granted(head.claim(worker));
        assert!(head.verify(&old).is_err());
        assert!(head.verify(&new).is_ok());
    }

    #[test]
    fn claim_is_refused_while_the_owner_is_alive() {
        let mut head = head();
        head.admit(IfBusy::Enqueue, 10).unwrap();
        let owner = WorkerId::new();
        head.owner = Owner::Alive { worker: owner, lease_left: Duration::from_secs(7) };
        let decision = head.claim(WorkerId::new());
        assert_eq!(decision, ClaimDecision::Refused { owner, retry_after: Duration::from_secs(7) });
        assert_eq!(head.epoch, 0);
    }

    #[test]
    fn claim_without_runs_starts_no_epoch() {
        let mut head = head();
        assert_eq!(head.claim(WorkerId::new()), ClaimDecision::NothingToDo);
        assert_eq!(head.epoch, 0);
    }

    #[test]
    fn admission_keeps_order_and_names_the_reason_of_a_rejection() {
        let mut head = head();
        assert_eq!(head.admit(IfBusy::Reject, 2).unwrap(), 1);
        assert_eq!(head.admit(IfBusy::Reject, 2).unwrap_err().code(), Code::SessionBusy);
        assert_eq!(head.admit(IfBusy::Enqueue, 2).unwrap(), 2);
        assert_eq!(head.admit(IfBusy::Enqueue, 2).unwrap_err().code(), Code::QueueFull);
        head.closed = true;
        assert_eq!(head.admit(IfBusy::Enqueue, 9).unwrap_err().code(), Code::SessionClosed);
        assert_eq!((head.last_seq, head.pending), (2, 2));
    }

    #[test]
    fn repeated_commit_is_acknowledged_but_not_applied_again() {
        let mut head = head();
        head.admit(IfBusy::Enqueue, 10).unwrap();
        let fence = granted(head.claim(WorkerId::new()));
        let (run, first, second) = (RunId::new(), CommitId::new(), CommitId::new());
        assert_eq!(
            head.accept(&fence, first, run).unwrap_err().code(),
            Code::OwnershipLost,
            "not the current run"
        );
        head.current = Some(run);
        assert_eq!(head.accept(&fence, first, run).unwrap(), Write::New);
        assert_eq!(head.accept(&fence, first, run).unwrap(), Write::Repeated);
        assert_eq!(head.accept(&fence, second, run).unwrap(), Write::New);
        head.release();
        assert_eq!(
            head.accept(&fence, second, run).unwrap(),
            Write::Repeated,
            "it may have released the session"
        );
        assert_eq!(head.accept(&fence, first, run).unwrap_err().code(), Code::OwnershipLost);
        granted(head.claim(WorkerId::new()));
        assert_eq!(head.accept(&fence, second, run).unwrap_err().code(), Code::OwnershipLost);
    }

    #[test]
    fn cursors_are_contiguous() {
        let mut head = head();
        assert_eq!(head.take_cursors(3), 1);
        assert_eq!(head.take_cursors(1), 4);
        assert_eq!(head.last_cursor, 4);
    }
}
