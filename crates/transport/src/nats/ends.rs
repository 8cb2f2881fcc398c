//! Ends of runs on their way to control planes whose callers wait for them, as many at once as there are. They share the connection with
//! tokens: both are urgent.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_nats::Subscriber;
use async_trait::async_trait;
use futures::StreamExt;
use remuda_domain::{PlaneId, error::Result, run::LastWords};

use super::{Shared, live::batches};
use crate::traits::EndSource;

/// Ends that may wait to be told. This is for the case that nothing can be sent; who waits for more than these looks into the store.
const MAX_WAITING: usize = 16_384;

/// Ends that are to be told.
#[derive(Default)]
pub(super) struct Outbox(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    ends: Vec<(PlaneId, LastWords)>,
    /// A task tells of them.
    telling: bool,
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be told now. Without anything the task ends.
    fn take(&self) -> Option<Vec<(PlaneId, LastWords)>> {
        let mut waiting = self.lock();
        waiting.telling = !waiting.ends.is_empty();
        waiting.telling.then(|| std::mem::take(&mut waiting.ends))
    }
}

/// Leaves an end to a task that tells of it, with all that come until it does.
pub(super) fn tell(shared: &Arc<Shared>, plane: PlaneId, words: LastWords) {
    let mut waiting = shared.ends.lock();
    if waiting.ends.len() >= MAX_WAITING {
        return;
    }
    waiting.ends.push((plane, words));
    if !std::mem::replace(&mut waiting.telling, true) {
        shared.tasks.spawn(tell_all(Arc::clone(shared)));
    }
}

async fn tell_all(shared: Arc<Shared>) {
    while let Some(ends) = shared.ends.take() {
        let mut by_plane: HashMap<PlaneId, Vec<LastWords>> = HashMap::new();
        for (plane, words) in ends {
            by_plane.entry(plane).or_default().push(words);
        }
        for (plane, words) in by_plane {
            for payload in batches(&words, shared.control.client().max_payload()) {
                let subject = shared.names.ends(plane);
                if let Err(error) = shared.control.publish("tell of ends", subject, payload).await {
                    tracing::debug!(%plane, error = error.chain(), "ends could not be told; who waits looks for them");
                }
            }
        }
    }
}

pub(super) struct NatsEnds {
    subscriber: Subscriber,
}

impl NatsEnds {
    pub(super) async fn open(shared: &Shared, plane: PlaneId) -> Result<Self> {
        let subscriber = shared.control.subscribe(shared.names.ends(plane), &shared.names.nobody()).await?;
        Ok(Self { subscriber })
    }
}

#[async_trait]
impl EndSource for NatsEnds {
    async fn next(&mut self) -> Option<Vec<LastWords>> {
        loop {
            let message = self.subscriber.next().await?;
            match serde_json::from_slice(&message.payload) {
                Ok(ends) => return Some(ends),
                // From a newer version, say.
                Err(error) => tracing::debug!(%error, "cannot read ends of runs"),
            }
        }
    }
}
