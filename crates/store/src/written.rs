//! Rows as they are written.

use std::sync::Arc;

use remuda_domain::{
    RunState,
    budget::{Amount, Limit, Spent},
    run::ParkReason,
};
use uuid::Uuid;

use crate::time::DbTime;

/// One commit's events of a session as one row.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) session: Uuid,
    pub(crate) last_cursor: i64,
    pub(crate) json: Arc<str>,
}

/// A run as it is inserted.
#[derive(Debug)]
pub(crate) struct RunInsert {
    pub(crate) id: Uuid,
    pub(crate) tenant: Uuid,
    pub(crate) session: Uuid,
    pub(crate) seq: i64,
    pub(crate) input: String,
    pub(crate) timeout_ms: i64,
    pub(crate) created_at: DbTime,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) traceparent: Option<String>,
    pub(crate) parent: Option<Uuid>,
    pub(crate) budget: Option<Uuid>,
    pub(crate) awaited_by: Option<Uuid>,
}

/// A session of a child run as it is inserted. What it does not say is its parent's.
#[derive(Debug)]
pub(crate) struct ChildInsert {
    pub(crate) id: Uuid,
    pub(crate) parent: Uuid,
    pub(crate) title: String,
    pub(crate) agent: String,
    pub(crate) model: Option<String>,
    pub(crate) permissions: Option<String>,
    pub(crate) created_at: DbTime,
}

/// A question to people as it is inserted.
#[derive(Debug)]
pub(crate) struct ApprovalInsert {
    pub(crate) id: Uuid,
    pub(crate) tenant: Uuid,
    pub(crate) session: Uuid,
    pub(crate) run: Uuid,
    pub(crate) request: String,
    pub(crate) created_at: DbTime,
    pub(crate) expires_at: Option<DbTime>,
}

/// A limit as it is inserted, for a run or a session.
#[derive(Debug)]
pub(crate) struct BudgetInsert {
    pub(crate) id: Uuid,
    pub(crate) tenant: Uuid,
    /// The next budget above.
    pub(crate) parent: Option<Uuid>,
    pub(crate) limit: Limit,
    pub(crate) spent: Amount,
}

/// What a run's question cost.
#[derive(Debug)]
pub(crate) struct SpentWrite {
    pub(crate) run: Uuid,
    pub(crate) spent: Spent,
}

/// The end of a run as it is written.
#[derive(Debug)]
pub(crate) struct RunFinish {
    pub(crate) id: Uuid,
    pub(crate) state: i16,
    pub(crate) started_at: Option<DbTime>,
    pub(crate) finished_at: DbTime,
    pub(crate) failure: Option<String>,
    pub(crate) last_steps: Option<String>,
    /// Attempts that end with the run: none if nobody executed it.
    pub(crate) attempts: i32,
    pub(crate) lost_attempts: i32,
    pub(crate) stopped_at: Option<DbTime>,
    /// How long it was parked when it ended.
    pub(crate) paused_ms: i64,
}

/// A run that goes back to the head of its line, or waits there as data.
#[derive(Debug)]
pub(crate) struct RunReturn {
    pub(crate) id: Uuid,
    pub(crate) started_at: Option<DbTime>,
    pub(crate) lost_attempts: i32,
    pub(crate) parked: Option<ParkWrite>,
}

/// What a parked run waits for, as it is written.
#[derive(Debug)]
pub(crate) struct ParkWrite {
    pub(crate) reason: ParkReason,
    pub(crate) at: DbTime,
    /// Runs and approvals, and how many of them have to come.
    pub(crate) awaited: Vec<Uuid>,
    pub(crate) needed: Option<i32>,
    /// What could not be reserved.
    pub(crate) amount: Option<Amount>,
}

impl RunReturn {
    pub(crate) fn state(&self) -> i16 {
        if self.parked.is_some() { RunState::Parked.to_db() } else { RunState::Queued.to_db() }
    }
}

/// A request to stop, as it is written.
#[derive(Debug)]
pub(crate) struct CancelMark {
    pub(crate) run: Uuid,
    pub(crate) at: DbTime,
    pub(crate) reason: String,
}

/// A step as it is written.
#[derive(Debug)]
pub(crate) struct StepWrite {
    pub(crate) run: Uuid,
    pub(crate) id: Uuid,
    pub(crate) position: i32,
    pub(crate) json: String,
}

/// A message as it is written.
#[derive(Debug)]
pub(crate) struct MessageWrite {
    pub(crate) id: Uuid,
    pub(crate) session: Uuid,
    pub(crate) run: Uuid,
    pub(crate) role: &'static str,
    pub(crate) agent: Option<String>,
    pub(crate) parts: String,
    pub(crate) created_at: DbTime,
    /// The session's last cursor before it, and its place among those of the same commit.
    pub(crate) position: i64,
    pub(crate) ordinal: i32,
}

/// A text as it is written under its hash.
#[derive(Debug)]
pub(crate) struct ContentWrite {
    pub(crate) tenant: Uuid,
    pub(crate) hash: [u8; 32],
    pub(crate) body: String,
}
