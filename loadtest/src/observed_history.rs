//! The observed history of a test: the only input of the checker.
//!
//! Everything runs on one machine, so the times of the driver and of the tools' journal come from one wall clock, in
//! microseconds. Times written by a server are only hints, because a fault may set a server's clock wrong.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use remuda_domain::RunState;

/// Microseconds since 1970.
pub(crate) type Micros = i64;

/// The current time.
pub(crate) fn now() -> Micros {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    micros(since)
}

pub(crate) fn micros(duration: Duration) -> Micros {
    Micros::try_from(duration.as_micros()).unwrap_or(Micros::MAX)
}

/// Everything that was observed in a test.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) submits: Vec<Submit>,
    pub(crate) cancels: Vec<Cancel>,
    /// Every run of the tested sessions, read from the servers after the load.
    pub(crate) runs: Vec<FinalRun>,
    /// The whole event stream of each session (by id), read after the load.
    pub(crate) streams: HashMap<Arc<str>, Vec<ObservedEvent>>,
    /// What subscribers received during the test.
    pub(crate) reader_logs: Vec<ReaderLog>,
    /// The side effects that tools recorded in the journal.
    pub(crate) effects: Vec<Effect>,
    /// Tool processes by the key of their run.
    pub(crate) processes: HashMap<String, Lifetime>,
}

/// One submit, including its retries.
#[derive(Clone, Debug)]
pub(crate) struct Submit {
    /// The idempotency key, which is also in the text of every script of the run.
    pub(crate) key: String,
    pub(crate) session: Arc<str>,
    /// Before the first attempt.
    pub(crate) sent: Micros,
    /// After the last attempt.
    pub(crate) answered: Micros,
    pub(crate) outcome: SubmitOutcome,
    /// What is expected of each call.
    pub(crate) calls: Vec<CallPlan>,
    pub(crate) expects: Expectation,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SubmitOutcome {
    Accepted {
        run: Arc<str>,
    },
    /// The server refused it with this code.
    Refused(String),
    /// No answer before the deadline: the run may or may not exist.
    Unknown(String),
}

/// What the checker needs to know about a submitted call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallPlan {
    /// The exit code of a call that writes into the journal.
    pub(crate) journal: Option<i32>,
    /// Calls of the same group may overlap.
    pub(crate) group: usize,
}

/// Ends that are allowed only if the run was planned for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expectation {
    pub(crate) may_fail: bool,
    pub(crate) may_time_out: bool,
    /// A cancel call or a later run with `if_busy = interrupt` may cancel it.
    pub(crate) may_be_cancelled: bool,
}

/// A request to cancel a run.
#[derive(Clone, Debug)]
pub(crate) struct Cancel {
    pub(crate) run: Arc<str>,
    pub(crate) requested: Micros,
}

/// A run as the API shows it after the test.
#[derive(Clone, Debug)]
pub(crate) struct FinalRun {
    pub(crate) id: Arc<str>,
    pub(crate) key: String,
    pub(crate) session: Arc<str>,
    pub(crate) seq: i64,
    pub(crate) state: RunState,
    pub(crate) failure_code: String,
    /// One per call; `None` where the API reports no outcome.
    pub(crate) outcomes: Vec<Option<Outcome>>,
    /// The outcomes stored in the durable steps, by index of the call.
    pub(crate) steps: Vec<(usize, Option<Outcome>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// `completed`, `failed`, `timed_out`, `cancelled`, `interrupted` or `skipped`.
    pub(crate) status: String,
    /// The exit code, if the call was a process that exited by itself.
    pub(crate) exit_code: Option<i64>,
    /// Whether a signal ended the process.
    pub(crate) signalled: bool,
}

/// One received event, reduced to what is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedEvent {
    pub(crate) cursor: i64,
    pub(crate) kind: EventKind,
    /// Empty for events of the session itself.
    pub(crate) run: Arc<str>,
    /// The server's time of the event.
    pub(crate) at: Micros,
    /// When the reader received it.
    pub(crate) received: Micros,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Started,
    /// Its worker handed it over.
    HandedOver,
    /// Its worker was lost.
    Lost,
    Ended(RunState),
    Other,
}

/// What one subscriber received, across all its connections.
#[derive(Clone, Debug)]
pub(crate) struct ReaderLog {
    pub(crate) reader: String,
    pub(crate) session: Arc<str>,
    /// The cursor it started after.
    pub(crate) after: i64,
    pub(crate) events: Vec<ObservedEvent>,
    /// Messages of servers that refused the reader's cursor as out of range.
    pub(crate) refused: Vec<String>,
}

/// One side effect: a line of the journal.
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

/// When processes of a run existed, found by scanning all processes periodically.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lifetime {
    pub(crate) pid: i32,
    pub(crate) last_seen: Micros,
    /// The first scan that found none; `None` while there is one.
    pub(crate) gone_by: Option<Micros>,
}
