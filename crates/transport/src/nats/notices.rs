//! Broadcast notices to all processes, over core NATS. They share the connection with signals: both are few.

use async_nats::Subscriber;
use async_trait::async_trait;
use futures::StreamExt;
use remuda_domain::{
    error::{Error, Result},
    logs::Notice,
};

use super::Shared;
use crate::traits::NoticeSource;

pub(super) async fn send(shared: &Shared, notice: &Notice) -> Result<()> {
    let payload = serde_json::to_vec(notice)
        .map_err(|error| Error::internal("cannot encode a notice").with_source(error))?;
    shared.control.publish("send notice", shared.subjects.notices(), payload.into()).await?;
    shared.control.flush().await
}

/// All notices. Those sent while the connection is down are lost.
pub(super) struct NatsNotices {
    subscriber: Subscriber,
}

impl NatsNotices {
    pub(super) async fn open(shared: &Shared) -> Result<Self> {
        let subject = shared.subjects.notices();
        Ok(Self { subscriber: shared.control.subscribe(subject, &shared.subjects.no_responders()).await? })
    }
}

#[async_trait]
impl NoticeSource for NatsNotices {
    async fn next(&mut self) -> Option<Notice> {
        loop {
            let message = self.subscriber.next().await?;
            match serde_json::from_slice(&message.payload) {
                Ok(notice) => return Some(notice),
                // From a newer version, for example.
                Err(error) => tracing::debug!(%error, "cannot decode a notice"),
            }
        }
    }
}
