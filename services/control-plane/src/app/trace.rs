//! The trace of a run, reconstructed from the store.

use std::collections::VecDeque;

use chrono::Utc;
use remuda_domain::{
    Code, Cursor, Event, Run, RunId, SessionId, TenantId, Timestamp, error::Result, identity::Principal,
    session::SessionRef, step::Step, trace::TraceContext,
};
use remuda_trace::{HistorySpan, RunTrace, history};

use super::App;

/// Spans per response at most.
const MAX_SPANS: usize = 2_000;
/// Events of a session that are searched for those of one run.
const MAX_EVENTS: usize = 20_000;
/// The binary search for a run's first event stops at a range of this size, which is then read.
const MIN_SEARCHED: Cursor = 1_000;
const BATCH: usize = 1_000;

/// The spans of a run and of the runs below it.
#[derive(Clone, Debug)]
pub struct Trace {
    pub context: TraceContext,
    /// Each with its run.
    pub spans: Vec<(RunId, HistorySpan)>,
    pub truncated: bool,
    pub now: Timestamp,
}

impl App {
    /// Reconstructs the trace of a run, and of the runs below it.
    pub async fn trace(&self, caller: &Principal, run: RunId, with_children: bool) -> Result<Trace> {
        let (tenant, now) = (caller.tenant, Utc::now());
        let root = self.store.get_run(tenant, run).await?;
        let context = RunTrace::of(&root).run();
        let (mut spans, mut truncated) = (Vec::new(), false);
        let mut queue = VecDeque::from([root]);
        while let Some(run) = queue.pop_front() {
            if spans.len() >= MAX_SPANS {
                truncated = true;
                break;
            }
            let steps = self.store.list_steps(tenant, run.id).await?;
            let (events, cut) = self.events_of(tenant, &run, now).await?;
            truncated |= cut;
            spans.extend(history(&run, &steps, &events, now).into_iter().map(|span| (run.id, span)));
            for child in children(&steps).filter(|_| with_children) {
                match self.store.get_run(tenant, child).await {
                    Ok(child) => queue.push_back(child),
                    // Its session was deleted.
                    Err(error) if error.code() == Code::RunNotFound => {}
                    Err(error) => return Err(error),
                }
            }
        }
        truncated |= spans.len() > MAX_SPANS;
        spans.truncate(MAX_SPANS);
        Ok(Trace { context, spans, truncated, now })
    }

    /// The events of a run, and whether there may be more. They lie between its submission and its end in the stream of
    /// its session.
    async fn events_of(&self, tenant: TenantId, run: &Run, now: Timestamp) -> Result<(Vec<Event>, bool)> {
        let until = run.finished_at.unwrap_or(now);
        let mut after = self.cursor_before(tenant, run.session, run.created_at).await?;
        let (mut events, mut seen) = (Vec::new(), 0);
        while seen < MAX_EVENTS {
            let batch = self.store.read_events(tenant, run.session, after, BATCH).await?.events;
            let Some(last) = batch.last() else { break };
            after = last.cursor;
            seen += batch.len();
            // The end event has the time of its commit and is the last event of it.
            let over = last.at > until;
            events.extend(batch.into_iter().filter(|event| event.run == Some(run.id)));
            if over || events.iter().any(|event| event.body.terminal_state().is_some()) {
                return Ok((events, false));
            }
        }
        Ok((events, seen >= MAX_EVENTS))
    }

    /// A cursor before all events since `then`, found by binary search because a session may be long.
    async fn cursor_before(&self, tenant: TenantId, session: SessionId, then: Timestamp) -> Result<Cursor> {
        let last = self.store.get_session(tenant, &SessionRef::Id(session)).await?.last_cursor;
        let (mut before, mut after): (Cursor, Cursor) = (0, last);
        while after - before > MIN_SEARCHED {
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

/// The child runs that these steps delegated to.
fn children(steps: &[Step]) -> impl Iterator<Item = RunId> {
    steps.iter().filter_map(|step| Some(step.links()?.child.as_ref()?.run))
}
