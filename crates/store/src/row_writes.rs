//! Row types for inserts and updates, collected during a transaction.

use std::time::Duration;

use remuda_domain::{
    RunState,
    budget::{Amount, Limit, Spent},
    run::ParkReason,
};
use uuid::Uuid;

use crate::{shared_text::SharedText, time::DbTime};

written_row! {
    /// The events that one commit appends to a session, stored as one row.
    struct Chunk in events {
        Set session_id: Uuid => uuid,
        Set last_cursor: i64 => bigint,
        Set chunk: SharedText => text,
        /// The session's chunk before it and whether it is in an index. If both are null, a trigger sets them and the
        /// end of the session's list.
        Sqlite previous: Option<i64> => bigint,
        Sqlite landmark: Option<bool> => boolean,
    }
}

written_row! {
    /// A label of a run, for lists of runs by label.
    struct LabelInsert in run_labels {
        Guard session_id: Uuid => uuid,
        Set tenant_id: Uuid => uuid,
        Set key: String => text,
        Set value: String => text,
        Set run_id: Uuid => uuid,
    }
}

/// The session of a child run to insert. The other columns are copied from its parent.
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

/// An approval to insert.
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

/// A budget to insert, of a run or a session.
#[derive(Debug)]
pub(crate) struct BudgetInsert {
    pub(crate) id: Uuid,
    pub(crate) tenant: Uuid,
    /// The budget that covers this one.
    pub(crate) parent: Option<Uuid>,
    pub(crate) limit: Limit,
    pub(crate) spent: Amount,
}

/// What a model call of a run cost.
#[derive(Debug)]
pub(crate) struct SpentWrite {
    pub(crate) run: Uuid,
    pub(crate) spent: Spent,
}

/// A run that its owner releases: it is queued again, or parked.
#[derive(Debug)]
pub(crate) struct RunRelease {
    pub(crate) id: Uuid,
    pub(crate) started_at: Option<DbTime>,
    pub(crate) lost_attempts: i32,
    /// Total time of all attempts.
    pub(crate) worked: Duration,
    pub(crate) parked: Option<ParkWrite>,
}

/// What a parked run waits for.
#[derive(Debug)]
pub(crate) struct ParkWrite {
    pub(crate) reason: ParkReason,
    pub(crate) at: DbTime,
    /// Child runs and approvals.
    pub(crate) awaited: Vec<Uuid>,
    /// How many of them must be finished.
    pub(crate) needed: Option<i32>,
    /// The amount that could not be reserved.
    pub(crate) amount: Option<Amount>,
}

impl RunRelease {
    pub(crate) fn state(&self) -> i16 {
        if self.parked.is_some() { RunState::Parked.to_db() } else { RunState::Queued.to_db() }
    }
}

/// A cancellation request to record.
#[derive(Debug)]
pub(crate) struct CancelMark {
    pub(crate) run: Uuid,
    pub(crate) at: DbTime,
    pub(crate) reason: String,
}

/// A step to insert or replace.
#[derive(Debug)]
pub(crate) struct StepWrite {
    pub(crate) run: Uuid,
    pub(crate) id: Uuid,
    pub(crate) position: i32,
    pub(crate) json: String,
}

/// A message to insert.
#[derive(Debug)]
pub(crate) struct MessageWrite {
    pub(crate) id: Uuid,
    pub(crate) session: Uuid,
    pub(crate) run: Uuid,
    pub(crate) role: &'static str,
    pub(crate) agent: Option<String>,
    pub(crate) parts: String,
    pub(crate) created_at: DbTime,
    /// The session's last cursor before the commit.
    pub(crate) position: i64,
    /// Index among the messages of the same commit.
    pub(crate) ordinal: i32,
}

/// A text to store under its hash.
#[derive(Debug)]
pub(crate) struct ContentWrite {
    pub(crate) tenant: Uuid,
    pub(crate) hash: [u8; 32],
    pub(crate) body: String,
}
