//! Slot offers and grants over core NATS. They share the connection with tokens: both are urgent.

use async_nats::Subscriber;
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use remuda_domain::{
    WorkerId,
    error::{Error, Result},
    worker::SlotOffer,
};

use super::Shared;
use crate::traits::{GrantSource, GrantTransport, OfferSource};

#[async_trait]
impl GrantTransport for Shared {
    async fn offer(&self, offer: &SlotOffer) -> Result<()> {
        let payload = serde_json::to_vec(offer)
            .map_err(|error| Error::internal("cannot encode a slot offer").with_source(error))?;
        self.control.publish("offer slots", self.subjects.offers(), payload.into()).await
    }

    async fn subscribe_offers(&self) -> Result<Box<dyn OfferSource>> {
        let subscriber =
            self.control.subscribe(self.subjects.offers(), &self.subjects.no_responders()).await?;
        Ok(Box::new(NatsOffers { subscriber }))
    }

    async fn send_grants(&self, worker: WorkerId, batch: Bytes) -> Result<()> {
        self.control.publish("send grants", self.subjects.grants(worker), batch).await
    }

    async fn subscribe_grants(&self, worker: WorkerId) -> Result<Box<dyn GrantSource>> {
        let subscriber =
            self.control.subscribe(self.subjects.grants(worker), &self.subjects.no_responders()).await?;
        Ok(Box::new(NatsGrants { subscriber }))
    }

    fn max_grant_bytes(&self) -> usize {
        self.control.client().max_payload()
    }
}

struct NatsOffers {
    subscriber: Subscriber,
}

#[async_trait]
impl OfferSource for NatsOffers {
    async fn next(&mut self) -> Option<SlotOffer> {
        loop {
            let message = self.subscriber.next().await?;
            match serde_json::from_slice(&message.payload) {
                Ok(offer) => return Some(offer),
                // From a newer version, for example.
                Err(error) => tracing::debug!(%error, "cannot decode a slot offer"),
            }
        }
    }
}

struct NatsGrants {
    subscriber: Subscriber,
}

#[async_trait]
impl GrantSource for NatsGrants {
    async fn next(&mut self) -> Option<Bytes> {
        self.subscriber.next().await.map(|message| message.payload)
    }
}
