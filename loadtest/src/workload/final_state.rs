//! Reads the final state after the load: waits until all runs have ended and reads everything back.

use std::{collections::HashMap, sync::Arc, time::Duration};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use remuda_domain::RunState;
use remuda_proto::{convert, v1};
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    CALLS_AT_ONCE,
    client::Driver,
    failover::{CallError, FailoverClient},
    reader::{Subscriber, observe},
};
use crate::observed_history::{FinalRun, ObservedEvent, Outcome};

/// How long a call may take over all servers. The faults are over by now.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const PAGE: i32 = 200;

/// The state that the servers report after all runs have ended.
#[derive(Debug)]
pub(super) struct FinalState {
    /// Per session, in the driver's order.
    pub(super) last_cursors: Vec<i64>,
    pub(super) runs: Vec<FinalRun>,
    pub(super) streams: HashMap<Arc<str>, Vec<ObservedEvent>>,
}

pub(super) async fn read_final_state(driver: &Driver, timeout: Duration) -> anyhow::Result<FinalState> {
    let (failover, sessions) = (&driver.failover, &driver.sessions);
    let deadline = Instant::now() + timeout;
    let last_cursors: Vec<i64> = stream::iter(sessions)
        .map(|session| wait_until_idle(failover, session, deadline))
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
        .map(|session| run_ids(failover, session))
        .buffer_unordered(CALLS_AT_ONCE)
        .try_collect()
        .await?;
    let runs = stream::iter(ids.into_iter().flatten())
        .map(|id| async move { fetch_run(failover, &id).await })
        .buffer_unordered(CALLS_AT_ONCE)
        .try_collect()
        .await?;
    Ok(FinalState { last_cursors, runs, streams })
}

/// Waits until a session has no unfinished run or the deadline has passed, and returns its last cursor.
pub(crate) async fn wait_until_idle(
    failover: &FailoverClient,
    session: &str,
    deadline: Instant,
) -> anyhow::Result<i64> {
    loop {
        let request = v1::GetSessionRequest { session: session.to_owned() };
        let answer = call(failover, |client| {
            let request = request.clone();
            async move { client.get_session(request).await }
        });
        let found = answer.await?.session.context("no session in the answer")?;
        if found.pending_runs == 0 || Instant::now() >= deadline {
            return Ok(found.last_cursor);
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Reads a session's events from the first to `last`. After an error it starts again from the beginning, because the checker
/// needs the events of *one* subscription.
pub(crate) async fn replay(
    subscriber: &Subscriber,
    session: &str,
    last: i64,
) -> anyhow::Result<Vec<ObservedEvent>> {
    let deadline = Instant::now() + CALL_TIMEOUT;
    for attempt in 0.. {
        let mut found: Vec<ObservedEvent> = Vec::new();
        let read = async {
            let mut events = subscriber.subscribe(attempt, session, 0).await?;
            while found.last().is_none_or(|seen| seen.cursor < last) {
                let Some(answer) = events.message().await? else { break };
                found.extend(answer.event.iter().map(observe));
            }
            Ok::<_, tonic::Status>(())
        };
        let read = timeout_at(deadline, read)
            .await
            .with_context(|| format!("cannot read the events of {session}: got {} of {last}", found.len()))?;
        if read.is_ok() && found.last().is_some_and(|seen| seen.cursor >= last) {
            return Ok(found);
        }
        sleep(POLL_INTERVAL).await;
    }
    Ok(Vec::new())
}

async fn run_ids(failover: &FailoverClient, session: &str) -> anyhow::Result<Vec<String>> {
    let mut ids = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListRunsRequest {
            session: session.to_owned(),
            page_size: PAGE,
            page_token,
            ..v1::ListRunsRequest::default()
        };
        let page = call(failover, |client| {
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

async fn fetch_run(failover: &FailoverClient, id: &str) -> anyhow::Result<FinalRun> {
    let run = call(failover, |client| {
        let request = v1::GetRunRequest { run_id: id.to_owned() };
        async move { client.get_run(request).await }
    });
    let run = run.await?.run.context("no run in the answer")?;
    let steps = call(failover, |client| {
        let request = v1::ListStepsRequest { run_id: id.to_owned() };
        async move { client.list_steps(request).await }
    });
    let steps = steps.await?.steps.into_iter().map(|step| {
        let outcome = step.outcome.as_ref().map(summarize);
        (usize::try_from(step.index).unwrap_or(usize::MAX), outcome)
    });
    Ok(FinalRun { steps: steps.collect(), ..final_run(&run)? })
}

/// Converts a run, without its steps.
fn final_run(run: &v1::Run) -> anyhow::Result<FinalRun> {
    let state: RunState = convert::run_state("state", run.state)?;
    let Some(v1::run::Input::Tools(input)) = &run.input else { anyhow::bail!("run {} has no input", run.id) };
    let outcomes: HashMap<&str, Outcome> =
        run.outcomes.iter().map(|outcome| (outcome.id.as_str(), summarize(outcome))).collect();
    Ok(FinalRun {
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

/// The checked fields of an outcome.
fn summarize(outcome: &v1::ToolOutcome) -> Outcome {
    let output: serde_json::Value = serde_json::from_str(&outcome.output).unwrap_or_default();
    Outcome {
        status: outcome.status.clone(),
        exit_code: output["exit_code"].as_i64(),
        signalled: output["signal"].is_number(),
    }
}

async fn call<T, F>(
    failover: &FailoverClient,
    attempt: impl Fn(remuda_client::Client) -> F,
) -> anyhow::Result<T>
where
    F: Future<Output = remuda_domain::Result<T>>,
{
    failover.call(CALL_TIMEOUT, attempt).await.map_err(|error| CallError::into_error(error).into())
}
