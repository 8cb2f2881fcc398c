//! The play: submits, follows and cancels over real connections, and records what clients see.

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
    checks::{Answer, Probes},
    recording::{Accepted, SessionLog},
    screen::Screen,
    script::{PID_FILE, Scene, TENANTS},
    stage::Stage,
};

/// Without any event for this long the play is over, whatever is missing: better a report than a hang.
const STALLED: Duration = Duration::from_secs(60);
/// The run that gets cancelled is shown for a while first.
const LET_IT_RUN: Duration = Duration::from_millis(2300);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Everything that was seen.
#[derive(Debug)]
pub(super) struct Played {
    pub logs: Vec<SessionLog>,
    pub probes: Probes,
}

/// Plays all scenes to their end.
pub(super) async fn play(stage: &Stage, scenes: &[Scene], screen: &mut Screen) -> Result<Played> {
    let [acme, globex] = TENANTS;
    let (acme, globex) = (stage.client(acme)?, stage.client(globex)?);
    let client = |scene: &Scene| if scene.tenant == TENANTS[0] { acme.clone() } else { globex.clone() };
    let mut cast = Vec::new();
    for scene in scenes {
        let client = client(scene);
        let id = create_session(&client, scene).await?;
        cast.push(Role { client, id, scene });
    }
    let isolation = probe_isolation(&globex, &cast).await?;
    let keyless = stage.stranger()?.list_sessions(v1::ListSessionsRequest::default()).await;

    let (progress, seen) = watch::channel(Progress::default());
    let over = CancellationToken::new();
    let following = async {
        let logs = follow(&cast, screen, &progress).await;
        over.cancel();
        logs
    };
    let submitting = try_join_all(cast.iter().map(submit));
    let cancelling = unless_over(&over, cancel_midway(stage, &cast, seen));
    let (mut logs, accepted, probes) = Box::pin(try_join3(following, submitting, cancelling)).await?;

    for ((log, role), runs) in logs.iter_mut().zip(&cast).zip(accepted) {
        log.runs = runs;
        log.replayed = replay(role, log.last_cursor).await?;
    }
    let mut probes = probes.unwrap_or_default();
    probes.survivors = probes.pids.iter().copied().filter(|pid| is_alive(*pid)).collect();
    probes.foreign.extend(isolation);
    probes.keyless = keyless.err().map(|error| error.code());
    Ok(Played { logs, probes })
}

/// A scene with its session and the connection that plays it.
struct Role<'a> {
    client: Client,
    id: String,
    scene: &'a Scene,
}

async fn create_session(client: &Client, scene: &Scene) -> Result<String> {
    let request = v1::CreateSessionRequest { name: scene.session.to_owned(), ..Default::default() };
    let created = client.create_session(request).await?;
    Ok(created.session.ok_or_else(|| Error::internal("the server sent no session"))?.id)
}

/// Submits the runs of a session in order.
async fn submit(role: &Role<'_>) -> Result<Vec<Accepted>> {
    let mut accepted = Vec::new();
    for act in &role.scene.runs {
        let request = v1::SubmitRunRequest {
            session: role.id.clone(),
            input: Some(v1::submit_run_request::Input::Tools(act.input())),
            ..Default::default()
        };
        let run = role.client.submit(request).await?.run;
        let run = run.ok_or_else(|| Error::internal("the server sent no run"))?;
        accepted.push(Accepted { id: run.id, fate: act.fate });
    }
    Ok(accepted)
}

/// What the audience has seen so far.
#[derive(Clone, Debug, Default)]
struct Progress {
    /// Sessions that have started a run.
    started: HashSet<usize>,
}

/// Follows every session live until all runs have ended and every event has come, or nothing comes any more.
async fn follow(
    cast: &[Role<'_>],
    screen: &mut Screen,
    progress: &watch::Sender<Progress>,
) -> Result<Vec<SessionLog>> {
    let streams = cast.iter().enumerate().map(|(session, role)| {
        let events = role.client.follow(Target::Session(role.id.clone()), 0);
        events.map_ok(move |event| (session, event)).boxed()
    });
    let mut live = Live {
        events: select_all(streams),
        logs: cast
            .iter()
            .map(|role| SessionLog { title: role.scene.title(), ..Default::default() })
            .collect(),
        ended: HashSet::new(),
    };
    let expected = cast.iter().map(|role| role.scene.runs.len()).sum();
    while live.ended.len() < expected {
        let arrived = tokio::select! {
            arrived = live.next() => arrived?,
            () = when(screen.due()) => {
                screen.show_due(Instant::now());
                continue;
            }
        };
        let Some((session, event)) = arrived else { break };
        if event.r#type == "run.started" {
            progress.send_modify(|progress| {
                progress.started.insert(session);
            });
        }
        screen.take(session, event, Instant::now());
    }
    screen.show_all();
    for (session, role) in cast.iter().enumerate() {
        let request = v1::GetSessionRequest { session: role.id.clone() };
        let answer = role.client.get_session(request).await?.session;
        live.logs[session].last_cursor = answer.map(|session| session.last_cursor).unwrap_or_default();
    }
    // Whatever else the server has must come too, and would count against it.
    while live.logs.iter().any(|log| log.events.last().is_none_or(|event| event.cursor < log.last_cursor)) {
        if live.next().await?.is_none() {
            break;
        }
    }
    Ok(live.logs)
}

/// Comes at a moment, or never.
async fn when(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

struct Live {
    events: futures::stream::SelectAll<BoxStream<'static, Result<(usize, v1::Event)>>>,
    logs: Vec<SessionLog>,
    /// Runs whose end was seen.
    ended: HashSet<String>,
}

impl Live {
    /// The next event, already recorded. `None` when none comes any more. Cancel-safe.
    async fn next(&mut self) -> Result<Option<(usize, v1::Event)>> {
        let Ok(Some(arrived)) = timeout(STALLED, self.events.next()).await else { return Ok(None) };
        let (session, event) = arrived?;
        if terminal_state(&event).is_some() {
            self.ended.insert(event.run_id.clone());
        }
        self.logs[session].events.push(event.clone());
        Ok(Some((session, event)))
    }
}

/// The same events once more, for a reader who comes after the end.
async fn replay(role: &Role<'_>, last_cursor: i64) -> Result<Vec<v1::Event>> {
    let mut stream = role.client.follow(Target::Session(role.id.clone()), 0);
    let mut events: Vec<v1::Event> = Vec::new();
    while events.last().map_or(0, |event| event.cursor) < last_cursor {
        match timeout(STALLED, stream.next()).await {
            Ok(Some(event)) => events.push(event?),
            Ok(None) | Err(_) => break,
        }
    }
    Ok(events)
}

/// Cancels the run that is meant to be, from a connection of its own, once its processes run and every session has
/// started: so what is to be seen does not depend on how fast this machine is.
async fn cancel_midway(
    stage: &Stage,
    cast: &[Role<'_>],
    mut seen: watch::Receiver<Progress>,
) -> Result<Probes> {
    let fated = |role: &&Role<'_>| role.scene.runs.iter().any(|act| act.fate == RunState::Cancelled);
    let Some(role) = cast.iter().find(fated) else { return Ok(Probes::default()) };
    // Never closes before the play is over, which ends this wait too.
    drop(seen.wait_for(|progress| progress.started.len() == cast.len()).await);
    let pids = read_pids(&stage.workspace_file(role.scene.tenant, PID_FILE)?).await;
    tokio::time::sleep(LET_IT_RUN).await;

    let operator = stage.client(role.scene.tenant)?;
    let request = v1::ListQueueRequest { session: role.id.clone(), ..Default::default() };
    let queue = operator.list_queue(request).await?.runs;
    let [running, waiting, ..] = queue.as_slice() else { return Ok(Probes::default()) };
    let why = operator.explain_run(v1::ExplainRunRequest { run_id: waiting.id.clone() }).await?;
    let alive = pids.into_iter().filter(|pid| is_alive(*pid)).collect();
    let stranger = stage.client(TENANTS[1])?;
    let foreign = (cancel(&stranger, &running.id).await, cancel(&stranger, &RunId::new().to_string()).await);
    let reason = "by another client".to_owned();
    operator.cancel_run(v1::CancelRunRequest { run_id: running.id.clone(), reason }).await?;
    Ok(Probes { pids: alive, explained: why.reason, foreign: vec![foreign], ..Default::default() })
}

async fn unless_over<T>(
    over: &CancellationToken,
    work: impl Future<Output = Result<T>>,
) -> Result<Option<T>> {
    tokio::select! {
        biased;
        done = work => done.map(Some),
        () = over.cancelled() => Ok(None),
    }
}

/// Waits for the run to write the ids of its processes.
async fn read_pids(file: &Path) -> Vec<i32> {
    loop {
        // Not there, or not yet whole: a line ends with its last byte.
        match tokio::fs::read_to_string(file).await {
            Ok(text) if text.ends_with('\n') => {
                return text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
            }
            _ => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
}

/// Whether a process runs. One that is dead but not collected by its parent does not.
fn is_alive(pid: i32) -> bool {
    if kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH) {
        return false;
    }
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    let state = stat.rsplit(')').next().unwrap_or_default().split_whitespace().next().unwrap_or_default();
    !matches!(state, "Z" | "X")
}

/// Asks, as globex, for what is acme's; and for what is nobody's, which must get the same answers.
async fn probe_isolation(globex: &Client, cast: &[Role<'_>]) -> Result<Vec<(Answer, Answer)>> {
    let Some(acme) = cast.iter().find(|role| role.scene.tenant == TENANTS[0]) else { return Ok(Vec::new()) };
    let run = v1::SubmitRunRequest {
        session: acme.id.clone(),
        input: acme.scene.runs.first().map(|act| v1::submit_run_request::Input::Tools(act.input())),
        ..Default::default()
    };
    let of_nobody = v1::SubmitRunRequest { session: SessionId::new().to_string(), ..run.clone() };
    Ok(vec![
        (read_session(globex, &acme.id).await, read_session(globex, &of_nobody.session).await),
        (follow_session(globex, &acme.id).await, follow_session(globex, &of_nobody.session).await),
        (
            answer("SubmitRun", globex.submit(run).await.map(drop)),
            answer("SubmitRun", globex.submit(of_nobody).await.map(drop)),
        ),
    ])
}

async fn read_session(client: &Client, session: &str) -> Answer {
    let request = v1::GetSessionRequest { session: session.to_owned() };
    answer("GetSession", client.get_session(request).await.map(drop))
}

async fn cancel(client: &Client, run: &str) -> Answer {
    let request = v1::CancelRunRequest { run_id: run.to_owned(), reason: "not mine".to_owned() };
    answer("CancelRun", client.cancel_run(request).await.map(drop))
}

async fn follow_session(client: &Client, session: &str) -> Answer {
    let first = client.follow(Target::Session(session.to_owned()), 0).next().await;
    answer("Subscribe", first.unwrap_or_else(|| Ok(v1::Event::default())).map(drop))
}

fn answer(call: &'static str, result: Result<()>) -> Answer {
    match result {
        Ok(()) => Answer { call, code: None, message: String::new() },
        Err(error) => Answer { call, code: Some(error.code()), message: error.message().to_owned() },
    }
}
