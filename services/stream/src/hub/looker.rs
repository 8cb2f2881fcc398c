//! Compares what was heard with the store: all sessions now and then, and some at once when asked to. One query for many.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};

use super::{
    Inner,
    channel::{Key, Said, lock},
};

/// Sessions of one query.
const PAGE: usize = 1000;
/// The pause after a query that failed.
const RETRY: Duration = Duration::from_millis(500);

/// Looks until the end.
pub(super) async fn look(hub: Arc<Inner>) {
    let every = hub.options.catch_up;
    let mut ticks = interval_at(Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stop = hub.stop.clone();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            () = hub.called.notified() => {}
            _ = ticks.tick() => {
                let all: Vec<Key> = lock(&hub.channels).keys().copied().collect();
                lock(&hub.wanted).extend(all);
            }
        }
        look_at_wanted(&hub).await;
    }
    let gone = async {
        while !lock(&hub.channels).is_empty() {
            tokio::select! {
                () = hub.emptied.notified() => {}
                // Readers that come back to another session meanwhile are still served.
                () = hub.called.notified() => look_at_wanted(&hub).await,
            }
        }
    };
    // Whoever is left does not read any more.
    drop(timeout(hub.options.farewell, gone).await);
    hub.over.cancel();
}

async fn look_at_wanted(hub: &Inner) {
    let wanted: Vec<Key> = std::mem::take(&mut *lock(&hub.wanted)).into_iter().collect();
    for page in wanted.chunks(PAGE) {
        match hub.store.last_cursors(page).await {
            Ok(ends) => {
                let channels = lock(&hub.channels);
                for end in &ends {
                    if let Some(channel) = channels.get(&(end.tenant, end.session)) {
                        channel.tell(Said::End(*end));
                    }
                }
                let found = |key: &Key| ends.iter().any(|end| (end.tenant, end.session) == *key);
                if ends.len() < page.len() {
                    for missing in page.iter().filter(|key| !found(key)) {
                        if let Some(channel) = channels.get(missing) {
                            channel.tell(Said::Gone);
                        }
                    }
                }
            }
            Err(error) => {
                tracing::warn!(
                    error = error.chain(),
                    "sessions cannot be compared with the store at the moment"
                );
                lock(&hub.wanted).extend(page);
                sleep(RETRY).await;
                hub.called.notify_one();
            }
        }
    }
}
