//! A subscription to messages of one kind.

use std::{marker::PhantomData, sync::Arc};

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

use super::{
    Shared,
    envelope::{Envelope, Kind, ReplayWindow, Sender},
};
use crate::{
    GrantBatch,
    meters::Rejection,
    traits::{EndNoticeSource, GrantSource, NoticeSource, OfferSource, SignalSource},
};

/// Messages from now on. Those sent while the connection is down are lost.
pub(super) struct Messages<T> {
    envelope: Arc<Envelope>,
    subscriber: Subscriber,
    received: ReplayWindow,
    /// Whether the last message is proven.
    is_proven: bool,
    message: PhantomData<fn() -> T>,
}

/// What a subscription receives.
pub(super) trait BusMessage: Sized {
    const KIND: Kind;

    fn decode(payload: Bytes) -> Result<Self>;

    /// Whether the sender of a proven message may say this.
    fn is_allowed(&self, sender: Sender) -> bool;

    /// What remains of a message that is not proven. Nothing in it may be believed.
    fn into_hint(self) -> Option<Self>;
}

impl<T: BusMessage> Messages<T> {
    pub(super) async fn subscribe(shared: &Shared, subject: String) -> Result<Self> {
        let subscriber = shared.control.subscribe(subject, &shared.subjects.no_responders()).await?;
        Ok(Self {
            envelope: Arc::clone(&shared.envelope),
            subscriber,
            received: ReplayWindow::default(),
            is_proven: false,
            message: PhantomData,
        })
    }

    async fn receive(&mut self) -> Option<T> {
        loop {
            let message = self.subscriber.next().await?;
            let subject = message.subject.clone();
            let Some(opened) = self.envelope.open(T::KIND, message, &mut self.received).await else {
                continue;
            };
            let message = match T::decode(opened.payload) {
                Ok(message) => message,
                // From a newer version, for example. Others can send anything.
                Err(error) => {
                    if opened.sender.is_some() {
                        tracing::warn!(%subject, error = error.chain(), "cannot decode a message");
                    }
                    continue;
                }
            };
            self.is_proven = opened.sender.is_some_and(|sender| message.is_allowed(sender));
            if self.is_proven {
                return Some(message);
            }
            if opened.sender.is_some() {
                self.envelope.reject(T::KIND, Rejection::NotAllowed, &subject);
            }
            if let Some(hint) = message.into_hint() {
                return Some(hint);
            }
        }
    }
}

impl BusMessage for Vec<RunEndNotice> {
    const KIND: Kind = Kind::Ends;

    fn decode(payload: Bytes) -> Result<Self> {
        from_json(&payload)
    }

    fn is_allowed(&self, _: Sender) -> bool {
        true
    }

    fn into_hint(mut self) -> Option<Self> {
        self.iter_mut().for_each(|notice| notice.completed = None);
        Some(self)
    }
}

impl BusMessage for GrantBatch {
    const KIND: Kind = Kind::Grants;

    fn decode(payload: Bytes) -> Result<Self> {
        Self::decode(payload)
    }

    fn is_allowed(&self, sender: Sender) -> bool {
        matches!(sender, Sender::Installation | Sender::Assumed)
    }

    fn into_hint(mut self) -> Option<Self> {
        self.grants.iter_mut().for_each(|grant| grant.body = None);
        Some(self)
    }
}

impl BusMessage for Signal {
    const KIND: Kind = Kind::Signals;

    fn decode(payload: Bytes) -> Result<Self> {
        from_json(&payload)
    }

    /// A worker cancels children of its runs.
    fn is_allowed(&self, sender: Sender) -> bool {
        !matches!(sender, Sender::Worker(_)) || matches!(self, Self::Cancel { .. })
    }

    fn into_hint(self) -> Option<Self> {
        Some(self)
    }
}

impl BusMessage for SlotOffer {
    const KIND: Kind = Kind::Offers;

    fn decode(payload: Bytes) -> Result<Self> {
        from_json(&payload)
    }

    /// A worker offers slots of its own.
    fn is_allowed(&self, sender: Sender) -> bool {
        !matches!(sender, Sender::Worker(worker) if worker != self.worker)
    }

    fn into_hint(self) -> Option<Self> {
        None
    }
}

impl BusMessage for Notice {
    const KIND: Kind = Kind::Notices;

    fn decode(payload: Bytes) -> Result<Self> {
        from_json(&payload)
    }

    /// Workers only answer.
    fn is_allowed(&self, sender: Sender) -> bool {
        !matches!(sender, Sender::Worker(_)) || matches!(self, Self::LogFilter { .. })
    }

    fn into_hint(self) -> Option<Self> {
        None
    }
}

macro_rules! sources {
    ($($source:ident of $message:ty { $($method:ident)? };)*) => {$(
        #[async_trait]
        impl $source for Messages<$message> {
            async fn next(&mut self) -> Option<$message> {
                self.receive().await
            }

            $(fn $method(&self) -> bool {
                self.is_proven
            })?
        }
    )*};
}

sources! {
    EndNoticeSource of Vec<RunEndNotice> {};
    GrantSource of GrantBatch { is_proven };
    NoticeSource of Notice {};
    OfferSource of SlotOffer {};
    SignalSource of Signal { is_proven };
}

fn from_json<T: DeserializeOwned>(payload: &[u8]) -> Result<T> {
    serde_json::from_slice(payload).map_err(|error| Error::internal("unexpected JSON").with_source(error))
}

/// Encodes a message as JSON.
pub(super) fn to_json(message: &impl Serialize) -> Result<Bytes> {
    let json = serde_json::to_vec(message);
    json.map(Bytes::from).map_err(|error| Error::internal("cannot encode a message").with_source(error))
}
