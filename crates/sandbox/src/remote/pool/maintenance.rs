//! Maintenance of idle and spare containers.

use std::{sync::Arc, time::Duration};

use remuda_domain::{SandboxId, error::Result};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::{Container, ContainerSpec, FIRST_COMMAND_QUIET_TIME, Pool, SessionEntry, image, labels};
use crate::docker::options::WarmTarget;

/// Longest interval between two rounds.
const MAX_ROUND: Duration = Duration::from_millis(500);
const MIN_ROUND: Duration = Duration::from_millis(20);
/// Interval of the search for orphaned containers of this instance.
const ORPHAN_SEARCH_INTERVAL: Duration = Duration::from_secs(15);
/// Pause after a spare could not be created.
const SPARE_RETRY: Duration = Duration::from_secs(5);
/// Timeout for removing everything.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

impl Pool {
    /// Maintains the pool until `stop`, then removes everything.
    pub(crate) async fn maintain(self: &Arc<Self>, stop: CancellationToken) {
        self.lock().closed = false;
        let round = (self.options.pause_after.min(self.options.remove_after) / 4).clamp(MIN_ROUND, MAX_ROUND);
        let (mut next_orphan_search, mut next_spare_attempt) =
            (Instant::now() + ORPHAN_SEARCH_INTERVAL, Instant::now());
        loop {
            let work = async {
                self.pause_or_remove_idle().await;
                if next_spare_attempt <= Instant::now() && !self.fill_spares().await {
                    next_spare_attempt = Instant::now() + SPARE_RETRY;
                }
                if next_orphan_search <= Instant::now() {
                    self.remove_orphans().await;
                    next_orphan_search = Instant::now() + ORPHAN_SEARCH_INTERVAL;
                }
                tokio::time::sleep(round).await;
            };
            tokio::select! {
                () = stop.cancelled() => break,
                () = work => {}
            }
        }
        self.close().await;
    }

    /// Pauses containers that are idle for a while, and removes those that are idle for long.
    async fn pause_or_remove_idle(&self) {
        let sessions: Vec<_> =
            self.lock().sessions.iter().map(|(key, entry)| (*key, Arc::clone(entry))).collect();
        for (key, entry) in sessions {
            // If the permit is taken, the container is in use.
            let Ok(exclusive_permit) = Arc::clone(&entry.exclusive).try_acquire_owned() else { continue };
            if let Some(container) = entry.get() {
                self.pause_or_remove(&entry, &container).await;
            }
            drop(exclusive_permit);
            let mut state = self.lock();
            // Referenced only by the map and this function, and the lock prevents new references.
            if entry.get().is_none() && Arc::strong_count(&entry) == 2 {
                state.sessions.remove(&key);
            }
        }
        let dead: Vec<_> = self.lock().spares.extract_if(.., |spare| !spare.connection.alive()).collect();
        drop(dead);
    }

    async fn pause_or_remove(&self, entry: &SessionEntry, container: &Arc<Container>) {
        if !container.connection.alive() {
            drop(entry.replace(None));
            return;
        }
        let Some(idle) = container.idle_since().map(|since| since.elapsed()) else { return };
        if idle >= self.options.remove_after {
            tracing::debug!(sandbox = %container.sandbox, "removing an idle container");
            drop(entry.replace(None));
        } else if idle >= self.options.pause_after && !container.is_paused() {
            match container.pause(&self.context).await {
                Ok(()) => tracing::debug!(sandbox = %container.sandbox, "paused an idle container"),
                Err(error) => {
                    tracing::warn!(error = error.chain(), "cannot pause a container; removing it");
                    drop(entry.replace(None));
                }
            }
        }
    }

    /// Creates missing spares. False if one could not be created.
    async fn fill_spares(self: &Arc<Self>) -> bool {
        if self.lock().spare_taken_at.is_some_and(|taken| taken.elapsed() < FIRST_COMMAND_QUIET_TIME) {
            return true;
        }
        for target in &self.options.warm {
            let spec = ContainerSpec {
                image: target.image.clone(),
                network: target.network.clone(),
                limits: target.limits,
                mount: None,
            };
            let existing_count = self.lock().spares.iter().filter(|spare| spare.spec == spec).count();
            for _ in existing_count..target.count {
                match self.create_spare(target, &spec).await {
                    Ok(true) => {}
                    Ok(false) => return true,
                    Err(error) => {
                        tracing::warn!(
                            error = error.chain(),
                            image = target.image,
                            "cannot create a spare container"
                        );
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Creates a spare, if a permit is free.
    async fn create_spare(self: &Arc<Self>, target: &WarmTarget, spec: &ContainerSpec) -> Result<bool> {
        let image = image::find(&self.context.engine, Some(&target.image)).await?;
        let sandbox = SandboxId::new();
        let Some(permit) = self.limit.try_take(sandbox) else { return Ok(false) };
        let worker = self.lock().worker;
        let plan = self.plan(sandbox, None, worker, image, spec.clone());
        let pool = Arc::clone(self);
        let making = self.context.tasks.spawn(async move {
            let container = Arc::new(Container::make(&pool.context, &plan, permit).await?);
            pool.feed_container(&container);
            // Warms up caches for the first command.
            container.connection.round_trip().await?;
            let mut state = pool.lock();
            if !state.closed {
                state.spares.push(container);
            }
            Ok(true)
        });
        making.await.unwrap_or(Ok(false))
    }

    /// Removes the longest idle container, or else a spare. Returns whether there was one.
    pub(crate) fn evict(&self) -> bool {
        let mut state = self.lock();
        let idle = state.sessions.values().filter_map(|entry| {
            let container = entry.get()?;
            let since = container.idle_since()?;
            let exclusive_permit = Arc::clone(&entry.exclusive).try_acquire_owned().ok()?;
            Some((since, Arc::clone(entry), exclusive_permit))
        });
        let oldest = idle.min_by_key(|(since, ..)| *since);
        let evicted = match oldest {
            Some((_, entry, _exclusive_permit)) => entry.replace(None),
            None => state.spares.pop(),
        };
        drop(state);
        evicted.is_some()
    }

    /// Removes orphaned containers of this instance, whose removal failed while the engine was unreachable.
    async fn remove_orphans(&self) {
        let filters = [("label", format!("{}={}", labels::INSTANCE, self.instance))];
        let found = match self.find(&filters).await {
            Ok(found) => found,
            Err(error) => {
                return tracing::debug!(error = error.chain(), "cannot list orphaned containers");
            }
        };
        for orphan in found.iter().filter(|existing| !self.limit.contains(existing.sandbox)) {
            tracing::warn!(sandbox = %orphan.sandbox, "removing an orphaned container");
            if let Err(error) = self.context.engine.remove_container(&orphan.handle).await {
                tracing::warn!(error = error.chain(), "cannot remove an orphaned container");
            }
        }
    }

    /// Removes all containers, in use or not.
    async fn close(&self) {
        let containers = self.containers();
        let (sessions, spares) = {
            let mut state = self.lock();
            state.closed = true;
            (std::mem::take(&mut state.sessions), std::mem::take(&mut state.spares))
        };
        for container in &containers {
            container.connection.close("this worker stops");
        }
        drop((sessions, spares, containers));
        // Most workers never use an engine: without containers, no request is sent.
        if !self.context.volume.was_used() {
            return;
        }
        let remove = async {
            self.context.tasks.close();
            self.context.tasks.wait().await;
            self.context.tasks.reopen();
            let filters = [("label", format!("{}={}", labels::INSTANCE, self.instance))];
            for rest in self.find(&filters).await? {
                self.context.engine.remove_container(&rest.handle).await?;
            }
            self.context.volume.remove(&self.context.engine).await
        };
        match timeout(CLOSE_TIMEOUT, remove).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(error = error.chain(), "cannot remove all containers; the reaper will")
            }
            Err(_) => tracing::warn!("cannot remove all containers in time; the reaper will"),
        }
    }
}
