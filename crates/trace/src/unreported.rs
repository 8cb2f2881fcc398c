//! Emits spans that no worker reports: attempts of lost workers, and ends that were committed without a worker.

use remuda_domain::{Epoch, EventBody, Run, RunId, TenantId, Timestamp, error::Result, step::Step};
use remuda_store::{LostAttempt, SessionChange, Store};
use remuda_telemetry::spans::{are_exported, emit};

use crate::{AttemptEnd, RunTrace, run::fence_of};

/// Emits the spans of a change that was committed without a worker. Reads the store only if spans are exported.
pub async fn emit_unreported(store: &dyn Store, change: &SessionChange) {
    if !are_exported() {
        return;
    }
    if let Err(error) = emit_change(store, change).await {
        tracing::warn!(session = %change.session, error = error.chain(), "emitting spans of a run failed");
    }
}

async fn emit_change(store: &dyn Store, change: &SessionChange) -> Result<()> {
    for event in &change.events {
        let Some(run) = event.run else { continue };
        if let (EventBody::RunAttemptLost { worker, .. }, Some(lost)) = (&event.body, change.lost) {
            let (run, steps) = load(store, change.tenant, run).await?;
            emit_lost_attempt(&run, &steps, lost, fence_of(&run, *worker, lost.epoch), event.at);
        }
        if event.body.terminal_state().is_some() {
            let run = store.get_run(change.tenant, run).await?;
            let trace = RunTrace::of(&run);
            if trace.is_collected() {
                emit(trace.run_span(&run, event.at));
            }
        }
    }
    Ok(())
}

async fn load(store: &dyn Store, tenant: TenantId, run: RunId) -> Result<(Run, Vec<Step>)> {
    Ok((store.get_run(tenant, run).await?, store.list_steps(tenant, run).await?))
}

/// Emits the attempt of a lost worker, and its steps. The worker may have emitted some of the steps; duplicates are
/// harmless.
fn emit_lost_attempt(
    run: &Run,
    steps: &[Step],
    lost: LostAttempt,
    fence: remuda_domain::Fence,
    at: Timestamp,
) {
    let trace = RunTrace::of(run);
    if !trace.is_collected() {
        return;
    }
    steps
        .iter()
        .filter(|step| step.epoch == lost.epoch)
        .filter_map(|step| trace.step_span(step))
        .for_each(emit);
    let begun = attempt_start(run, steps, lost.epoch).unwrap_or(at);
    let attempt = trace.attempt_span(&fence, lost.attempt, None, AttemptEnd::Lost, (begun, at));
    emit(attempt.linked(trace.attempt_before(lost.epoch, lost.attempt)));
}

/// When an attempt started, as far as steps show: with its first step, or else after the last step of earlier attempts.
fn attempt_start(run: &Run, steps: &[Step], epoch: Epoch) -> Option<Timestamp> {
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
    fn start_of_a_lost_attempt_is_derived_from_steps() {
        let run = run(RunState::Queued, None);
        assert_eq!(attempt_start(&run, &[], 2), run.started_at);
        assert_eq!(attempt_start(&run, &[step(1, 20, Some(30)), step(1, 25, None)], 2), Some(at(30)));
        assert_eq!(attempt_start(&run, &[step(1, 20, Some(30)), step(2, 50, None)], 2), Some(at(50)));
    }
}
