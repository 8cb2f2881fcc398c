//! Collects the rows that a commit writes.

use chrono::TimeDelta;
use remuda_domain::{Cursor, Error, EventBody, Timestamp, error::Result, event::NewEvent};

use super::write_set::WriteSet;
use crate::{
    Commit, Finish,
    error::json,
    row_writes::{ApprovalInsert, ContentWrite, MessageWrite, SpentWrite, StepWrite},
    rows::{LockedHead, RunFinish},
    time::DbTime,
};

pub(super) fn steps(commit: &Commit, writes: &mut WriteSet) -> Result<()> {
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

/// Approvals and spending. Children are handled separately, because they have their own sessions.
pub(super) fn related(
    commit: &Commit,
    locked: &mut LockedHead,
    at: Timestamp,
    writes: &mut WriteSet,
) -> Result<()> {
    if commit.children.is_empty() && commit.approvals.is_empty() && commit.spent.is_empty() {
        return Ok(());
    }
    writes.mark_related(locked);
    let run = commit.run.as_uuid();
    writes.spent.extend(commit.spent.iter().map(|spent| SpentWrite { run, spent: *spent }));
    for approval in &commit.approvals {
        let expires_in = approval.expires_in.and_then(|span| TimeDelta::from_std(span).ok());
        let expires_at = expires_in.and_then(|span| at.checked_add_signed(span));
        writes.approvals.push(ApprovalInsert {
            id: approval.id.as_uuid(),
            tenant: commit.fence.tenant.as_uuid(),
            session: commit.fence.session.as_uuid(),
            run,
            request: json(&approval.request)?,
            created_at: DbTime(at),
            expires_at: expires_at.map(DbTime),
        });
    }
    Ok(())
}

pub(super) fn messages(
    commit: &Commit,
    position: Cursor,
    at: Timestamp,
    writes: &mut WriteSet,
) -> Result<()> {
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

pub(super) fn contents(commit: &Commit, writes: &mut WriteSet) -> Result<()> {
    for content in &commit.contents {
        writes.contents.push(ContentWrite {
            tenant: commit.fence.tenant.as_uuid(),
            hash: *content.hash.as_bytes(),
            // JSON-encoded, because PostgreSQL's text cannot contain every character.
            body: json(&content.text)?,
        });
    }
    Ok(())
}

/// The events of an ending run. If the run was executed ahead, they are not dated before its predecessor's end.
pub(super) fn ending_events<'a>(
    commit: &'a Commit,
    finish: &Finish,
    locked: &LockedHead,
    at: Timestamp,
) -> impl Iterator<Item = NewEvent> + use<'a> {
    let not_before = finish.started_at.is_none().then(|| start_time(finish, locked, at));
    commit.events.iter().cloned().map(move |event| match not_before {
        Some(start_time) => NewEvent { at: event.at.max(start_time), ..event },
        None => event,
    })
}

/// The start of a run. The first run of a commit has a recorded start; a successor starts at the end of its
/// predecessor, now.
fn start_time(finish: &Finish, locked: &LockedHead, at: Timestamp) -> Timestamp {
    finish.started_at.or(locked.current_started_at).unwrap_or(at)
}

/// Ends an executed run. This is the only place that creates its terminal event, exactly one per run.
pub(super) fn end(
    commit: &Commit,
    finish: &Finish,
    locked: &mut LockedHead,
    at: Timestamp,
    writes: &mut WriteSet,
) -> Result<NewEvent> {
    let Finish { end, stopped_ago, agent, .. } = finish;
    let started_at = start_time(finish, locked, at);
    writes.agents.extend(agent.clone().map(|agent| (commit.fence.session.as_uuid(), agent)));
    let stopped_at =
        stopped_ago.map(|ago| at.checked_sub_signed(chrono::TimeDelta::from_std(ago).unwrap_or_default()));
    writes.finished.push(RunFinish {
        id: commit.run.as_uuid(),
        session_id: commit.fence.session.as_uuid(),
        state: end.state.to_db(),
        started_at: Some(DbTime(started_at)),
        finished_at: DbTime(at),
        failure: end.failure.as_ref().map(json).transpose()?,
        last_steps: if commit.steps.is_empty() { None } else { Some(json(&commit.steps)?) },
        attempts: 1,
        lost_attempts: 0,
        cancel_stopped_at: stopped_at.flatten().map(DbTime),
        paused_ms: 0,
    });
    if locked.has_related {
        writes.ended_with_related.push(commit.run.as_uuid());
    }
    locked.head.retire(commit.run);
    locked.current_started_at = None;
    let body = EventBody::for_end(end.state, end.failure.as_ref());
    let body = body.ok_or_else(|| Error::internal("no terminal event for this run state"))?;
    Ok(NewEvent { run: Some(commit.run), at, body })
}
