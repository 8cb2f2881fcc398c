//! What must hold. Each is decided from what was recorded, never from how long something took.

use std::collections::BTreeMap;

use remuda_domain::{Code, RunState, Timestamp};
use remuda_proto::v1;

use super::recording::{Accepted, CallTrace, SessionLog, Trace};

/// One expectation and whether it held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Check {
    /// Stable, for scripts.
    pub name: &'static str,
    pub text: String,
    /// What was seen instead. Empty when the expectation held.
    pub problems: Vec<String>,
}

impl Check {
    pub(super) fn new(name: &'static str, text: impl Into<String>, problems: Vec<String>) -> Self {
        Self { name, text: text.into(), problems }
    }

    pub(super) fn held(&self) -> bool {
        self.problems.is_empty()
    }
}

/// What was found out beside the event streams.
#[derive(Clone, Debug, Default)]
pub(super) struct Probes {
    /// The processes of the run that gets cancelled, seen alive before.
    pub pids: Vec<i32>,
    /// Those of them that live after.
    pub survivors: Vec<i32>,
    /// Why the run behind it did not start: the reason code that `explain` gave.
    pub explained: String,
    /// What another tenant was told about a session, beside what it is told about one that does not exist.
    pub foreign: Vec<(Answer, Answer)>,
    /// What a caller without a key was told.
    pub keyless: Option<Code>,
}

/// What a call that must be refused was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub call: &'static str,
    /// `None` when it was not refused.
    pub code: Option<Code>,
    pub message: String,
}

/// Every expectation.
pub(super) fn all(logs: &[SessionLog], probes: &Probes) -> Vec<Check> {
    vec![
        one_end_each(logs),
        serial(logs),
        parallel_sessions(logs),
        parallel_calls(logs),
        contiguous(logs),
        replay_equals_live(logs),
        failed(logs),
        cancelled(logs, probes),
        explained(probes),
        isolated(probes),
        keyless(probes),
    ]
}

fn one_end_each(logs: &[SessionLog]) -> Check {
    let mut problems = Vec::new();
    let mut count = 0;
    for (log, number, run) in runs(logs) {
        count += 1;
        let ends = log.trace(number - 1).ends;
        if ends != [run.fate] {
            let (expected, saw) = (run.fate, names(&ends));
            problems.push(format!("{} run {number}: expected {expected}, saw {saw}", log.title));
        }
    }
    let text = format!("{count} runs were accepted, and each ended exactly once and as planned");
    Check::new("one_terminal_event_per_run", text, problems)
}

fn runs(logs: &[SessionLog]) -> impl Iterator<Item = (&SessionLog, usize, &Accepted)> {
    logs.iter().flat_map(|log| log.runs.iter().enumerate().map(move |(index, run)| (log, index + 1, run)))
}

fn names(ends: &[RunState]) -> String {
    if ends.is_empty() {
        return "no end".to_owned();
    }
    ends.iter().map(|state| state.as_str()).collect::<Vec<_>>().join(" and ")
}

fn serial(logs: &[SessionLog]) -> Check {
    let mut problems = Vec::new();
    for log in logs {
        let traces = log.traces();
        for (index, pair) in traces.windows(2).enumerate() {
            let (first, second) = (index + 1, index + 2);
            if !in_order(pair[0].started_cursor, pair[1].started_cursor) {
                problems.push(format!("{}: run {second} did not start after run {first}", log.title));
            }
            match (pair[0].finished, pair[1].started) {
                (Some(end), Some(start)) if start >= end => {}
                (Some(_), Some(_)) => {
                    problems.push(format!("{}: runs {first} and {second} overlapped", log.title));
                }
                _ => problems.push(format!("{}: run {first} or {second} is not finished", log.title)),
            }
        }
    }
    Check::new(
        "serial_within_a_session",
        "within a session runs never overlapped and started in the order of submission",
        problems,
    )
}

fn in_order(first: Option<i64>, second: Option<i64>) -> bool {
    first.zip(second).is_some_and(|(first, second)| first < second)
}

fn parallel_sessions(logs: &[SessionLog]) -> Check {
    let spans = |log: &SessionLog| log.traces().iter().filter_map(Trace::span).collect();
    let most = most_at_once(&logs.iter().map(spans).collect::<Vec<_>>());
    let problems =
        if most < 2 { vec!["no two sessions executed at the same time".to_owned()] } else { Vec::new() };
    let text = format!("sessions ran in parallel, up to {most} at the same moment");
    Check::new("parallel_between_sessions", text, problems)
}

/// How many lines share a moment. A span that ends where another begins does not share it.
fn most_at_once(lines: &[Vec<(Timestamp, Timestamp)>]) -> usize {
    let covers = |line: &[(Timestamp, Timestamp)], moment| {
        line.iter().any(|(from, to)| *from <= moment && moment < *to)
    };
    let count = |moment| lines.iter().filter(|line| covers(line, moment)).count();
    lines.iter().flatten().map(|(from, _)| count(*from)).max().unwrap_or_default()
}

fn parallel_calls(logs: &[SessionLog]) -> Check {
    let together = |calls: &[CallTrace]| {
        most_at_once(&calls.iter().map(|call| vec![(call.from, call.to)]).collect::<Vec<_>>())
    };
    let counts = runs(logs).map(|(log, number, _)| together(&log.trace(number - 1).calls));
    let count = counts.max().unwrap_or_default();
    let problems = if count < 2 { vec!["no two calls of one run overlapped".to_owned()] } else { Vec::new() };
    let text = format!("calls marked parallel ran together, {count} at the same moment");
    Check::new("parallel_calls_overlap", text, problems)
}

fn contiguous(logs: &[SessionLog]) -> Check {
    let mut problems = Vec::new();
    let mut count = 0;
    for log in logs {
        count += log.events.len();
        let cursors: Vec<i64> = log.events.iter().map(|event| event.cursor).collect();
        let expected: Vec<i64> = (1..=log.last_cursor).collect();
        if cursors != expected {
            problems.push(format!("{}: expected 1 to {}, saw {cursors:?}", log.title, log.last_cursor));
        }
    }
    let text = format!("{count} events came live, with cursors 1, 2, 3 … per session: no hole, no duplicate");
    Check::new("contiguous_cursors", text, problems)
}

fn replay_equals_live(logs: &[SessionLog]) -> Check {
    let facts = |events: &[v1::Event]| -> BTreeMap<i64, (String, String)> {
        events.iter().map(|event| (event.cursor, (event.id.clone(), event.r#type.clone()))).collect()
    };
    let differs = logs.iter().filter(|log| facts(&log.events) != facts(&log.replayed));
    let problems = differs.map(|log| format!("{}: the replay is not what came live", log.title)).collect();
    Check::new("replay_equals_live", "a reader who came late was replayed the very same events", problems)
}

fn failed(logs: &[SessionLog]) -> Check {
    let mut problems = Vec::new();
    let mut code = String::new();
    for (log, number, run) in runs(logs).filter(|(_, _, run)| run.fate == RunState::Failed) {
        let trace = log.trace(number - 1);
        code = trace.calls.iter().find_map(|call| call.failure_code.clone()).unwrap_or_default();
        if trace.failure_code.as_deref() != Some(Code::ToolFailed.as_str()) {
            problems.push(format!("the run {} has the code {:?}", run.id, trace.failure_code));
        }
        if code != Code::FileNotFound.as_str() {
            problems.push(format!("its call has the code {code:?}"));
        }
        problems.extend(stuck_behind(log, number));
    }
    let text = format!("the failing run failed with its code ({code}), and its session went on");
    Check::new("failure_is_coded", text, problems)
}

/// A complaint when the next run of the session did not complete.
fn stuck_behind(log: &SessionLog, number: usize) -> Option<String> {
    let went_on = log.trace(number).ends == [RunState::Completed];
    (!went_on).then(|| format!("{}: the run after run {number} did not complete", log.title))
}

fn cancelled(logs: &[SessionLog], probes: &Probes) -> Check {
    let mut problems = Vec::new();
    for (log, number, run) in runs(logs).filter(|(_, _, run)| run.fate == RunState::Cancelled) {
        let ends = log.trace(number - 1).ends;
        if ends != [RunState::Cancelled] {
            problems.push(format!("the run {} ended so: {}", run.id, names(&ends)));
        }
        problems.extend(stuck_behind(log, number));
    }
    if probes.pids.is_empty() {
        problems.push("its processes were never seen".to_owned());
    }
    problems.extend(probes.survivors.iter().map(|pid| format!("process {pid} is still there")));
    let count = match probes.pids.len() {
        0 => String::new(),
        count => format!("{count} "),
    };
    let text = format!("the cancelled run was killed with its {count}processes, and its session went on");
    Check::new("cancel_kills", text, problems)
}

fn explained(probes: &Probes) -> Check {
    const EXPECTED: &str = "behind_other_runs";
    let wrong = (probes.explained != EXPECTED).then(|| format!("explain said {:?}", probes.explained));
    let text = format!("explain told why a waiting run waited: {EXPECTED}");
    Check::new("explain_knows_why", text, wrong.into_iter().collect())
}

fn isolated(probes: &Probes) -> Check {
    let mut problems = Vec::new();
    if probes.foreign.is_empty() {
        problems.push("it was not tried".to_owned());
    }
    for (foreign, unknown) in &probes.foreign {
        let refused = matches!(foreign.code, Some(Code::SessionNotFound | Code::RunNotFound));
        if !refused {
            problems.push(format!("{} was answered with {:?}", foreign.call, foreign.code));
        }
        if foreign != unknown {
            problems.push(format!("{} tells a foreign one from an unknown one", foreign.call));
        }
    }
    let text = "to globex, acme's sessions and runs do not exist: session_not_found";
    Check::new("tenants_are_isolated", text, problems)
}

fn keyless(probes: &Probes) -> Check {
    let wrong =
        (probes.keyless != Some(Code::Unauthenticated)).then(|| format!("it got {:?}", probes.keyless));
    let text = "a caller without an API key was refused: unauthenticated";
    Check::new("keys_are_required", text, wrong.into_iter().collect())
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
