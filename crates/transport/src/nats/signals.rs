//! Signals to workers over core NATS. They share the connection with tokens: both are few and urgent.

use async_nats::Subscriber;
use async_trait::async_trait;
use futures::StreamExt;
use remuda_domain::{
    WorkerId,
    error::{Error, Result},
    worker::Signal,
};

use super::Shared;
use crate::traits::SignalSource;

pub(super) async fn send(shared: &Shared, worker: WorkerId, signal: &Signal) -> Result<()> {
    let payload = serde_json::to_vec(signal)
        .map_err(|error| Error::internal("cannot encode a signal").with_source(error))?;
    shared.control.publish("send signal", shared.subjects.control(worker), payload.into()).await?;
    // The sender may be a command that exits now.
    shared.control.flush().await
}

/// The signals for one worker. Those sent while the connection is down are lost; the worker finds the requests in the
/// store.
pub(super) struct NatsSignals {
    subscriber: Subscriber,
}

impl NatsSignals {
    pub(super) async fn open(shared: &Shared, worker: WorkerId) -> Result<Self> {
        let subject = shared.subjects.control(worker);
        Ok(Self { subscriber: shared.control.subscribe(subject, &shared.subjects.no_responders()).await? })
    }
}

#[async_trait]
impl SignalSource for NatsSignals {
    async fn next(&mut self) -> Option<Signal> {
        loop {
            let message = self.subscriber.next().await?;
            match serde_json::from_slice(&message.payload) {
                Ok(signal) => return Some(signal),
                Err(error) => tracing::warn!(%error, "cannot decode a signal"),
            }
        }
    }
}
