//! What nobody else tells: attempts of workers that were lost, and ends that no worker reports.

use remuda_domain::{Epoch, EventBody, Run, RunId, TenantId, Timestamp, error::Result, step::Step};
use remuda_store::{Lost, SessionChange, Store};
use remuda_telemetry::spans::{are_wanted, emit};

use crate::{AttemptEnd, RunTrace, run::fence_of};

/// Tells of what a change settled without a worker. Asks the store only if someone collects traces, and changes nothing.
pub async fn settled(store: &dyn Store, change: &SessionChange) {
    if !are_wanted() {
        return;
    }
    if let Err(error) = tell(store, change).await {
        tracing::warn!(session = %change.session, error = error.chain(), "spans of a run could not be told");
    }
}

async fn tell(store: &dyn Store, change: &SessionChange) -> Result<()> {
    for event in &change.events {
        let Some(run) = event.run else { continue };
        if let (EventBody::RunAttemptLost { worker, .. }, Some(lost)) = (&event.body, change.lost) {
            let (run, steps) = load(store, change.tenant, run).await?;
            tell_lost(&run, &steps, lost, fence_of(&run, *worker, lost.epoch), event.at);
        }
        if event.body.terminal_state().is_some() {
            let run = store.get_run(change.tenant, run).await?;
            let trace = RunTrace::of(&run);
            if trace.is_collected() {
                emit(trace.whole(&run, event.at));
            }
        }
    }
    Ok(())
}

async fn load(store: &dyn Store, tenant: TenantId, run: RunId) -> Result<(Run, Vec<Step>)> {
    Ok((store.get_run(tenant, run).await?, store.list_steps(tenant, run).await?))
}

/// The attempt that its worker did not live to tell of, and its steps: whether these were told cannot be known, and telling a
/// span twice does no harm.
fn tell_lost(run: &Run, steps: &[Step], lost: Lost, fence: remuda_domain::Fence, at: Timestamp) {
    let trace = RunTrace::of(run);
    if !trace.is_collected() {
        return;
    }
    steps
        .iter()
        .filter(|step| step.epoch == lost.epoch)
        .filter_map(|step| trace.stepped(step))
        .for_each(emit);
    let begun = begin_of(run, steps, lost.epoch).unwrap_or(at);
    let attempt = trace.attempted(&fence, lost.attempt, None, AttemptEnd::Lost, (begun, at));
    emit(attempt.linked(trace.attempt_before(lost.epoch, lost.attempt)));
}

/// When an attempt began, as far as steps tell: with its first one, or not before the last one of earlier attempts.
fn begin_of(run: &Run, steps: &[Step], epoch: Epoch) -> Option<Timestamp> {
    let first = steps.iter().filter(|step| step.epoch == epoch).map(|step| step.started_at).min();
    let earlier = steps.iter().filter(|step| step.epoch < epoch);
    let last = || earlier.map(|step| step.finished_at.unwrap_or(step.started_at)).max();
    first.or_else(last).or(run.started_at)
}

#[cfg(test)]
mod tests {
    use remuda_domain::{
        RunState, StepId, ToolCallId,
        step::{CallLinks, StepWork},
        tool::ToolCall,
    };

    use super::*;
    use crate::history::tests::{at, run};

    fn step(epoch: Epoch, start: i64, end: Option<i64>) -> Step {
        let (id, tool, arguments) = (ToolCallId::new(), "Bash".to_owned(), serde_json::json!({}));
        let call = ToolCall { id, tool, arguments, parallel: false, timeout: None };
        let work = StepWork::ToolCall { call, outcome: None, links: CallLinks::default() };
        Step { id: StepId::new(), index: 0, work, started_at: at(start), finished_at: end.map(at), epoch }
    }

    #[test]
    fn a_lost_attempt_begins_where_steps_say() {
        let run = run(RunState::Queued, None);
        assert_eq!(begin_of(&run, &[], 2), run.started_at);
        assert_eq!(begin_of(&run, &[step(1, 20, Some(30)), step(1, 25, None)], 2), Some(at(30)));
        assert_eq!(begin_of(&run, &[step(1, 20, Some(30)), step(2, 50, None)], 2), Some(at(50)));
    }
}
