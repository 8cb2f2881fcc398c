//! Slot offers and grants over core NATS. They share the connection with tokens: both are urgent.

use async_trait::async_trait;
use remuda_domain::{WorkerId, error::Result, worker::SlotOffer};

use super::{
    Shared,
    envelope::seal,
    messages::{Messages, to_json},
};
use crate::{
    GrantBatch,
    traits::{GrantSource, GrantTransport, OfferSource},
};

#[async_trait]
impl GrantTransport for Shared {
    async fn offer(&self, offer: &SlotOffer) -> Result<()> {
        self.control.send("offer slots", self.subjects.offers(), seal(to_json(offer)?, None)).await
    }

    async fn subscribe_offers(&self) -> Result<Box<dyn OfferSource>> {
        Ok(Box::new(Messages::<SlotOffer>::json(self, self.subjects.offers()).await?))
    }

    async fn send_grants(&self, worker: WorkerId, batch: &GrantBatch) -> Result<()> {
        self.control.send("send grants", self.subjects.grants(worker), seal(batch.encode(), None)).await
    }

    async fn subscribe_grants(&self, worker: WorkerId) -> Result<Box<dyn GrantSource>> {
        Ok(Box::new(Messages::subscribe(self, self.subjects.grants(worker), GrantBatch::decode).await?))
    }

    fn max_grant_bytes(&self) -> usize {
        self.control.client().max_payload()
    }
}
