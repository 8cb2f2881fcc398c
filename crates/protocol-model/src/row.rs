//! A session's row, and the production rules that change it.
//!
//! Like the SQL stores, the model keeps a session as a narrow row, loads it into a [`Head`] together with the state
//! of its owner's lease, lets the head decide, and writes it back. The rules are not here: they are those of
//! `remuda_domain::session::Head`, the code that runs in production.

use std::time::Duration;

use remuda_domain::{
    Fence, Head, Pool, RunId, SessionId, TenantId, WorkerId,
    run::IfBusy,
    session::{ClaimDecision, Owner},
};
use uuid::Uuid;

use crate::state::{Grant, IncarnationId, Lease, RunIndex};

/// More than any exploration submits: a full queue is not part of the protocol.
const MAX_PENDING: i64 = 100;

/// The columns of a session that determine ownership.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Row {
    pub owner: Option<IncarnationId>,
    pub epoch: u8,
    pub current: Option<RunIndex>,
    pub pending: u8,
    pub last_seq: u8,
}

/// Result of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimOutcome {
    Granted { epoch: u8 },
    Refused,
    NothingToDo,
}

impl Row {
    /// Adds a run to the queue. Returns whether a worker has to be woken: no owner is recorded.
    pub(crate) fn admit(&mut self) -> bool {
        let mut head = self.load(None);
        let admitted = head.admit(IfBusy::Enqueue, MAX_PENDING).is_ok();
        self.save(&head);
        admitted && head.owner == Owner::Nobody
    }

    /// Claims the session. `lease` is that of the recorded owner.
    pub(crate) fn claim(&mut self, incarnation: IncarnationId, lease: Option<Lease>) -> ClaimOutcome {
        let mut head = self.load(lease);
        let decision = head.claim(worker_id(incarnation));
        self.save(&head);
        match decision {
            ClaimDecision::Granted { .. } => ClaimOutcome::Granted { epoch: self.epoch },
            ClaimDecision::Refused { .. } => ClaimOutcome::Refused,
            ClaimDecision::NothingToDo => ClaimOutcome::NothingToDo,
        }
    }

    /// Whether a write under this grant comes from the owner.
    pub(crate) fn verify(&self, incarnation: IncarnationId, grant: Grant) -> bool {
        let head = self.load(None);
        let fence = Fence {
            tenant: head.tenant,
            session: head.session,
            worker: worker_id(incarnation),
            epoch: grant.epoch.into(),
        };
        head.verify(&fence).is_ok()
    }

    /// Ends a run.
    pub(crate) fn retire(&mut self, run: RunIndex) {
        let mut head = self.load(None);
        head.retire(run_id(run));
        self.save(&head);
    }

    /// Releases the session.
    pub(crate) fn release(&mut self) {
        let mut head = self.load(None);
        head.release();
        self.save(&head);
    }

    /// Without a `lease` the owner counts as expired: then only its id matters, as in the stores' `lock`.
    fn load(&self, lease: Option<Lease>) -> Head {
        let owner = match (self.owner, lease) {
            (None, _) => Owner::Nobody,
            (Some(incarnation), Some(Lease::Held)) => {
                Owner::Alive { worker: worker_id(incarnation), lease_left: Duration::from_secs(1) }
            }
            (Some(incarnation), _) => Owner::Expired { worker: worker_id(incarnation) },
        };
        Head {
            tenant: TenantId::from_uuid(Uuid::nil()),
            session: SessionId::from_uuid(Uuid::nil()),
            pool: Pool::default(),
            closed: false,
            epoch: self.epoch.into(),
            owner,
            current: self.current.map(run_id),
            pending: self.pending.into(),
            last_seq: self.last_seq.into(),
            last_cursor: 0,
            last_commit: None,
        }
    }

    fn save(&mut self, head: &Head) {
        self.owner = head.owner.worker().map(incarnation_id);
        self.epoch = small(head.epoch);
        self.current = head.current.map(|run| run.as_uuid().as_bytes()[15]);
        self.pending = small(head.pending);
        self.last_seq = small(head.last_seq);
    }
}

/// Saturates: no counter gets close within the bounds of a model, and a wrong one must not wrap into a right one.
fn small(count: i64) -> u8 {
    u8::try_from(count).unwrap_or(u8::MAX)
}

fn run_id(run: RunIndex) -> RunId {
    RunId::from_uuid(Uuid::from_u128(run.into()))
}

fn worker_id(incarnation: IncarnationId) -> WorkerId {
    WorkerId::from_uuid(Uuid::from_u128(
        u16::from_be_bytes([incarnation.worker, incarnation.incarnation]).into(),
    ))
}

fn incarnation_id(worker: WorkerId) -> IncarnationId {
    let uuid = worker.as_uuid();
    let [.., worker, incarnation] = *uuid.as_bytes();
    IncarnationId { worker, incarnation }
}
