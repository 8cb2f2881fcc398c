//! Batched cursor lookups: compares followed sessions with the store, all of them periodically and some on request.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};

use super::{
    Inner,
    channel::{Key, LookupResult},
};

/// Sessions per query.
const PAGE: usize = 1000;
/// Pause after a failed query.
const RETRY: Duration = Duration::from_millis(500);

/// Runs until the hub stops.
pub(super) async fn run_cursor_lookups(hub: Arc<Inner>) {
    let every = hub.options.catch_up;
    let mut ticks = interval_at(Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stop = hub.stop.clone();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            () = hub.lookup_requested.notified() => {}
            _ = ticks.tick() => {
                let all: Vec<Key> = hub.channels.lock().keys().copied().collect();
                hub.lookups.lock().extend(all);
            }
        }
        run_pending_lookups(&hub).await;
    }
    let gone = async {
        while !hub.channels.lock().is_empty() {
            tokio::select! {
                () = hub.emptied.notified() => {}
                // Readers that attach to another session meanwhile are still served.
                () = hub.lookup_requested.notified() => run_pending_lookups(&hub).await,
            }
        }
    };
    // Readers that are left no longer read.
    drop(timeout(hub.options.drain_time, gone).await);
    hub.shutdown.cancel();
}

async fn run_pending_lookups(hub: &Inner) {
    let lookups: Vec<Key> = std::mem::take(&mut *hub.lookups.lock()).into_iter().collect();
    for page in lookups.chunks(PAGE) {
        match hub.store.last_cursors(page).await {
            Ok(ends) => {
                let channels = hub.channels.lock();
                for end in &ends {
                    if let Some(channel) = channels.get(&(end.tenant, end.session)) {
                        channel.deliver_lookup(LookupResult::End(*end));
                    }
                }
                let found = |key: &Key| ends.iter().any(|end| (end.tenant, end.session) == *key);
                if ends.len() < page.len() {
                    for missing in page.iter().filter(|key| !found(key)) {
                        if let Some(channel) = channels.get(missing) {
                            channel.deliver_lookup(LookupResult::Gone);
                        }
                    }
                }
            }
            Err(error) => {
                tracing::warn!(error = error.chain(), "cursor lookup failed; retrying");
                hub.lookups.lock().extend(page);
                sleep(RETRY).await;
                hub.lookup_requested.notify_one();
            }
        }
    }
}
