//! What nobody else tells: attempts of workers that were lost, and ends that no worker reports.

use remuda_domain::{EventBody, Run, RunId, TenantId, Timestamp, error::Result, step::Step};
use remuda_store::{Lost, SessionChange, Store};
use remuda_telemetry::spans::{are_collected, emit};

use crate::{AttemptEnd, RunTrace, run::fence_of};

/// Tells of what a change settled without a worker. Asks the store only if someone collects traces, and changes nothing.
pub async fn settled(store: &dyn Store, change: &SessionChange) {
    if !are_collected() {
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
    let its = || steps.iter().filter(|step| step.epoch == lost.epoch);
    let begun = its().map(|step| step.started_at).min().or(run.started_at).unwrap_or(at);
    its().filter_map(|step| trace.stepped(step)).for_each(emit);
    emit(trace.attempted(&fence, lost.attempt, None, AttemptEnd::Lost, (begun, at)));
}
