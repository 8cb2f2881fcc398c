//! What happened in a test, as seen from outside. The checker judges nothing else.
//!
//! Everything runs on one machine, so all times are those of its one wall clock, in microseconds: the driver's, and the
//! ones that tools write into their journal. Times that a server wrote are hints only, because a fault may be a server
//! whose clock is wrong.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use remuda_domain::RunState;

/// Microseconds since 1970.
pub(crate) type Micros = i64;

/// The present.
pub(crate) fn now() -> Micros {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    micros(since)
}

pub(crate) fn micros(duration: Duration) -> Micros {
    Micros::try_from(duration.as_micros()).unwrap_or(Micros::MAX)
}

/// A whole test.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) submits: Vec<Submit>,
    pub(crate) cancels: Vec<Cancel>,
    /// Every run that the servers know of the sessions under test, read when all was quiet.
    pub(crate) runs: Vec<FoundRun>,
    /// The whole event stream of each session (by id), read when all was quiet.
    pub(crate) streams: HashMap<Arc<str>, Vec<Seen>>,
    /// What subscribers saw while the test ran.
    pub(crate) readings: Vec<Reading>,
    /// What tools did, by their own account.
    pub(crate) effects: Vec<Effect>,
    /// Tool processes by the key of their run.
    pub(crate) processes: HashMap<String, Lifetime>,
}

/// One run that was submitted, over as many attempts as it took.
#[derive(Clone, Debug)]
pub(crate) struct Submit {
    /// The idempotency key, which is also in the text of every script of the run.
    pub(crate) key: String,
    pub(crate) session: Arc<str>,
    /// Before the first attempt.
    pub(crate) sent: Micros,
    /// After the last.
    pub(crate) answered: Micros,
    pub(crate) answer: Answer,
    /// What is expected of each call.
    pub(crate) calls: Vec<CallPlan>,
    pub(crate) expects: Expectation,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Accepted {
        run: Arc<str>,
    },
    /// The server said no, with this code.
    Refused(String),
    /// No answer within the submit's own time: the run may or may not exist.
    Unknown(String),
}

/// What the checker has to know of a submitted call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallPlan {
    /// Whether it writes into the journal, and the exit code it then ends with.
    pub(crate) journal: Option<i32>,
    /// Calls of the same group may overlap.
    pub(crate) group: usize,
}

/// Ways to end that need a reason: without it they are wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expectation {
    pub(crate) may_fail: bool,
    pub(crate) may_time_out: bool,
    /// Somebody may cancel it: a cancel call, or a later run with `if_busy = interrupt`.
    pub(crate) may_be_cancelled: bool,
}

/// A request to stop a run.
#[derive(Clone, Debug)]
pub(crate) struct Cancel {
    pub(crate) run: Arc<str>,
    pub(crate) requested: Micros,
}

/// A run as the API shows it at the end.
#[derive(Clone, Debug)]
pub(crate) struct FoundRun {
    pub(crate) id: Arc<str>,
    pub(crate) key: String,
    pub(crate) session: Arc<str>,
    pub(crate) seq: i64,
    pub(crate) state: RunState,
    pub(crate) failure_code: String,
    /// One for each call; missing where nobody says what became of it.
    pub(crate) outcomes: Vec<Option<Outcome>>,
    /// The outcomes that the durable steps hold, by index of the call.
    pub(crate) steps: Vec<(usize, Option<Outcome>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// completed, failed, timed_out, cancelled, interrupted or skipped.
    pub(crate) status: String,
    /// The exit code, if the call was a process that exited by itself.
    pub(crate) exit_code: Option<i64>,
    /// Whether a signal ended the process.
    pub(crate) signalled: bool,
}

/// One event, reduced to what is judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) cursor: i64,
    pub(crate) kind: EventKind,
    /// Empty for events of the session itself.
    pub(crate) run: Arc<str>,
    /// When the server says it happened.
    pub(crate) at: Micros,
    /// When the reader got it.
    pub(crate) received: Micros,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Started,
    /// Its worker gave it up for another to go on.
    HandedOver,
    /// Its worker was lost.
    Lost,
    Ended(RunState),
    Other,
}

/// What one subscriber got, across all its reconnects.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) reader: String,
    pub(crate) session: Arc<str>,
    /// The cursor it started after.
    pub(crate) after: i64,
    pub(crate) seen: Vec<Seen>,
    /// Times that a server said the reader's own cursor lies in the future.
    pub(crate) refused: Vec<String>,
}

/// One line of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    pub(crate) at: Micros,
    pub(crate) key: String,
    pub(crate) call: usize,
    pub(crate) mark: Mark,
    pub(crate) pid: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Start,
    Tick,
    End,
}

/// When processes of a run were there, by looking at all processes again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lifetime {
    pub(crate) pid: i32,
    pub(crate) last_seen: Micros,
    /// The first look that found none; missing while there is one.
    pub(crate) gone_by: Option<Micros>,
}
