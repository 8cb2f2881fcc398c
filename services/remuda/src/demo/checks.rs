//! The checks of the demo. They use only recorded events, never durations.

use std::collections::BTreeMap;

use remuda_domain::{Code, RunState, Timestamp};
use remuda_proto::v1;

use super::recording::{CallTrace, RunTrace, SessionLog, SubmittedRun};

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Check {
    /// Stable name for scripts.
    pub name: &'static str,
    pub text: String,
    /// Deviations. Empty if the check passed.
    pub problems: Vec<String>,
}

impl Check {
    pub(super) fn new(name: &'static str, text: impl Into<String>, problems: Vec<String>) -> Self {
        Self { name, text: text.into(), problems }
    }

    pub(super) fn passed(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Observations apart from the event streams.
#[derive(Clone, Debug, Default)]
pub(super) struct Probes {
    /// Live processes of the run that is cancelled, before the cancellation.
    pub pids: Vec<i32>,
    /// Those that are still alive afterwards.
    pub survivors: Vec<i32>,
    /// Reason code of `explain` for the run that waits behind it.
    pub explanation: String,
    /// Results for another tenant: of calls on existing objects, and of the same calls on objects that do not exist.
    pub foreign: Vec<(CallResult, CallResult)>,
    /// Error code for a client without an API key.
    pub missing_key: Option<Code>,
}

/// The result of a call that must be refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallResult {
    pub call: &'static str,
    /// `None` if the call succeeded.
    pub code: Option<Code>,
    pub message: String,
}

/// Runs all checks.
pub(super) fn all(logs: &[SessionLog], probes: &Probes) -> Vec<Check> {
    vec![
        one_end_per_run(logs),
        serial_sessions(logs),
        parallel_sessions(logs),
        parallel_calls(logs),
        contiguous_cursors(logs),
        replay_equals_live(logs),
        failed_runs(logs),
        cancelled_runs(logs, probes),
        explanation(probes),
        tenant_isolation(probes),
        missing_key(probes),
    ]
}

fn one_end_per_run(logs: &[SessionLog]) -> Check {
    let mut problems = Vec::new();
    let mut count = 0;
    for (log, number, run) in runs(logs) {
        count += 1;
        let ends = log.trace(number - 1).ends;
        if ends != [run.expected_state] {
            let (expected, saw) = (run.expected_state, names(&ends));
            problems.push(format!("{} run {number}: expected {expected}, saw {saw}", log.title));
        }
    }
    let text = format!("{count} runs were accepted, and each ended exactly once, in the expected state");
    Check::new("one_terminal_event_per_run", text, problems)
}

fn runs(logs: &[SessionLog]) -> impl Iterator<Item = (&SessionLog, usize, &SubmittedRun)> {
    logs.iter().flat_map(|log| log.runs.iter().enumerate().map(move |(index, run)| (log, index + 1, run)))
}

fn names(ends: &[RunState]) -> String {
    if ends.is_empty() {
        return "no end".to_owned();
    }
    ends.iter().map(|state| state.as_str()).collect::<Vec<_>>().join(" and ")
}

fn serial_sessions(logs: &[SessionLog]) -> Check {
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
        "within a session, runs never overlapped and started in the order of submission",
        problems,
    )
}

fn in_order(first: Option<i64>, second: Option<i64>) -> bool {
    first.zip(second).is_some_and(|(first, second)| first < second)
}

fn parallel_sessions(logs: &[SessionLog]) -> Check {
    let spans = |log: &SessionLog| log.traces().iter().filter_map(RunTrace::span).collect();
    let most = max_overlap(&logs.iter().map(spans).collect::<Vec<_>>());
    let problems =
        if most < 2 { vec!["no two sessions executed at the same time".to_owned()] } else { Vec::new() };
    let text = format!("sessions ran in parallel, up to {most} at the same time");
    Check::new("parallel_between_sessions", text, problems)
}

/// The maximum number of lanes that are busy at the same time. A span that ends where another begins does not overlap it.
fn max_overlap(lanes: &[Vec<(Timestamp, Timestamp)>]) -> usize {
    let covers = |lane: &[(Timestamp, Timestamp)], moment| {
        lane.iter().any(|(from, to)| *from <= moment && moment < *to)
    };
    let count = |moment| lanes.iter().filter(|lane| covers(lane, moment)).count();
    lanes.iter().flatten().map(|(from, _)| count(*from)).max().unwrap_or_default()
}

fn parallel_calls(logs: &[SessionLog]) -> Check {
    let overlapping = |calls: &[CallTrace]| {
        max_overlap(&calls.iter().map(|call| vec![(call.from, call.to)]).collect::<Vec<_>>())
    };
    let counts = runs(logs).map(|(log, number, _)| overlapping(&log.trace(number - 1).calls));
    let count = counts.max().unwrap_or_default();
    let problems = if count < 2 { vec!["no two calls of one run overlapped".to_owned()] } else { Vec::new() };
    let text = format!("calls marked parallel overlapped, {count} at the same time");
    Check::new("parallel_calls_overlap", text, problems)
}

fn contiguous_cursors(logs: &[SessionLog]) -> Check {
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
    let text = format!(
        "{count} events were received live, with cursors 1, 2, 3 … per session: none missing, none twice"
    );
    Check::new("contiguous_cursors", text, problems)
}

fn replay_equals_live(logs: &[SessionLog]) -> Check {
    let facts = |events: &[v1::Event]| -> BTreeMap<i64, (String, String)> {
        events.iter().map(|event| (event.cursor, (event.id.clone(), event.r#type.clone()))).collect()
    };
    let differs = logs.iter().filter(|log| facts(&log.events) != facts(&log.replayed));
    let problems =
        differs.map(|log| format!("{}: the replayed events differ from the live ones", log.title)).collect();
    Check::new("replay_equals_live", "a late reader received exactly the same events", problems)
}

fn failed_runs(logs: &[SessionLog]) -> Check {
    let mut problems = Vec::new();
    let mut code = String::new();
    for (log, number, run) in runs(logs).filter(|(_, _, run)| run.expected_state == RunState::Failed) {
        let trace = log.trace(number - 1);
        code = trace.calls.iter().find_map(|call| call.failure_code.clone()).unwrap_or_default();
        if trace.failure_code.as_deref() != Some(Code::ToolFailed.as_str()) {
            problems.push(format!("the run {} has the code {:?}", run.id, trace.failure_code));
        }
        if code != Code::FileNotFound.as_str() {
            problems.push(format!("its call has the code {code:?}"));
        }
        problems.extend(next_run_incomplete(log, number));
    }
    let text = format!("the failing run failed with the right code ({code}), and its session continued");
    Check::new("failure_is_coded", text, problems)
}

/// A problem if the next run of the session did not complete.
fn next_run_incomplete(log: &SessionLog, number: usize) -> Option<String> {
    let continued = log.trace(number).ends == [RunState::Completed];
    (!continued).then(|| format!("{}: the run after run {number} did not complete", log.title))
}

fn cancelled_runs(logs: &[SessionLog], probes: &Probes) -> Check {
    let mut problems = Vec::new();
    for (log, number, run) in runs(logs).filter(|(_, _, run)| run.expected_state == RunState::Cancelled) {
        let ends = log.trace(number - 1).ends;
        if ends != [RunState::Cancelled] {
            problems.push(format!("the run {} ended as: {}", run.id, names(&ends)));
        }
        problems.extend(next_run_incomplete(log, number));
    }
    if probes.pids.is_empty() {
        problems.push("its processes were not found".to_owned());
    }
    problems.extend(probes.survivors.iter().map(|pid| format!("process {pid} is still alive")));
    let count = match probes.pids.len() {
        0 => String::new(),
        count => format!("{count} "),
    };
    let text = format!("the cancelled run was killed with its {count}processes, and its session continued");
    Check::new("cancel_kills", text, problems)
}

fn explanation(probes: &Probes) -> Check {
    const EXPECTED: &str = "behind_other_runs";
    let wrong =
        (probes.explanation != EXPECTED).then(|| format!("explain returned {:?}", probes.explanation));
    let text = format!("explain returned why a run was waiting: {EXPECTED}");
    Check::new("explain_knows_why", text, wrong.into_iter().collect())
}

fn tenant_isolation(probes: &Probes) -> Check {
    let mut problems = Vec::new();
    if probes.foreign.is_empty() {
        problems.push("no call was made".to_owned());
    }
    for (foreign, unknown) in &probes.foreign {
        let refused = matches!(foreign.code, Some(Code::SessionNotFound | Code::RunNotFound));
        if !refused {
            problems.push(format!("{} returned {:?}", foreign.call, foreign.code));
        }
        if foreign != unknown {
            problems.push(format!("{} distinguishes a foreign object from an unknown one", foreign.call));
        }
    }
    let text = "for globex, the sessions and runs of acme do not exist: session_not_found";
    Check::new("tenants_are_isolated", text, problems)
}

fn missing_key(probes: &Probes) -> Check {
    let wrong = (probes.missing_key != Some(Code::Unauthenticated))
        .then(|| format!("it received {:?}", probes.missing_key));
    let text = "a client without an API key was rejected: unauthenticated";
    Check::new("keys_are_required", text, wrong.into_iter().collect())
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
