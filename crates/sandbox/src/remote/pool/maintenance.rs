//! Maintenance of idle and spare instances.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use remuda_domain::{SandboxId, error::Result};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::{FIRST_COMMAND_QUIET_TIME, Instance, InstanceSpec, Pool, SessionEntry};

/// Longest interval between two rounds.
const MAX_ROUND: Duration = Duration::from_millis(500);
const MIN_ROUND: Duration = Duration::from_millis(20);
/// Interval of the search for orphaned instances of this backend.
const ORPHAN_SEARCH_INTERVAL: Duration = Duration::from_secs(15);
/// Pause after a spare could not be created.
const SPARE_RETRY: Duration = Duration::from_secs(5);
/// Timeout for removing everything.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

impl Pool {
    /// Maintains the pool until `stop`, then removes everything.
    pub(in crate::remote) async fn maintain(self: &Arc<Self>, stop: CancellationToken) {
        self.lock().closed = false;
        let first = self
            .options
            .pause_after
            .map_or(self.options.remove_after, |pause| pause.min(self.options.remove_after));
        let round = (first / 4).clamp(MIN_ROUND, MAX_ROUND);
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

    /// Pauses instances that are idle for a while, and removes those that are idle for long.
    async fn pause_or_remove_idle(&self) {
        let sessions: Vec<_> =
            self.lock().sessions.iter().map(|(key, entry)| (*key, Arc::clone(entry))).collect();
        for (key, entry) in sessions {
            // If the permit is taken, the instance is in use.
            let Ok(exclusive_permit) = Arc::clone(&entry.exclusive).try_acquire_owned() else { continue };
            if let Some(instance) = entry.get() {
                self.pause_or_remove(&entry, &instance).await;
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

    async fn pause_or_remove(&self, entry: &SessionEntry, instance: &Arc<Instance>) {
        if !instance.connection.alive() {
            drop(entry.replace(None));
            return;
        }
        let Some(idle) = instance.idle_since().map(|since| since.elapsed()) else { return };
        if idle >= self.options.remove_after {
            tracing::debug!(sandbox = %instance.sandbox, "removing an idle instance");
            drop(entry.replace(None));
        } else if self.options.pause_after.is_some_and(|pause| idle >= pause) && !instance.is_paused() {
            match instance.pause(&self.context).await {
                Ok(()) => tracing::debug!(sandbox = %instance.sandbox, "paused an idle instance"),
                Err(error) => {
                    tracing::warn!(error = error.chain(), "cannot pause an instance; removing it");
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
            let spec = target.spec();
            let existing_count = self.lock().spares.iter().filter(|spare| spare.spec == spec).count();
            for _ in existing_count..target.count {
                match self.create_spare(&spec).await {
                    Ok(true) => {}
                    Ok(false) => return true,
                    Err(error) => {
                        tracing::warn!(
                            error = error.chain(),
                            image = target.image,
                            "cannot create a spare instance"
                        );
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Creates a spare, if a permit is free.
    async fn create_spare(self: &Arc<Self>, spec: &InstanceSpec) -> Result<bool> {
        let image = self.context.provisioner.image(spec).await?;
        let sandbox = SandboxId::new();
        let Some(permit) = self.limit.try_take(sandbox) else { return Ok(false) };
        let worker = self.lock().worker;
        let plan = self.plan(sandbox, None, worker, image, spec.clone());
        let pool = Arc::clone(self);
        let making = self.context.tasks.spawn(async move {
            let instance = Arc::new(Instance::make(&pool.context, &plan, permit).await?);
            pool.feed_instance(&instance);
            // Warms up caches for the first command.
            instance.connection.round_trip().await?;
            let mut state = pool.lock();
            if !state.closed {
                state.spares.push(instance);
            }
            Ok(true)
        });
        making.await.unwrap_or(Ok(false))
    }

    /// Removes the longest idle instance, or else a spare. Returns whether there was one.
    pub(super) fn evict(&self) -> bool {
        let mut state = self.lock();
        let idle = state.sessions.values().filter_map(|entry| {
            let instance = entry.get()?;
            let since = instance.idle_since()?;
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

    /// Removes orphaned instances of this backend, whose removal failed while the engine was unreachable.
    async fn remove_orphans(&self) {
        let found = match self.find(Some(&self.backend), None).await {
            Ok(found) => found,
            Err(error) => {
                return tracing::debug!(error = error.chain(), "cannot list orphaned instances");
            }
        };
        let orphans = found.iter().filter(|found| found.ours && !self.limit.contains(found.sandbox));
        for orphan in orphans {
            tracing::warn!(sandbox = %orphan.sandbox, "removing an orphaned instance");
            if let Err(error) = self.context.provisioner.remove(&orphan.handle).await {
                tracing::warn!(error = error.chain(), "cannot remove an orphaned instance");
            }
        }
    }

    /// Removes all instances, in use or not.
    async fn close(&self) {
        let instances = self.instances();
        let (sessions, spares) = {
            let mut state = self.lock();
            state.closed = true;
            (std::mem::take(&mut state.sessions), std::mem::take(&mut state.spares))
        };
        for instance in &instances {
            instance.connection.close("this worker stops");
        }
        drop((sessions, spares, instances));
        // Most workers never use an engine: without instances, no request is sent.
        if !self.context.used.load(Ordering::Relaxed) {
            return;
        }
        let remove = async {
            self.context.tasks.close();
            self.context.tasks.wait().await;
            self.context.tasks.reopen();
            let found = self.find(Some(&self.backend), None).await?;
            for rest in found.iter().filter(|found| found.ours) {
                self.context.provisioner.remove(&rest.handle).await?;
            }
            self.context.provisioner.close().await
        };
        match timeout(CLOSE_TIMEOUT, remove).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(error = error.chain(), "cannot remove all instances; the reaper will")
            }
            Err(_) => tracing::warn!("cannot remove all instances in time; the reaper will"),
        }
    }
}
