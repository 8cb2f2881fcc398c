//! Looking after containers that nobody uses.

use std::{sync::Arc, time::Duration};

use remuda_domain::{SandboxId, error::Result};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::{Container, FIRST_COMMAND, Pool, Shape, Slot, image, labels};
use crate::docker::options::WarmTarget;

/// How often everyone is looked at.
const ROUND: Duration = Duration::from_millis(500);
const SHORTEST_ROUND: Duration = Duration::from_millis(20);
/// How often the engine is asked for containers of ours that we forgot.
const SWEEP_EVERY: Duration = Duration::from_secs(15);
/// After a spare could not be made.
const WARM_RETRY: Duration = Duration::from_secs(5);
/// How long removing everything may take.
const CLOSE_PATIENCE: Duration = Duration::from_secs(30);

impl Pool {
    /// Until `stop`, and then it removes everything.
    pub(in crate::docker) async fn keep(self: &Arc<Self>, stop: CancellationToken) {
        self.lock().closed = false;
        let round =
            (self.options.pause_after.min(self.options.remove_after) / 4).clamp(SHORTEST_ROUND, ROUND);
        let (mut sweep_at, mut warm_at) = (Instant::now() + SWEEP_EVERY, Instant::now());
        loop {
            let work = async {
                self.settle().await;
                if warm_at <= Instant::now() && !self.warm().await {
                    warm_at = Instant::now() + WARM_RETRY;
                }
                if sweep_at <= Instant::now() {
                    self.sweep().await;
                    sweep_at = Instant::now() + SWEEP_EVERY;
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

    /// Pauses what has been idle for a while, and removes what has been for long.
    async fn settle(&self) {
        let slots: Vec<_> = self.lock().slots.iter().map(|(key, slot)| (*key, Arc::clone(slot))).collect();
        for (key, slot) in slots {
            // Whoever has the gate uses the container.
            let Ok(turn) = Arc::clone(&slot.gate).try_acquire_owned() else { continue };
            if let Some(container) = slot.get() {
                self.settle_one(&slot, &container).await;
            }
            drop(turn);
            let mut state = self.lock();
            // Of the map and of this function: nobody else has it, and nobody can get it meanwhile.
            if slot.get().is_none() && Arc::strong_count(&slot) == 2 {
                state.slots.remove(&key);
            }
        }
        let dead: Vec<_> = self.lock().spares.extract_if(.., |spare| !spare.link.alive()).collect();
        drop(dead);
    }

    async fn settle_one(&self, slot: &Slot, container: &Arc<Container>) {
        if !container.link.alive() {
            drop(slot.put(None));
            return;
        }
        let Some(idle) = container.idle_since().map(|since| since.elapsed()) else { return };
        if idle >= self.options.remove_after {
            tracing::debug!(sandbox = %container.sandbox, "removing an idle container");
            drop(slot.put(None));
        } else if idle >= self.options.pause_after && !container.is_paused() {
            match container.pause(&self.workshop).await {
                Ok(()) => tracing::debug!(sandbox = %container.sandbox, "paused an idle container"),
                Err(error) => {
                    tracing::warn!(error = error.chain(), "removing a container that cannot be paused");
                    drop(slot.put(None));
                }
            }
        }
    }

    /// Makes missing spares. Says whether that worked.
    async fn warm(self: &Arc<Self>) -> bool {
        if self.lock().spare_taken.is_some_and(|taken| taken.elapsed() < FIRST_COMMAND) {
            return true;
        }
        for target in &self.options.warm {
            let shape = Shape {
                image: target.image.clone(),
                network: target.network.clone(),
                limits: target.limits,
                mount: None,
            };
            let there = self.lock().spares.iter().filter(|spare| spare.shape == shape).count();
            for _ in there..target.count {
                match self.make_spare(target, &shape).await {
                    Ok(true) => {}
                    Ok(false) => return true,
                    Err(error) => {
                        tracing::warn!(
                            error = error.chain(),
                            image = target.image,
                            "cannot make a spare container"
                        );
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Spares only take places that are free.
    async fn make_spare(self: &Arc<Self>, target: &WarmTarget, shape: &Shape) -> Result<bool> {
        let image = image::find(&self.workshop.engine, Some(&target.image)).await?;
        let sandbox = SandboxId::new();
        let Some(ticket) = self.places.try_take(sandbox) else { return Ok(false) };
        let worker = self.lock().worker;
        let plan = self.plan(sandbox, None, worker, image, shape.clone());
        let pool = Arc::clone(self);
        let making = self.workshop.tasks.spawn(async move {
            let container = Arc::new(Container::make(&pool.workshop, &plan, ticket).await?);
            pool.feed_one(&container);
            // What the first command needs is then in memory.
            container.link.answer().await?;
            let mut state = pool.lock();
            if !state.closed {
                state.spares.push(container);
            }
            Ok(true)
        });
        making.await.unwrap_or(Ok(false))
    }

    /// Removes what is idle for the longest time, or else a spare, to make room. Says whether there was something.
    pub(super) fn evict(&self) -> bool {
        let mut state = self.lock();
        let idle = state.slots.values().filter_map(|slot| {
            let container = slot.get()?;
            let since = container.idle_since()?;
            let turn = Arc::clone(&slot.gate).try_acquire_owned().ok()?;
            Some((since, Arc::clone(slot), turn))
        });
        let oldest = idle.min_by_key(|(since, ..)| *since);
        let evicted = match oldest {
            Some((_, slot, _turn)) => slot.put(None),
            None => state.spares.pop(),
        };
        drop(state);
        evicted.is_some()
    }

    /// Removes containers of ours that we do not know: their removal failed when the engine was away.
    async fn sweep(&self) {
        let filters = [("label", format!("{}={}", labels::INSTANCE, self.instance))];
        let found = match self.find(&filters).await {
            Ok(found) => found,
            Err(error) => {
                return tracing::debug!(error = error.chain(), "cannot look for forgotten containers");
            }
        };
        for forgotten in found.iter().filter(|existing| !self.places.knows(existing.sandbox)) {
            tracing::warn!(sandbox = %forgotten.sandbox, "removing a forgotten container");
            if let Err(error) = self.workshop.engine.remove_container(&forgotten.handle).await {
                tracing::warn!(error = error.chain(), "cannot remove a forgotten container");
            }
        }
    }

    /// Removes everything, in use or not.
    async fn close(&self) {
        let containers = self.containers();
        let (slots, spares) = {
            let mut state = self.lock();
            state.closed = true;
            (std::mem::take(&mut state.slots), std::mem::take(&mut state.spares))
        };
        for container in &containers {
            container.link.close("this worker stops");
        }
        drop((slots, spares, containers));
        // Most workers never meet an engine: nothing is asked of one that made nothing.
        if !self.workshop.volume.was_wanted() {
            return;
        }
        let remove = async {
            self.workshop.tasks.close();
            self.workshop.tasks.wait().await;
            self.workshop.tasks.reopen();
            let filters = [("label", format!("{}={}", labels::INSTANCE, self.instance))];
            for rest in self.find(&filters).await? {
                self.workshop.engine.remove_container(&rest.handle).await?;
            }
            self.workshop.volume.remove(&self.workshop.engine).await
        };
        match timeout(CLOSE_PATIENCE, remove).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(error = error.chain(), "containers are left for the reaper"),
            Err(_) => tracing::warn!("containers are left for the reaper: the Docker engine is too slow"),
        }
    }
}
