//! Stopping runs from outside.

use remuda_domain::{
    Code, Error, Event, EventBody, Run, RunId, RunState, TenantId, WorkerId, error::Result, event::NewEvent,
    run::Failure, session::Owner,
};
use sqlx::query;

use super::{
    dialect::{self, Connection},
    runs,
    store::{Context, append},
    submit::lock,
};
use crate::{
    Cancelled,
    error::{db, json},
    rows::{Chunk, LockedHead, RunFinish},
    time::{DbTime, now},
};

/// What cancelling some runs of one session changes.
#[derive(Default)]
pub(super) struct Effects {
    pub(super) events: Vec<Event>,
    /// The owner to tell, and the run it should stop.
    pub(super) signal: Option<(WorkerId, RunId)>,
    chunks: Vec<Chunk>,
    finished: Vec<RunFinish>,
    marked: Vec<(RunId, DbTime, String)>,
}

/// Decides what cancelling `run` means: one that waits ends here, one that executes is marked for its owner.
pub(super) fn plan(locked: &mut LockedHead, run: &Run, reason: &str, effects: &mut Effects) -> Result<()> {
    let at = now();
    let executing = locked.head.current == Some(run.id) && locked.head.owner != Owner::Nobody;
    let body = if executing {
        // Also when asked before: the first signal may have been lost.
        effects.signal = locked.head.owner.worker().map(|worker| (worker, run.id));
        if run.cancel.is_some() {
            return Ok(());
        }
        effects.marked.push((run.id, DbTime(at), reason.to_owned()));
        EventBody::RunCancelRequested { reason: reason.to_owned() }
    } else {
        locked.head.retire(run.id);
        effects.finished.push(RunFinish {
            id: run.id.as_uuid(),
            state: RunState::Cancelled.to_db(),
            started_at: run.started_at.map(DbTime),
            finished_at: DbTime(at),
            failure: Some(json(&Failure::new(Code::Cancelled, reason))?),
            last_steps: None,
        });
        EventBody::RunCancelled { reason: reason.to_owned() }
    };
    let (events, chunk) = append(locked, vec![NewEvent { run: Some(run.id), at, body }])?;
    effects.events.extend(events);
    effects.chunks.extend(chunk);
    Ok(())
}

pub(super) async fn write(connection: &mut Connection, effects: &Effects) -> Result<()> {
    for (run, at, reason) in &effects.marked {
        query("UPDATE runs SET cancel_at = $2, cancel_reason = $3 WHERE id = $1 AND state < 10")
            .bind(run.as_uuid())
            .bind(*at)
            .bind(reason.as_str())
            .execute(&mut *connection)
            .await
            .map_err(db)?;
    }
    if !effects.finished.is_empty() {
        dialect::finish_runs(connection, &effects.finished).await?;
    }
    if !effects.chunks.is_empty() {
        dialect::append_chunks(connection, &effects.chunks).await?;
    }
    Ok(())
}

pub(super) async fn request(
    context: &Context,
    tenant: TenantId,
    run: RunId,
    reason: &str,
) -> Result<Cancelled> {
    let mut tx = dialect::begin(&context.writer).await?;
    // The run's session first: its lock comes before anything is decided.
    let session = runs::load(&mut tx, tenant, run).await?.session;
    let mut heads = lock(&mut tx, std::iter::once(session.as_uuid())).await?;
    let found = runs::load(&mut tx, tenant, run).await?;
    if found.state.is_terminal() {
        return Ok(Cancelled { run: found, already_finished: true, events: Vec::new(), signal: None });
    }
    let locked = heads.get_mut(&session.as_uuid()).ok_or_else(|| Error::internal("a run has no session"))?;
    let mut effects = Effects::default();
    plan(locked, &found, reason, &mut effects)?;
    write(&mut tx, &effects).await?;
    dialect::save_heads(&mut tx, &[locked]).await?;
    let run = runs::load(&mut tx, tenant, run).await?;
    tx.commit().await.map_err(db)?;
    let signal = effects.signal.map(|(worker, _)| worker);
    Ok(Cancelled { run, already_finished: false, events: effects.events, signal })
}
