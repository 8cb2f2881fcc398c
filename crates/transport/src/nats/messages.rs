//! A subscription to messages of one kind.

use async_nats::Subscriber;
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use remuda_domain::{
    error::{Error, Result},
    logs::Notice,
    run::RunEndNotice,
    worker::{Signal, SlotOffer},
};
use serde::{Serialize, de::DeserializeOwned};

use super::{Shared, envelope};
use crate::{
    GrantBatch,
    traits::{EndNoticeSource, GrantSource, NoticeSource, OfferSource, SignalSource},
};

/// Messages from now on. Those sent while the connection is down are lost.
pub(super) struct Messages<T> {
    subscriber: Subscriber,
    decode: fn(Bytes) -> Result<T>,
}

impl<T: DeserializeOwned> Messages<T> {
    /// Subscribes to messages that are JSON.
    pub(super) async fn json(shared: &Shared, subject: String) -> Result<Self> {
        Self::subscribe(shared, subject, |payload| {
            serde_json::from_slice(&payload)
                .map_err(|error| Error::internal("unexpected JSON").with_source(error))
        })
        .await
    }
}

impl<T> Messages<T> {
    pub(super) async fn subscribe(
        shared: &Shared,
        subject: String,
        decode: fn(Bytes) -> Result<T>,
    ) -> Result<Self> {
        let subscriber = shared.control.subscribe(subject, &shared.subjects.no_responders()).await?;
        Ok(Self { subscriber, decode })
    }

    async fn receive(&mut self) -> Option<T> {
        loop {
            let message = self.subscriber.next().await?;
            let subject = message.subject.clone();
            match (self.decode)(envelope::open(message).payload) {
                Ok(message) => return Some(message),
                // From a newer version, for example.
                Err(error) => tracing::warn!(%subject, error = error.chain(), "cannot decode a message"),
            }
        }
    }
}

macro_rules! sources {
    ($($source:ident of $message:ty;)*) => {$(
        #[async_trait]
        impl $source for Messages<$message> {
            async fn next(&mut self) -> Option<$message> {
                self.receive().await
            }
        }
    )*};
}

sources! {
    EndNoticeSource of Vec<RunEndNotice>;
    GrantSource of GrantBatch;
    NoticeSource of Notice;
    OfferSource of SlotOffer;
    SignalSource of Signal;
}

/// Encodes a message as JSON.
pub(super) fn to_json(message: &impl Serialize) -> Result<Bytes> {
    let json = serde_json::to_vec(message);
    json.map(Bytes::from).map_err(|error| Error::internal("cannot encode a message").with_source(error))
}
