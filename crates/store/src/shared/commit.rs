//! What owners write: progress, ends, and partings.

use std::collections::HashMap;

use remuda_domain::{
    Code, Cursor, Error, Event, EventBody, RunState, Timestamp, error::Result, event::NewEvent,
    session::Write,
};
use uuid::Uuid;

use super::{
    claim::{by_session, grant, load_earlier_steps},
    dialect,
    lock::{Locked, lock},
    recover::{self, Attempted, Parting},
    store::Context,
    writes::{self, Writes},
};
use crate::{
    Commit, Committed, Finish, Then,
    error::{db, json},
    rows::{HeadRunRow, LockedHead},
    time::DbTime,
    written::{ContentWrite, MessageWrite, RunFinish, StepWrite},
};

/// A commit that passed its checks.
struct Planned {
    session: Uuid,
    events: Vec<Event>,
    moves: Move,
}

/// What is left to do once everyone's writes are known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Move {
    /// The run goes on.
    Stay,
    /// On to the next run of the session, if there is one.
    Next,
    /// The session is nobody's now.
    Gone,
    /// This was all done before; the answer is to be found out once more.
    Replay,
}

/// Writes the progress and the ends of many runs in one transaction, each answered for itself.
pub(crate) async fn commit_batch(context: &Context, batch: &[Commit]) -> Result<Vec<Result<Committed>>> {
    let mut tx = dialect::begin(&context.writer).await?;
    let mut locked = lock(&mut tx, batch.iter().map(|commit| commit.fence.session.as_uuid())).await?;
    let parting = batch.iter().filter(|commit| matches!(commit.then, Then::HandOver | Then::Park(_)));
    let parting: Vec<Uuid> = parting.map(|commit| commit.fence.session.as_uuid()).collect();
    let mut current = recover::current_runs(&mut tx, &locked.heads, &parting).await?;
    let mut writes = Writes::default();
    let mut planned = Vec::with_capacity(batch.len());
    for commit in batch {
        planned.push(plan(context, commit, &mut locked, &mut current, &mut writes)?);
    }
    writes.write(&mut tx).await?;
    let moving = planned.iter().flatten().filter(|plan| matches!(plan.moves, Move::Next | Move::Replay));
    let waiting: Vec<Uuid> = moving
        .map(|plan| plan.session)
        .filter(|id| locked.heads.get(id).is_some_and(|it| it.head.pending > 0))
        .collect();
    let mut successors = match waiting.is_empty() {
        true => HashMap::new(),
        false => by_session(dialect::head_runs(&mut tx, &waiting).await?),
    };
    let mut results = Vec::with_capacity(batch.len());
    for (plan, commit) in planned.into_iter().zip(batch) {
        results.push(match plan {
            Ok(plan) => Ok(conclude(plan, commit, &mut locked, &mut successors)?),
            Err(error) => Err(error),
        });
    }
    let accepted = results.iter().zip(batch).filter(|(result, _)| result.is_ok());
    let changed: Vec<Uuid> = accepted.map(|(_, commit)| commit.fence.session.as_uuid()).collect();
    writes::save(&mut tx, &locked.heads, changed).await?;
    let next = results.iter_mut().flatten().filter_map(|committed| committed.next.as_deref_mut());
    load_earlier_steps(&mut tx, next, &[]).await?;
    tx.commit().await.map_err(db)?;
    Ok(results)
}

/// Checks one commit and notes what it writes. The outer error is a fault that fails the whole batch.
fn plan(
    context: &Context,
    commit: &Commit,
    locked: &mut Locked,
    current: &mut HashMap<Uuid, Attempted>,
    writes: &mut Writes,
) -> Result<Result<Planned>> {
    let (fence, session, at) = (commit.fence, commit.fence.session.as_uuid(), locked.at);
    let Some(locked) = locked.heads.get_mut(&session) else {
        return Ok(Err(Error::new(Code::OwnershipLost, "the session is gone")));
    };
    if let Err(refusal) = check(commit) {
        return Ok(Err(refusal));
    }
    match locked.head.accept(&fence, commit.id, commit.run) {
        Err(refusal) => return Ok(Err(refusal)),
        Ok(Write::Repeated) => {
            let moves = if matches!(commit.then, Then::Continue) { Move::Stay } else { Move::Replay };
            return Ok(Ok(Planned { session, events: Vec::new(), moves }));
        }
        Ok(Write::New) => {}
    }
    note_messages(commit, locked.head.last_cursor, at, writes)?;
    note_contents(commit, writes)?;
    let mut events = commit.events.clone();
    let (more, moves) = match &commit.then {
        Then::Continue => {
            note_steps(commit, writes)?;
            (Vec::new(), Move::Stay)
        }
        Then::End(finish) => {
            events.push(note_end(commit, finish, locked, at, writes)?);
            (Vec::new(), if finish.give_up { Move::Gone } else { Move::Next })
        }
        Then::HandOver | Then::Park(_) => {
            note_steps(commit, writes)?;
            let parting = match commit.then {
                Then::Park(ref parking) => Parting::Parked(parking.reason),
                _ => Parting::HandedOver,
            };
            let first = writes.append(locked, std::mem::take(&mut events))?;
            let parted = recover::part(context, locked, current.remove(&session), parting, at, writes)?;
            ([first, parted.events].concat(), Move::Gone)
        }
    };
    let mut appended = writes.append(locked, events)?;
    appended.extend(more);
    Ok(Ok(Planned { session, events: appended, moves }))
}

/// Refuses what no worker should ever write.
fn check(commit: &Commit) -> Result<()> {
    if !commit.messages.is_empty() && commit.events.is_empty() && matches!(commit.then, Then::Continue) {
        return Err(Error::internal("messages without an event have no place"));
    }
    if commit.events.iter().any(|event| event.body.terminal_state().is_some()) {
        return Err(Error::internal("a worker may not report the end of a run by itself"));
    }
    match &commit.then {
        Then::End(finish)
            if !finish.end.state.is_terminal() || !RunState::Running.allows(finish.end.state) =>
        {
            Err(Error::internal(format!("a run cannot end as {}", finish.end.state)))
        }
        _ => Ok(()),
    }
}

fn note_steps(commit: &Commit, writes: &mut Writes) -> Result<()> {
    for step in &commit.steps {
        writes.steps.push(StepWrite {
            run: commit.run.as_uuid(),
            id: step.id.as_uuid(),
            position: i32::try_from(step.index).unwrap_or(i32::MAX),
            json: json(step)?,
        });
    }
    Ok(())
}

fn note_messages(commit: &Commit, position: Cursor, at: Timestamp, writes: &mut Writes) -> Result<()> {
    for (message, ordinal) in commit.messages.iter().zip(0..) {
        writes.messages.push(MessageWrite {
            id: message.id.as_uuid(),
            session: commit.fence.session.as_uuid(),
            run: commit.run.as_uuid(),
            role: message.role.as_str(),
            agent: message.agent.clone(),
            parts: json(&message.parts)?,
            created_at: DbTime(at),
            position,
            ordinal,
        });
    }
    Ok(())
}

fn note_contents(commit: &Commit, writes: &mut Writes) -> Result<()> {
    for content in &commit.contents {
        writes.contents.push(ContentWrite {
            tenant: commit.fence.tenant.as_uuid(),
            hash: *content.hash.as_bytes(),
            // As JSON, because PostgreSQL's texts cannot hold every character.
            body: json(&content.text)?,
        });
    }
    Ok(())
}

/// The one place that makes terminal events of executed runs: exactly one per run.
fn note_end(
    commit: &Commit,
    finish: &Finish,
    locked: &mut LockedHead,
    at: Timestamp,
    writes: &mut Writes,
) -> Result<NewEvent> {
    let Finish { end, started_at, stopped_ago, agent, .. } = finish;
    writes.agents.extend(agent.clone().map(|agent| (commit.fence.session.as_uuid(), agent)));
    let stopped_at =
        stopped_ago.map(|ago| at.checked_sub_signed(chrono::TimeDelta::from_std(ago).unwrap_or_default()));
    writes.finished.push(RunFinish {
        id: commit.run.as_uuid(),
        state: end.state.to_db(),
        started_at: Some(DbTime(*started_at)),
        finished_at: DbTime(at),
        failure: end.failure.as_ref().map(json).transpose()?,
        last_steps: if commit.steps.is_empty() { None } else { Some(json(&commit.steps)?) },
        attempts: 1,
        lost_attempts: 0,
        stopped_at: stopped_at.flatten().map(DbTime),
    });
    locked.head.retire(commit.run);
    locked.current_started_at = None;
    let body = EventBody::for_end(end.state, end.failure.as_ref());
    let body = body.ok_or_else(|| Error::internal("an end without an event"))?;
    Ok(NewEvent { run: Some(commit.run), at, body })
}

/// Moves an owner on to the next run, or takes the session from it when there is none.
fn conclude(
    plan: Planned,
    commit: &Commit,
    locked: &mut Locked,
    successors: &mut HashMap<Uuid, HeadRunRow>,
) -> Result<Committed> {
    let mut committed = Committed {
        events: plan.events,
        next: None,
        released: false,
        children: Vec::new(),
        parent: None,
        has_children: false,
    };
    if plan.moves == Move::Stay {
        return Ok(committed);
    }
    let at = locked.at;
    let head = locked.heads.get_mut(&plan.session);
    let head = head.ok_or_else(|| Error::internal("a planned session is missing"))?;
    let still_owned = head.head.verify(&commit.fence).is_ok();
    let successor = match plan.moves {
        Move::Gone => None,
        Move::Replay if !still_owned => None,
        _ => successors.remove(&plan.session).filter(HeadRunRow::is_runnable),
    };
    match successor {
        Some(row) => committed.next = Some(Box::new(grant(head, commit.fence, row, at)?)),
        None => {
            if still_owned {
                head.head.release();
            }
            committed.released = true;
        }
    }
    Ok(committed)
}
