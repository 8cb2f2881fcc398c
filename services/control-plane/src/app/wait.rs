//! Waiting for a run without polling.

use std::time::Duration;

use remuda_domain::{Run, RunId, error::Result, identity::Principal};
use remuda_transport::EventSource;
use tokio::time::{Instant, timeout_at};

use super::App;

/// Live events may be lost; looking into the store now and then makes a lost one only late.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

impl App {
    /// The run once it is finished, or as it is after `max_wait`.
    pub async fn wait_run(&self, caller: &Principal, run: RunId, max_wait: Duration) -> Result<Run> {
        let deadline = Instant::now() + max_wait;
        let found = self.store.get_run(caller.tenant, run).await?;
        if found.state.is_terminal() {
            return Ok(found);
        }
        // Listen first, then look: an end between the two is seen by one of them.
        let mut live = self.transport.subscribe_events(caller.tenant, found.session).await?;
        loop {
            let now = self.store.get_run(caller.tenant, run).await?;
            if now.state.is_terminal() || Instant::now() >= deadline {
                return Ok(now);
            }
            let pause = (Instant::now() + LOOK_AGAIN).min(deadline);
            if let Ok(Heard::SourceEnded) = timeout_at(pause, end_of(live.as_mut(), run)).await {
                live = self.transport.subscribe_events(caller.tenant, found.session).await?;
            }
        }
    }
}

enum Heard {
    RunEnded,
    SourceEnded,
}

/// Returns when the run's terminal event comes by, or the source ends.
async fn end_of(live: &mut dyn EventSource, run: RunId) -> Heard {
    while let Some(events) = live.next().await {
        if events.iter().any(|event| event.run == Some(run) && event.body.terminal_state().is_some()) {
            return Heard::RunEnded;
        }
    }
    Heard::SourceEnded
}
