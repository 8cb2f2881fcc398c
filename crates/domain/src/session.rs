//! Sessions and the rules of ownership.
//!
//! [`Head`] is the small part of a session that changes with every run: who owns it, under which epoch, how many
//! runs wait, which cursor comes next. Stores load it under a lock, let it decide, and write it back; all rules of
//! who may do what are here and nowhere else.

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

/// Counts the owners a session has had. A write carries the epoch it was made under; an older one is refused.
pub type Epoch = i64;

/// What a worker holds while it owns a session, and shows with every write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fence {
    pub tenant: TenantId,
    pub session: SessionId,
    pub worker: WorkerId,
    pub epoch: Epoch,
}

/// Whether the owner recorded in a session still holds its lease, by the database's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Nobody,
    Alive {
        worker: WorkerId,
        lease_left: Duration,
    },
    /// The lease ended: whoever this was has killed what it started.
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

/// The part of a session that decides about runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub tenant: TenantId,
    pub session: SessionId,
    pub pool: Pool,
    pub closed: bool,
    pub epoch: Epoch,
    pub owner: Owner,
    /// The run its owner executes, or executed when it died.
    pub current: Option<RunId>,
    /// Runs without a terminal state, the current one included.
    pub pending: i64,
    pub last_seq: i64,
    pub last_cursor: Cursor,
    /// The newest commit of an owner. An owner writes one thing after the other, so only this one can be repeated.
    pub last_commit: Option<CommitId>,
}

/// Whether a write of an owner is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    New,
    /// It was done before and only the answer was lost: answered again, not done again.
    Repeated,
}

/// What became of a request for ownership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimDecision {
    Granted {
        fence: Fence,
    },
    /// A live worker owns it. Ask again when its lease could have ended.
    Refused {
        owner: WorkerId,
        retry_after: Duration,
    },
    /// No run waits.
    NothingToDo,
}

impl Head {
    /// Of a session in which nothing has happened yet.
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

    /// Takes a new run into the line and gives it its place.
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

    /// Whether the run with this place in line is the next one: nothing before it is unfinished.
    #[must_use]
    pub const fn is_first(&self, seq: i64) -> bool {
        self.last_seq - self.pending + 1 == seq
    }

    /// Takes the next `count` cursors and returns the first of them.
    pub fn take_cursors(&mut self, count: usize) -> Cursor {
        let first = self.last_cursor + 1;
        self.last_cursor += i64::try_from(count).unwrap_or(i64::MAX);
        first
    }

    /// Decides whether `worker` becomes the owner. Granting starts a new epoch, which fences off every earlier owner.
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

    /// Fails unless the fence is the newest one: the check behind every write of a worker.
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

    /// Decides about what an owner writes of its current run: refused under an old fence, done once under the newest one.
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

    /// The owner has ended its current run and goes on with the next one of the line, all in the same write.
    pub fn follow(&mut self, run: RunId) -> Result<()> {
        if self.current.is_some() || self.pending <= 0 || self.owner.worker().is_none() {
            return Err(Error::internal("a run cannot follow one that has not ended"));
        }
        self.current = Some(run);
        Ok(())
    }

    /// Counts one run as ended.
    pub fn retire(&mut self, run: RunId) {
        self.pending -= 1;
        if self.current == Some(run) {
            self.current = None;
        }
    }

    /// Ends an ownership: given up, or taken back from a dead worker. A current run goes back to the head of the line.
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
    /// The session that this one works for. Cancelling a tree of sessions follows these links downwards.
    pub parent: Option<SessionId>,
    /// A name of the caller's choice, unique within the tenant.
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
    /// Where its tools execute, as far as it was said.
    pub execution: ExecutionChoice,
    /// The agent that leads it; the workspace's default one when missing.
    pub agent: Option<String>,
    /// The model it was made with; its agent's when missing.
    pub model: Option<String>,
    pub permissions: SessionPermissions,
    /// How many sessions are above it.
    pub depth: u32,
    /// How much it and the sessions below it may spend, if that was said.
    pub budget: Option<Budget>,
}

impl Session {
    /// Names what can be edited of it as it is now: it changes with an edit, not with work.
    #[must_use]
    pub fn revision(&self) -> String {
        let Self { title, agent, model, permissions, .. } = self;
        // Texts and rules always have a form in JSON.
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

/// How a request names a session.
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
    fn a_takeover_fences_the_earlier_owner_off() {
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
    fn an_owner_follows_its_line_only_from_end_to_end() {
        let mut head = head();
        let (first, second) = (RunId::new(), RunId::new());
        head.admit(IfBusy::Enqueue, 10).unwrap();
        head.admit(IfBusy::Enqueue, 10).unwrap();
        assert!(head.follow(first).is_err(), "nobody owns it");
        granted(head.claim(WorkerId::new()));
        head.current = Some(first);
        assert!(head.follow(second).is_err(), "the first one goes on");
        head.retire(first);
        head.follow(second).unwrap();
        head.retire(second);
        assert_eq!((head.current, head.pending), (None, 0));
        assert!(head.follow(RunId::new()).is_err(), "there is none left");
    }

    #[test]
    fn the_same_worker_claiming_twice_fences_itself() {
        let mut head = head();
        head.admit(IfBusy::Enqueue, 10).unwrap();
        let worker = WorkerId::new();
        let old = granted(head.claim(worker));
        let new = granted(head.claim(worker));
        assert!(head.verify(&old).is_err());
        assert!(head.verify(&new).is_ok());
    }

    #[test]
    fn a_live_owner_is_never_overruled() {
        let mut head = head();
        head.admit(IfBusy::Enqueue, 10).unwrap();
        let owner = WorkerId::new();
        head.owner = Owner::Alive { worker: owner, lease_left: Duration::from_secs(7) };
        let decision = head.claim(WorkerId::new());
        assert_eq!(decision, ClaimDecision::Refused { owner, retry_after: Duration::from_secs(7) });
        assert_eq!(head.epoch, 0);
    }

    #[test]
    fn nothing_to_do_starts_no_epoch() {
        let mut head = head();
        assert_eq!(head.claim(WorkerId::new()), ClaimDecision::NothingToDo);
        assert_eq!(head.epoch, 0);
    }

    #[test]
    fn admission_keeps_order_and_says_why_not() {
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
    fn a_repeated_commit_is_answered_but_not_done_again() {
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
            "it may be what released the session"
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
