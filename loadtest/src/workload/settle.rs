//! After the load: waiting until nothing is left to do, and reading everything back.

use std::{collections::HashMap, sync::Arc, time::Duration};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use remuda_domain::RunState;
use remuda_proto::{convert, v1};
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    CALLS_AT_ONCE,
    client::Driver,
    fleet::{CallError, Fleet},
    reader::{Subscriber, seen},
};
use crate::history::{FoundRun, Outcome, Seen};

/// How long a call may take, over all servers. The faults are over by now.
const CALL: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(200);
const PAGE: i32 = 200;

/// What the servers say when all is quiet.
#[derive(Debug)]
pub(super) struct Settled {
    /// By session, in the driver's order.
    pub(super) last_cursors: Vec<i64>,
    pub(super) runs: Vec<FoundRun>,
    pub(super) streams: HashMap<Arc<str>, Vec<Seen>>,
}

pub(super) async fn settle(driver: &Driver, patience: Duration) -> anyhow::Result<Settled> {
    let (fleet, sessions) = (&driver.fleet, &driver.sessions);
    let deadline = Instant::now() + patience;
    let last_cursors: Vec<i64> = stream::iter(sessions)
        .map(|session| quiet(fleet, session, deadline))
        .buffered(CALLS_AT_ONCE)
        .try_collect()
        .await?;
    let subscriber = Subscriber::new(&driver.addresses)?;
    let streams = stream::iter(sessions.iter().zip(&last_cursors))
        .map(|(session, last)| {
            let subscriber = &subscriber;
            async move { anyhow::Ok((Arc::clone(session), replay(subscriber, session, *last).await?)) }
        })
        .buffer_unordered(CALLS_AT_ONCE)
        .try_collect()
        .await?;
    let ids: Vec<Vec<String>> = stream::iter(sessions)
        .map(|session| run_ids(fleet, session))
        .buffer_unordered(CALLS_AT_ONCE)
        .try_collect()
        .await?;
    let runs = stream::iter(ids.into_iter().flatten())
        .map(|id| async move { find_run(fleet, &id).await })
        .buffer_unordered(CALLS_AT_ONCE)
        .try_collect()
        .await?;
    Ok(Settled { last_cursors, runs, streams })
}

/// Waits until a session has no unfinished run, or the time is over, and gives its last cursor.
pub(crate) async fn quiet(fleet: &Fleet, session: &str, deadline: Instant) -> anyhow::Result<i64> {
    loop {
        let request = v1::GetSessionRequest { session: session.to_owned() };
        let answer = call(fleet, |client| {
            let request = request.clone();
            async move { client.get_session(request).await }
        });
        let found = answer.await?.session.context("no session in the answer")?;
        if found.pending_runs == 0 || Instant::now() >= deadline {
            return Ok(found.last_cursor);
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Reads a session's events from the first to `last`. A broken subscription is started anew from the beginning: what is
/// judged is what *one* subscription gives.
pub(crate) async fn replay(subscriber: &Subscriber, session: &str, last: i64) -> anyhow::Result<Vec<Seen>> {
    let deadline = Instant::now() + CALL;
    for turn in 0.. {
        let mut found: Vec<Seen> = Vec::new();
        let read = async {
            let mut events = subscriber.subscribe(turn, session, 0).await?;
            while found.last().is_none_or(|seen| seen.cursor < last) {
                let Some(answer) = events.message().await? else { break };
                found.extend(answer.event.iter().map(seen));
            }
            Ok::<_, tonic::Status>(())
        };
        let read = timeout_at(deadline, read).await.with_context(|| {
            format!("the events of {session} cannot be read again: {} of {last} came", found.len())
        })?;
        if read.is_ok() && found.last().is_some_and(|seen| seen.cursor >= last) {
            return Ok(found);
        }
        sleep(LOOK_EVERY).await;
    }
    Ok(Vec::new())
}

async fn run_ids(fleet: &Fleet, session: &str) -> anyhow::Result<Vec<String>> {
    let mut ids = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListRunsRequest {
            session: session.to_owned(),
            page_size: PAGE,
            page_token,
            ..v1::ListRunsRequest::default()
        };
        let page = call(fleet, |client| {
            let request = request.clone();
            async move { client.list_runs(request).await }
        });
        let page = page.await?;
        ids.extend(page.runs.into_iter().map(|run| run.id));
        if page.next_page_token.is_empty() {
            return Ok(ids);
        }
        page_token = page.next_page_token;
    }
}

async fn find_run(fleet: &Fleet, id: &str) -> anyhow::Result<FoundRun> {
    let run = call(fleet, |client| {
        let request = v1::GetRunRequest { run_id: id.to_owned() };
        async move { client.get_run(request).await }
    });
    let run = run.await?.run.context("no run in the answer")?;
    let steps = call(fleet, |client| {
        let request = v1::ListStepsRequest { run_id: id.to_owned() };
        async move { client.list_steps(request).await }
    });
    let steps = steps.await?.steps.into_iter().map(|step| {
        let outcome = step.outcome.as_ref().map(reduce);
        (usize::try_from(step.index).unwrap_or(usize::MAX), outcome)
    });
    Ok(FoundRun { steps: steps.collect(), ..found_run(&run)? })
}

/// A run as an answer shows it, without its steps.
fn found_run(run: &v1::Run) -> anyhow::Result<FoundRun> {
    let state: RunState = convert::run_state("state", run.state)?;
    let Some(v1::run::Input::Tools(input)) = &run.input else { anyhow::bail!("run {} has no input", run.id) };
    let outcomes: HashMap<&str, Outcome> =
        run.outcomes.iter().map(|outcome| (outcome.id.as_str(), reduce(outcome))).collect();
    Ok(FoundRun {
        id: run.id.as_str().into(),
        key: run.idempotency_key.clone(),
        session: run.session_id.as_str().into(),
        seq: run.seq,
        state,
        failure_code: run.failure.as_ref().map(|failure| failure.code.clone()).unwrap_or_default(),
        outcomes: input.calls.iter().map(|call| outcomes.get(call.id.as_str()).cloned()).collect(),
        steps: Vec::new(),
    })
}

/// What is judged of an outcome.
fn reduce(outcome: &v1::ToolOutcome) -> Outcome {
    let output: serde_json::Value = serde_json::from_str(&outcome.output).unwrap_or_default();
    Outcome {
        status: outcome.status.clone(),
        exit_code: output["exit_code"].as_i64(),
        signalled: output["signal"].is_number(),
    }
}

async fn call<T, F>(fleet: &Fleet, attempt: impl Fn(remuda_client::Client) -> F) -> anyhow::Result<T>
where
    F: Future<Output = remuda_domain::Result<T>>,
{
    fleet.call(CALL, attempt).await.map_err(|error| CallError::into_error(error).into())
}
