//! Accepting runs.

use std::collections::HashMap;

use remuda_domain::{
    Code, Error, EventBody, Run, RunId, RunState, TenantId, Timestamp, error::Result, event::NewEvent,
    run::IfBusy,
    session::Owner,
};
use sqlx::{Row as _, query};
use uuid::Uuid;

use super::{
    cancel::{self, Effects},
    dialect::{self, Connection},
    runs,
    store::{Context, append},
};
use crate::{
    Idempotency, NewRun, Submitted,
    error::{db, json},
    rows::{Chunk, LockedHead, RunInsert},
    time::{DbTime, now},
};

/// Locks the sessions of a batch.
pub(super) async fn lock(
    connection: &mut Connection,
    sessions: impl Iterator<Item = Uuid>,
) -> Result<HashMap<Uuid, LockedHead>> {
    let mut ids: Vec<Uuid> = sessions.collect();
    ids.sort_unstable();
    ids.dedup();
    let rows = dialect::lock_heads(connection, &ids).await?;
    rows.into_iter().map(|row| Ok((row.id, row.into_head_with_owner()?))).collect()
}

pub(super) fn session_not_found() -> Error {
    Error::new(Code::SessionNotFound, "there is no such session").at("session")
}

/// What a batch of submits writes.
#[derive(Default)]
struct Writes {
    runs: Vec<RunInsert>,
    chunks: Vec<Chunk>,
}

enum Answer {
    Accepted(Box<Submitted>),
    /// An earlier request with the same key created this run.
    Replay(RunId),
    Refused(Error),
}

/// Accepts many runs in one transaction, each answered for itself.
pub(crate) async fn submit_batch(context: &Context, batch: &[NewRun]) -> Result<Vec<Result<Submitted>>> {
    let mut tx = dialect::begin(&context.writer).await?;
    let mut heads = lock(&mut tx, batch.iter().map(|run| run.session.as_uuid())).await?;
    let mut writes = Writes::default();
    let mut answers = Vec::with_capacity(batch.len());
    for run in batch {
        answers.push(accept(&mut tx, context, run, &mut heads, &mut writes).await?);
    }
    if !writes.runs.is_empty() {
        dialect::insert_runs(&mut tx, &writes.runs).await?;
        let changed: Vec<&LockedHead> = heads.values().collect();
        dialect::save_heads(&mut tx, &changed).await?;
        dialect::append_chunks(&mut tx, &writes.chunks).await?;
    }
    // Replays are read last: the run may have been inserted by this very batch.
    let mut results = Vec::with_capacity(batch.len());
    for (request, answer) in batch.iter().zip(answers) {
        results.push(match answer {
            Answer::Accepted(submitted) => Ok(*submitted),
            Answer::Refused(error) => Err(error),
            Answer::Replay(run) => replay(&mut tx, request.tenant, run).await,
        });
    }
    tx.commit().await.map_err(db)?;
    Ok(results)
}

async fn accept(
    connection: &mut Connection,
    context: &Context,
    request: &NewRun,
    heads: &mut HashMap<Uuid, LockedHead>,
    writes: &mut Writes,
) -> Result<Answer> {
    let locked = heads.get_mut(&request.session.as_uuid()).filter(|it| it.head.tenant == request.tenant);
    let Some(locked) = locked else {
        return Ok(Answer::Refused(session_not_found()));
    };
    let before = locked.head.clone();
    let seq = match locked.head.admit(request.if_busy, context.max_pending) {
        Ok(seq) => seq,
        // A retry of a request that was accepted is no new request: it gets its run even if nothing new is taken.
        Err(refusal) => return Ok(find_key(connection, request).await?.unwrap_or(Answer::Refused(refusal))),
    };
    if let Some(idempotency) = &request.idempotency
        && !remember_key(connection, context, request, idempotency).await?
    {
        locked.head = before;
        let lost = || Answer::Refused(Error::unavailable("the idempotency key expired just now"));
        return Ok(find_key(connection, request).await?.unwrap_or_else(lost));
    }
    let at = now();
    let queued = EventBody::RunQueued { seq, kind: request.input.kind().to_owned() };
    let (events, chunk) = append(locked, vec![NewEvent { run: Some(request.id), at, body: queued }])?;
    writes.chunks.extend(chunk);
    writes.runs.push(insert_row(request, seq, at)?);
    Ok(Answer::Accepted(Box::new(Submitted {
        run: new_run(request, seq, at),
        pool: locked.head.pool.clone(),
        deduplicated: false,
        wake: locked.head.owner == Owner::Nobody,
        events,
        interrupted: Vec::new(),
        signal: None,
    })))
}

/// Accepts a run and stops everything the session had before, in one transaction.
pub(crate) async fn submit_interrupting(context: &Context, request: &NewRun) -> Result<Submitted> {
    let mut tx = dialect::begin(&context.writer).await?;
    let mut heads = lock(&mut tx, std::iter::once(request.session.as_uuid())).await?;
    if let Some(Answer::Replay(run)) = find_key(&mut tx, request).await? {
        return replay(&mut tx, request.tenant, run).await;
    }
    let mut interrupted = Vec::new();
    let mut effects = Effects::default();
    if let Some(locked) =
        heads.get_mut(&request.session.as_uuid()).filter(|it| it.head.tenant == request.tenant)
    {
        for run in runs::live_runs(&mut tx, request.session).await? {
            interrupted.push(run.id);
            cancel::plan(locked, &run, "interrupted by a newer run", &mut effects)?;
        }
    }
    let mut writes = Writes::default();
    let enqueue = NewRun { if_busy: IfBusy::Enqueue, ..request.clone() };
    let mut submitted = match accept(&mut tx, context, &enqueue, &mut heads, &mut writes).await? {
        Answer::Accepted(submitted) => *submitted,
        Answer::Refused(error) => return Err(error),
        Answer::Replay(run) => return replay(&mut tx, request.tenant, run).await,
    };
    effects.events.append(&mut submitted.events);
    submitted.events = std::mem::take(&mut effects.events);
    submitted.interrupted = interrupted;
    submitted.signal = effects.signal;
    cancel::write(&mut tx, &effects).await?;
    dialect::insert_runs(&mut tx, &writes.runs).await?;
    let changed: Vec<&LockedHead> = heads.values().collect();
    dialect::save_heads(&mut tx, &changed).await?;
    dialect::append_chunks(&mut tx, &writes.chunks).await?;
    tx.commit().await.map_err(db)?;
    Ok(submitted)
}

async fn remember_key(
    connection: &mut Connection,
    context: &Context,
    request: &NewRun,
    idempotency: &Idempotency,
) -> Result<bool> {
    let expires = DbTime(now() + context.idempotency_ttl);
    let inserted = query(
        "INSERT INTO idempotency_keys (tenant_id, key, request_hash, run_id, expires_at) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT DO NOTHING",
    )
    .bind(request.tenant.as_uuid())
    .bind(idempotency.key.as_str())
    .bind(idempotency.request_hash.as_slice())
    .bind(request.id.as_uuid())
    .bind(expires)
    .execute(connection)
    .await
    .map_err(db)?;
    Ok(inserted.rows_affected() == 1)
}

/// What an earlier request with the same key means for this one.
async fn find_key(connection: &mut Connection, request: &NewRun) -> Result<Option<Answer>> {
    let Some(idempotency) = &request.idempotency else {
        return Ok(None);
    };
    let row = query("SELECT request_hash, run_id FROM idempotency_keys WHERE tenant_id = $1 AND key = $2")
        .bind(request.tenant.as_uuid())
        .bind(idempotency.key.as_str())
        .fetch_optional(connection)
        .await
        .map_err(db)?;
    let Some(row) = row else {
        return Ok(None);
    };
    let hash: Vec<u8> = row.try_get("request_hash").map_err(db)?;
    let run: Uuid = row.try_get("run_id").map_err(db)?;
    if hash == idempotency.request_hash {
        return Ok(Some(Answer::Replay(RunId::from_uuid(run))));
    }
    let conflict = Error::new(Code::IdempotencyConflict, "the key was used before with another request");
    Ok(Some(Answer::Refused(conflict.at("idempotency_key"))))
}

async fn replay(connection: &mut Connection, tenant: TenantId, run: RunId) -> Result<Submitted> {
    let run = runs::load(connection, tenant, run).await?;
    let pool = runs::pool_of(connection, run.session).await?;
    // The first request's wake-up may have been what failed.
    let wake = !run.state.is_terminal();
    Ok(Submitted {
        run,
        pool,
        deduplicated: true,
        wake,
        events: Vec::new(),
        interrupted: Vec::new(),
        signal: None,
    })
}

fn insert_row(request: &NewRun, seq: i64, at: Timestamp) -> Result<RunInsert> {
    Ok(RunInsert {
        id: request.id.as_uuid(),
        tenant: request.tenant.as_uuid(),
        session: request.session.as_uuid(),
        seq,
        input: json(&request.input)?,
        timeout_ms: i64::try_from(request.timeout.as_millis()).unwrap_or(i64::MAX),
        created_at: DbTime(at),
        idempotency_key: request.idempotency.as_ref().map(|it| it.key.clone()),
        traceparent: request.traceparent.clone(),
    })
}

fn new_run(request: &NewRun, seq: i64, at: Timestamp) -> Run {
    Run {
        id: request.id,
        tenant: request.tenant,
        session: request.session,
        seq,
        state: RunState::Queued,
        input: request.input.clone(),
        timeout: request.timeout,
        attempt: 0,
        created_at: at,
        started_at: None,
        finished_at: None,
        outcomes: Vec::new(),
        failure: None,
        cancel: None,
        idempotency_key: request.idempotency.as_ref().map(|it| it.key.clone()),
        traceparent: request.traceparent.clone(),
    }
}
