//! A session's row, and the production rules that change it.
//!
//! Like the SQL stores, the model keeps a session as a narrow row, loads it into a [`Head`] with what is known of its
//! owner's lease, lets the head decide, and writes it back. The rules themselves are not here: they are
//! `remuda_domain::session::Head`'s, the very code that runs in production.

use std::time::Duration;

use remuda_domain::{
    Fence, Head, Pool, RunId, SessionId, TenantId, WorkerId,
    run::IfBusy,
    session::{ClaimDecision, Owner},
};
use uuid::Uuid;

use crate::state::{Grant, Lease, LifeId, RunIndex};

/// More than any exploration submits: a full queue is no part of the protocol.
const MAX_PENDING: i64 = 100;

/// The columns of a session that decide about ownership.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Row {
    pub owner: Option<LifeId>,
    pub epoch: u8,
    pub current: Option<RunIndex>,
    pub pending: u8,
    pub last_seq: u8,
}

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claimed {
    Granted { epoch: u8 },
    Refused,
    NothingToDo,
}

impl Row {
    /// Takes a run into the line. Returns whether a worker has to be woken: nobody is recorded as owner.
    pub(crate) fn admit(&mut self) -> bool {
        let mut head = self.load(None);
        let admitted = head.admit(IfBusy::Enqueue, MAX_PENDING).is_ok();
        self.save(&head);
        admitted && head.owner == Owner::Nobody
    }

    /// Asks for ownership. `lease` is that of the recorded owner.
    pub(crate) fn claim(&mut self, life: LifeId, lease: Option<Lease>) -> Claimed {
        let mut head = self.load(lease);
        let decision = head.claim(worker_id(life));
        self.save(&head);
        match decision {
            ClaimDecision::Granted { .. } => Claimed::Granted { epoch: self.epoch },
            ClaimDecision::Refused { .. } => Claimed::Refused,
            ClaimDecision::NothingToDo => Claimed::NothingToDo,
        }
    }

    /// Whether a write under this grant is the owner's.
    pub(crate) fn verify(&self, life: LifeId, grant: Grant) -> bool {
        let head = self.load(None);
        let fence = Fence {
            tenant: head.tenant,
            session: head.session,
            worker: worker_id(life),
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

    /// Makes the session nobody's.
    pub(crate) fn release(&mut self) {
        let mut head = self.load(None);
        head.release();
        self.save(&head);
    }

    /// Without a `lease` the owner counts as expired: then nothing but its name matters, as in the stores' `lock`.
    fn load(&self, lease: Option<Lease>) -> Head {
        let owner = match (self.owner, lease) {
            (None, _) => Owner::Nobody,
            (Some(life), Some(Lease::Held)) => {
                Owner::Alive { worker: worker_id(life), lease_left: Duration::from_secs(1) }
            }
            (Some(life), _) => Owner::Expired { worker: worker_id(life) },
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
        self.owner = head.owner.worker().map(life_id);
        self.epoch = small(head.epoch);
        self.current = head.current.map(|run| run.as_uuid().as_bytes()[15]);
        self.pending = small(head.pending);
        self.last_seq = small(head.last_seq);
    }
}

/// Saturates: within the bounds of a model no counter comes near, and a wrong one must not wrap into a right one.
fn small(count: i64) -> u8 {
    u8::try_from(count).unwrap_or(u8::MAX)
}

fn run_id(run: RunIndex) -> RunId {
    RunId::from_uuid(Uuid::from_u128(run.into()))
}

fn worker_id(life: LifeId) -> WorkerId {
    WorkerId::from_uuid(Uuid::from_u128(u16::from_be_bytes([life.worker, life.life]).into()))
}

fn life_id(worker: WorkerId) -> LifeId {
    let uuid = worker.as_uuid();
    let [.., worker, life] = *uuid.as_bytes();
    LifeId { worker, life }
}
