//! Offers free slots to control planes in other processes, and receives the grants they send.

use std::{collections::HashMap, sync::Arc, time::Duration};

use remuda_dispatch::MAX_GRANT_AGE;
use remuda_domain::{ControlPlaneId, Fence, Pool, WorkerId, error::Result, worker::SlotOffer};
use remuda_store::Grant;
use remuda_transport::{GRANT_VERSION, GrantBatch, GrantRecord, GrantSource, GrantTransport, Transport};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::slot_pool::SlotPool;

/// Offers are repeated this often, so that control planes know that they are still valid.
const REPEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Free slots change with every run. Offers are at least this far apart.
const MIN_INTERVAL: Duration = Duration::from_millis(4);
const RETRY: Duration = Duration::from_secs(1);
/// A control plane that sent no grants for this long gets no share of the slots.
const ACTIVE_WINDOW: Duration = Duration::from_secs(10);
/// Sessions of an unproven batch that are looked up in the store.
const MAX_HINTED_SESSIONS: usize = 16;
/// How long to wait for batches that were sent before the last offer.
const FINAL_BATCH_WAIT: Duration = Duration::from_millis(500);

pub(crate) struct SlotOffers {
    pub(crate) worker: WorkerId,
    pub(crate) pool: Pool,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) slot_pool: Arc<SlotPool>,
    pub(crate) stop: CancellationToken,
    /// Zero of the clock behind the stamps of offers.
    pub(crate) epoch: Instant,
}

/// Grants received from control planes. Kept when the subscription is opened again, so that a batch is accepted once.
#[derive(Default)]
struct ReceivedGrants {
    /// Number of grants received per control plane, and the time of the last one.
    planes: HashMap<ControlPlaneId, (u64, Instant)>,
    /// Control planes have not been told about all of them yet.
    unreported: bool,
}

impl ReceivedGrants {
    /// Whether the sender has sent more grants than were received: otherwise the batch is a repetition, or something is
    /// wrong with the sender.
    fn is_new(&self, batch: &GrantBatch) -> bool {
        let before = self.planes.get(&batch.from).map_or(0, |(sent, _)| *sent);
        batch.sent > before
    }
}

impl SlotOffers {
    /// Runs until `stop`. Returns at once if the transport carries no grants.
    pub(crate) async fn run(self) {
        let Some(grant_transport) = self.transport.grant_transport() else { return };
        let mut received = ReceivedGrants::default();
        while !self.stop.is_cancelled() {
            if let Err(error) = self.serve(grant_transport, &mut received).await {
                tracing::debug!(error = error.chain(), retry_in = ?RETRY, "cannot offer slots; retrying");
                self.stop.run_until_cancelled(sleep(RETRY)).await;
            }
        }
    }

    async fn serve(&self, grant_transport: &dyn GrantTransport, received: &mut ReceivedGrants) -> Result<()> {
        // Subscribe before the first offer: the response to it must be received.
        let mut batches = grant_transport.subscribe_grants(self.worker).await?;
        received.unreported = true;
        let mut offered = (0, Instant::now());
        loop {
            let offer = self.offer(received);
            let changed = std::mem::take(&mut received.unreported) || offer.slots != offered.0;
            if changed || offered.1.elapsed() >= REPEAT_INTERVAL {
                offered = (offer.slots, Instant::now());
                grant_transport.offer(&offer).await?;
            }
            if self.stop.is_cancelled() {
                self.receive_last(&mut *batches, received).await;
                return Ok(());
            }
            let next_offer = async {
                sleep(MIN_INTERVAL).await;
                drop(timeout(REPEAT_INTERVAL, self.slot_pool.changed()).await);
            };
            tokio::pin!(next_offer);
            loop {
                tokio::select! {
                    biased;
                    () = self.stop.cancelled() => break,
                    batch = batches.next() => match batch {
                        Some(batch) if batches.is_proven() => self.accept_batch(batch, received),
                        Some(hint) => self.claim_hinted(&hint),
                        None => return Ok(()),
                    },
                    () = &mut next_offer => break,
                }
            }
        }
    }

    fn stamp(&self, now: Instant) -> u64 {
        u64::try_from(now.duration_since(self.epoch).as_micros()).unwrap_or(u64::MAX)
    }

    fn offer(&self, received: &mut ReceivedGrants) -> SlotOffer {
        let now = Instant::now();
        received.planes.retain(|_, (_, at)| now.duration_since(*at) < 6 * ACTIVE_WINDOW);
        let active =
            received.planes.values().filter(|(_, at)| now.duration_since(*at) < ACTIVE_WINDOW).count();
        let share = self.slot_pool.free_slots() / active.max(1);
        SlotOffer {
            worker: self.worker,
            pool: self.pool.clone(),
            slots: u32::try_from(share).unwrap_or(u32::MAX),
            stamp: self.stamp(now),
            received: received.planes.iter().map(|(plane, (count, _))| (*plane, *count)).collect(),
            grant_version: GRANT_VERSION,
        }
    }

    fn accept_batch(&self, batch: GrantBatch, received: &mut ReceivedGrants) {
        let now = Instant::now();
        if !received.is_new(&batch) {
            tracing::warn!(from = %batch.from, sent = batch.sent, "grant batch received again; checking it in the store");
            return self.claim_hinted(&batch);
        }
        received.planes.insert(batch.from, (batch.sent, now));
        received.unreported = true;
        // A stamp from the future was not issued by this incarnation.
        let age = self.stamp(now).checked_sub(batch.stamp).map(Duration::from_micros);
        let fresh = age.is_some_and(|age| age < MAX_GRANT_AGE);
        for record in batch.grants {
            let GrantRecord { tenant, session, .. } = record;
            match fresh.then(|| self.decode(&record)).flatten() {
                Some(grant) => self.slot_pool.accept_grant(grant),
                // Too old: the reconciler may have redelivered it meanwhile, and its run may be done. Or not readable:
                // it is from a newer version.
                None => self.slot_pool.reclaim_session(tenant, session),
            }
        }
    }

    /// Asks the store about grants that anybody may have sent, as far as there are free slots.
    fn claim_hinted(&self, hint: &GrantBatch) {
        for GrantRecord { tenant, session, .. } in hint.grants.iter().take(MAX_HINTED_SESSIONS) {
            self.slot_pool.claim_hinted(*tenant, *session);
        }
    }

    /// Reads a grant to this worker. `None` if this version cannot.
    fn decode(&self, record: &GrantRecord) -> Option<Box<Grant>> {
        let grant: Box<Grant> = match serde_json::from_slice(record.body.as_ref()?) {
            Ok(grant) => grant,
            Err(error) => {
                tracing::warn!(session = %record.session, %error, "cannot read a grant; claiming the session");
                return None;
            }
        };
        let fence = Fence {
            tenant: record.tenant,
            session: record.session,
            worker: self.worker,
            epoch: record.epoch,
        };
        let is_consistent = (grant.run.tenant, grant.run.session) == (fence.tenant, fence.session);
        (grant.fence == fence && is_consistent).then_some(grant)
    }

    /// Receives late batches after the last offer. Their grants are given back.
    async fn receive_last(&self, batches: &mut dyn GrantSource, received: &mut ReceivedGrants) {
        let until = Instant::now() + FINAL_BATCH_WAIT;
        while let Ok(Some(batch)) = tokio::time::timeout_at(until, batches.next()).await {
            // No slot is free any more for what is not proven.
            if batches.is_proven() {
                self.accept_batch(batch, received);
            }
        }
    }
}
