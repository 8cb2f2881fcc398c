//! Grants on their way to workers, and room that these have, over core NATS. They share the connection with tokens: both are urgent.

use async_nats::Subscriber;
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use remuda_domain::{
    WorkerId,
    error::{Error, Result},
    worker::Offer,
};

use super::Shared;
use crate::traits::{Carrier, OfferSource, ParcelSource};

#[async_trait]
impl Carrier for Shared {
    async fn offer(&self, offer: &Offer) -> Result<()> {
        let payload = serde_json::to_vec(offer)
            .map_err(|error| Error::internal("cannot write an offer").with_source(error))?;
        self.control.publish("offer room", self.names.offers(), payload.into()).await
    }

    async fn subscribe_offers(&self) -> Result<Box<dyn OfferSource>> {
        let subscriber = self.control.subscribe(self.names.offers(), &self.names.nobody()).await?;
        Ok(Box::new(NatsOffers { subscriber }))
    }

    async fn send_parcel(&self, worker: WorkerId, parcel: Bytes) -> Result<()> {
        self.control.publish("send grants", self.names.grants(worker), parcel).await
    }

    async fn subscribe_parcels(&self, worker: WorkerId) -> Result<Box<dyn ParcelSource>> {
        let subscriber = self.control.subscribe(self.names.grants(worker), &self.names.nobody()).await?;
        Ok(Box::new(NatsParcels { subscriber }))
    }

    fn max_parcel(&self) -> usize {
        self.control.client().max_payload()
    }
}

struct NatsOffers {
    subscriber: Subscriber,
}

#[async_trait]
impl OfferSource for NatsOffers {
    async fn next(&mut self) -> Option<Offer> {
        loop {
            let message = self.subscriber.next().await?;
            match serde_json::from_slice(&message.payload) {
                Ok(offer) => return Some(offer),
                // From a newer version, say.
                Err(error) => tracing::debug!(%error, "cannot read an offer"),
            }
        }
    }
}

struct NatsParcels {
    subscriber: Subscriber,
}

#[async_trait]
impl ParcelSource for NatsParcels {
    async fn next(&mut self) -> Option<Bytes> {
        self.subscriber.next().await.map(|message| message.payload)
    }
}
