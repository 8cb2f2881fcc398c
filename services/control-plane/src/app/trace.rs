//! The trace of a run as the store remembers it.

use std::collections::VecDeque;

use chrono::Utc;
use remuda_domain::{
    Code, Cursor, Event, Run, RunId, SessionId, TenantId, Timestamp, error::Result, identity::Principal,
    session::SessionRef, step::Step, trace::TraceContext,
};
use remuda_trace::{Chapter, RunTrace, history};

use super::App;

/// Spans that one answer holds at most.
const MAX_SPANS: usize = 2_000;
/// Events of a session that are looked through for those of one run.
const MAX_EVENTS: usize = 20_000;
/// So few events are read rather than searched.
const LEAST_HALVED: Cursor = 1_000;
const BATCH: usize = 1_000;

/// Where the time of a run went.
#[derive(Clone, Debug)]
pub struct Trace {
    pub context: TraceContext,
    /// Each with the run that it is about.
    pub chapters: Vec<(RunId, Chapter)>,
    pub truncated: bool,
    pub now: Timestamp,
}

impl App {
    /// Draws the trace of a run, and of those below it.
    pub async fn trace(&self, caller: &Principal, run: RunId, with_children: bool) -> Result<Trace> {
        let (tenant, now) = (caller.tenant, Utc::now());
        let root = self.store.get_run(tenant, run).await?;
        let context = RunTrace::of(&root).run();
        let (mut chapters, mut truncated) = (Vec::new(), false);
        let mut line = VecDeque::from([root]);
        while let Some(run) = line.pop_front() {
            if chapters.len() >= MAX_SPANS {
                truncated = true;
                break;
            }
            let steps = self.store.list_steps(tenant, run.id).await?;
            let (events, cut) = self.events_of(tenant, &run, now).await?;
            truncated |= cut;
            chapters.extend(history(&run, &steps, &events, now).into_iter().map(|chapter| (run.id, chapter)));
            for child in children(&steps).filter(|_| with_children) {
                match self.store.get_run(tenant, child).await {
                    Ok(child) => line.push_back(child),
                    // Its session was deleted.
                    Err(error) if error.code() == Code::RunNotFound => {}
                    Err(error) => return Err(error),
                }
            }
        }
        truncated |= chapters.len() > MAX_SPANS;
        chapters.truncate(MAX_SPANS);
        Ok(Trace { context, chapters, truncated, now })
    }

    /// The events of a run, and whether there may be more. They stand together in its session's stream, between its submission and its
    /// end.
    async fn events_of(&self, tenant: TenantId, run: &Run, now: Timestamp) -> Result<(Vec<Event>, bool)> {
        let until = run.finished_at.unwrap_or(now);
        let mut after = self.cursor_before(tenant, run.session, run.created_at).await?;
        let (mut events, mut seen) = (Vec::new(), 0);
        while seen < MAX_EVENTS {
            let batch = self.store.read_events(tenant, run.session, after, BATCH).await?.events;
            let Some(last) = batch.last() else { break };
            after = last.cursor;
            seen += batch.len();
            // The end has the time of the commit, in which nothing comes after it.
            let over = last.at > until;
            events.extend(batch.into_iter().filter(|event| event.run == Some(run.id)));
            if over || events.iter().any(|event| event.body.terminal_state().is_some()) {
                return Ok((events, false));
            }
        }
        Ok((events, seen >= MAX_EVENTS))
    }

    /// A place in the stream before everything that happened since then: found by halves, because a session may be long.
    async fn cursor_before(&self, tenant: TenantId, session: SessionId, then: Timestamp) -> Result<Cursor> {
        let last = self.store.get_session(tenant, &SessionRef::Id(session)).await?.last_cursor;
        let (mut before, mut after): (Cursor, Cursor) = (0, last);
        while after - before > LEAST_HALVED {
            let middle = before + (after - before) / 2;
            let found = self.store.read_events(tenant, session, middle, 1).await?.events;
            match found.first() {
                Some(event) if event.at < then => before = middle,
                _ => after = middle,
            }
        }
        Ok(before)
    }
}

/// The runs that calls of these steps were given to.
fn children(steps: &[Step]) -> impl Iterator<Item = RunId> {
    steps.iter().filter_map(|step| Some(step.links()?.child.as_ref()?.run))
}
