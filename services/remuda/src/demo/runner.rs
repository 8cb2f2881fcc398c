//! Runs the scenario: submits, follows and cancels runs over gRPC, and records what the clients receive.

use std::{collections::HashSet, future::Future, path::Path, time::Duration};

use futures::{
    StreamExt as _, TryStreamExt as _,
    future::{try_join_all, try_join3},
    stream::{BoxStream, select_all},
};
use nix::{errno::Errno, sys::signal::kill, unistd::Pid};
use remuda_client::{Client, Target, terminal_state};
use remuda_domain::{Error, RunId, RunState, SessionId, error::Result};
use remuda_proto::v1;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    checks::{CallResult, Probes},
    recording::{SessionLog, SubmittedRun},
    scenario::{PID_FILE, SessionPlan, TENANTS},
    screen::Screen,
    server::DemoServer,
};

/// Without an event for this long the demo ends and reports what is missing, instead of hanging.
const EVENT_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the run executes before it is cancelled, so that it is visible on the screen.
const CANCEL_DELAY: Duration = Duration::from_millis(2300);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Everything that was recorded.
#[derive(Debug)]
pub(super) struct DemoResults {
    pub logs: Vec<SessionLog>,
    pub probes: Probes,
}

/// Runs all sessions of the scenario to their end.
pub(super) async fn run(
    server: &DemoServer,
    plans: &[SessionPlan],
    screen: &mut Screen,
) -> Result<DemoResults> {
    let [acme, globex] = TENANTS;
    let (acme, globex) = (server.client(acme)?, server.client(globex)?);
    let client = |plan: &SessionPlan| if plan.tenant == TENANTS[0] { acme.clone() } else { globex.clone() };
    let mut sessions = Vec::new();
    for plan in plans {
        let client = client(plan);
        let id = create_session(&client, plan).await?;
        sessions.push(DemoSession { client, id, plan });
    }
    let isolation = probe_isolation(&globex, &sessions).await?;
    let missing_key = server.client_without_key()?.list_sessions(v1::ListSessionsRequest::default()).await;

    let (progress, progress_updates) = watch::channel(Progress::default());
    let finished = CancellationToken::new();
    let follow_all = async {
        let logs = follow(&sessions, screen, &progress).await;
        finished.cancel();
        logs
    };
    let submit_all = try_join_all(sessions.iter().map(submit));
    let cancel_one = unless_finished(&finished, cancel_midway(server, &sessions, progress_updates));
    let (mut logs, accepted, probes) = Box::pin(try_join3(follow_all, submit_all, cancel_one)).await?;

    for ((log, session), runs) in logs.iter_mut().zip(&sessions).zip(accepted) {
        log.runs = runs;
        log.replayed = replay(session, log.last_cursor).await?;
    }
    let mut probes = probes.unwrap_or_default();
    probes.survivors = probes.pids.iter().copied().filter(|pid| is_alive(*pid)).collect();
    probes.foreign.extend(isolation);
    probes.missing_key = missing_key.err().map(|error| error.code());
    Ok(DemoResults { logs, probes })
}

/// A session of the scenario with its client.
struct DemoSession<'a> {
    client: Client,
    id: String,
    plan: &'a SessionPlan,
}

async fn create_session(client: &Client, plan: &SessionPlan) -> Result<String> {
    let request = v1::CreateSessionRequest { name: plan.session.to_owned(), ..Default::default() };
    let created = client.create_session(request).await?;
    Ok(created.session.ok_or_else(|| Error::internal("the server sent no session"))?.id)
}

/// Submits the runs of a session in order.
async fn submit(session: &DemoSession<'_>) -> Result<Vec<SubmittedRun>> {
    let mut accepted = Vec::new();
    for run_plan in &session.plan.runs {
        let request = v1::SubmitRunRequest {
            session: session.id.clone(),
            input: Some(v1::submit_run_request::Input::Tools(run_plan.input())),
            ..Default::default()
        };
        let run = session.client.submit(request).await?.run;
        let run = run.ok_or_else(|| Error::internal("the server sent no run"))?;
        accepted.push(SubmittedRun { id: run.id, expected_state: run_plan.expected_state });
    }
    Ok(accepted)
}

/// What has been received so far.
#[derive(Clone, Debug, Default)]
struct Progress {
    /// Sessions that have started a run.
    started: HashSet<usize>,
}

/// Follows all sessions live until all runs have ended and all events are received, or until the timeout.
async fn follow(
    sessions: &[DemoSession<'_>],
    screen: &mut Screen,
    progress: &watch::Sender<Progress>,
) -> Result<Vec<SessionLog>> {
    let streams = sessions.iter().enumerate().map(|(index, session)| {
        let events = session.client.follow(Target::Session(session.id.clone()), 0);
        events.map_ok(move |event| (index, event)).boxed()
    });
    let mut live_events = LiveEvents {
        events: select_all(streams),
        logs: sessions
            .iter()
            .map(|session| SessionLog { title: session.plan.title(), ..Default::default() })
            .collect(),
        ended: HashSet::new(),
    };
    let expected = sessions.iter().map(|session| session.plan.runs.len()).sum();
    while live_events.ended.len() < expected {
        let received = tokio::select! {
            received = live_events.next() => received?,
            () = sleep_until_or_never(screen.next_due()) => {
                screen.show_due(Instant::now());
                continue;
            }
        };
        let Some((index, event)) = received else { break };
        if event.r#type == "run.started" {
            progress.send_modify(|progress| {
                progress.started.insert(index);
            });
        }
        screen.buffer(index, event, Instant::now());
    }
    screen.show_all();
    for (index, session) in sessions.iter().enumerate() {
        let request = v1::GetSessionRequest { session: session.id.clone() };
        let found = session.client.get_session(request).await?.session;
        live_events.logs[index].last_cursor = found.map(|session| session.last_cursor).unwrap_or_default();
    }
    // Receive the remaining events too, so that the checks see all of them.
    while live_events
        .logs
        .iter()
        .any(|log| log.events.last().is_none_or(|event| event.cursor < log.last_cursor))
    {
        if live_events.next().await?.is_none() {
            break;
        }
    }
    Ok(live_events.logs)
}

/// Sleeps until a moment, or forever.
async fn sleep_until_or_never(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

struct LiveEvents {
    events: futures::stream::SelectAll<BoxStream<'static, Result<(usize, v1::Event)>>>,
    logs: Vec<SessionLog>,
    /// Runs whose end was received.
    ended: HashSet<String>,
}

impl LiveEvents {
    /// Records and returns the next event. `None` at the end or after the timeout. Cancel-safe.
    async fn next(&mut self) -> Result<Option<(usize, v1::Event)>> {
        let Ok(Some(received)) = timeout(EVENT_TIMEOUT, self.events.next()).await else { return Ok(None) };
        let (index, event) = received?;
        if terminal_state(&event).is_some() {
            self.ended.insert(event.run_id.clone());
        }
        self.logs[index].events.push(event.clone());
        Ok(Some((index, event)))
    }
}

/// Reads all events again, as a late reader.
async fn replay(session: &DemoSession<'_>, last_cursor: i64) -> Result<Vec<v1::Event>> {
    let mut stream = session.client.follow(Target::Session(session.id.clone()), 0);
    let mut events: Vec<v1::Event> = Vec::new();
    while events.last().map_or(0, |event| event.cursor) < last_cursor {
        match timeout(EVENT_TIMEOUT, stream.next()).await {
            Ok(Some(event)) => events.push(event?),
            Ok(None) | Err(_) => break,
        }
    }
    Ok(events)
}

/// Cancels the run that the scenario marks, over a separate connection. Waits until its processes run and every session has
/// started, so that the result does not depend on the speed of the machine.
async fn cancel_midway(
    server: &DemoServer,
    sessions: &[DemoSession<'_>],
    mut progress_updates: watch::Receiver<Progress>,
) -> Result<Probes> {
    let is_to_be_cancelled = |session: &&DemoSession<'_>| {
        session.plan.runs.iter().any(|run_plan| run_plan.expected_state == RunState::Cancelled)
    };
    let Some(session) = sessions.iter().find(is_to_be_cancelled) else { return Ok(Probes::default()) };
    // The channel closes only at the end of the demo, which also ends this wait.
    drop(progress_updates.wait_for(|progress| progress.started.len() == sessions.len()).await);
    let pids = read_pids(&server.workspace_file(session.plan.tenant, PID_FILE)?).await;
    tokio::time::sleep(CANCEL_DELAY).await;

    let operator = server.client(session.plan.tenant)?;
    let request = v1::ListQueueRequest { session: session.id.clone(), ..Default::default() };
    let queue = operator.list_queue(request).await?.runs;
    let [running, waiting, ..] = queue.as_slice() else { return Ok(Probes::default()) };
    let explanation = operator.explain_run(v1::ExplainRunRequest { run_id: waiting.id.clone() }).await?;
    let alive = pids.into_iter().filter(|pid| is_alive(*pid)).collect();
    let other_tenant = server.client(TENANTS[1])?;
    let foreign =
        (cancel(&other_tenant, &running.id).await, cancel(&other_tenant, &RunId::new().to_string()).await);
    let reason = "by another client".to_owned();
    operator.cancel_run(v1::CancelRunRequest { run_id: running.id.clone(), reason }).await?;
    Ok(Probes { pids: alive, explanation: explanation.reason, foreign: vec![foreign], ..Default::default() })
}

async fn unless_finished<T>(
    finished: &CancellationToken,
    work: impl Future<Output = Result<T>>,
) -> Result<Option<T>> {
    tokio::select! {
        biased;
        done = work => done.map(Some),
        () = finished.cancelled() => Ok(None),
    }
}

/// Waits for the run to write the ids of its processes.
async fn read_pids(file: &Path) -> Vec<i32> {
    loop {
        // Wait until the file exists and its line is complete.
        match tokio::fs::read_to_string(file).await {
            Ok(text) if text.ends_with('\n') => {
                return text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
            }
            _ => tokio::time::sleep(POLL_INTERVAL).await,
        }
    }
}

/// Whether a process is alive. Zombies do not count.
fn is_alive(pid: i32) -> bool {
    if kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH) {
        return false;
    }
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    let state = stat.rsplit(')').next().unwrap_or_default().split_whitespace().next().unwrap_or_default();
    !matches!(state, "Z" | "X")
}

/// As globex, calls the API for a session of acme and for an unknown session. Both must give the same results.
async fn probe_isolation(
    globex: &Client,
    sessions: &[DemoSession<'_>],
) -> Result<Vec<(CallResult, CallResult)>> {
    let Some(acme) = sessions.iter().find(|session| session.plan.tenant == TENANTS[0]) else {
        return Ok(Vec::new());
    };
    let run = v1::SubmitRunRequest {
        session: acme.id.clone(),
        input: acme.plan.runs.first().map(|run_plan| v1::submit_run_request::Input::Tools(run_plan.input())),
        ..Default::default()
    };
    let unknown_session = v1::SubmitRunRequest { session: SessionId::new().to_string(), ..run.clone() };
    Ok(vec![
        (read_session(globex, &acme.id).await, read_session(globex, &unknown_session.session).await),
        (follow_session(globex, &acme.id).await, follow_session(globex, &unknown_session.session).await),
        (
            call_result("SubmitRun", globex.submit(run).await.map(drop)),
            call_result("SubmitRun", globex.submit(unknown_session).await.map(drop)),
        ),
    ])
}

async fn read_session(client: &Client, session: &str) -> CallResult {
    let request = v1::GetSessionRequest { session: session.to_owned() };
    call_result("GetSession", client.get_session(request).await.map(drop))
}

async fn cancel(client: &Client, run: &str) -> CallResult {
    let request = v1::CancelRunRequest { run_id: run.to_owned(), reason: "not mine".to_owned() };
    call_result("CancelRun", client.cancel_run(request).await.map(drop))
}

async fn follow_session(client: &Client, session: &str) -> CallResult {
    let first = client.follow(Target::Session(session.to_owned()), 0).next().await;
    call_result("Subscribe", first.unwrap_or_else(|| Ok(v1::Event::default())).map(drop))
}

fn call_result(call: &'static str, result: Result<()>) -> CallResult {
    match result {
        Ok(()) => CallResult { call, code: None, message: String::new() },
        Err(error) => CallResult { call, code: Some(error.code()), message: error.message().to_owned() },
    }
}
