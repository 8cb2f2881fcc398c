//! Slot offers and grants over core NATS. They share the connection with tokens: both are urgent.

use async_trait::async_trait;
use remuda_domain::{WorkerId, error::Result, worker::SlotOffer};

use super::{
    Shared,
    messages::{Messages, to_json},
};
use crate::{
    GrantBatch,
    traits::{GrantSource, GrantTransport, OfferSource},
};

#[async_trait]
impl GrantTransport for Shared {
    async fn offer(&self, offer: &SlotOffer) -> Result<()> {
        let subject = self.subjects.offers();
        let message = self.envelope.seal(&subject, to_json(offer)?, None);
        self.control.send("offer slots", subject, message).await
    }

    async fn subscribe_offers(&self) -> Result<Box<dyn OfferSource>> {
        Ok(Box::new(Messages::<SlotOffer>::subscribe(self, self.subjects.offers()).await?))
    }

    async fn send_grants(&self, worker: WorkerId, batch: &GrantBatch) -> Result<()> {
        let subject = self.subjects.grants(worker);
        let message = self.envelope.seal(&subject, batch.encode(), None);
        self.control.send("send grants", subject, message).await
    }

    async fn subscribe_grants(&self, worker: WorkerId) -> Result<Box<dyn GrantSource>> {
        Ok(Box::new(Messages::<GrantBatch>::subscribe(self, self.subjects.grants(worker)).await?))
    }

    fn max_grant_bytes(&self) -> usize {
        self.control.max_message()
    }
}
