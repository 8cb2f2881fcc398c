//! Offers free slots to control planes in other processes, and takes what these grant.

use std::{collections::HashMap, sync::Arc, time::Duration};

use remuda_domain::{PlaneId, Pool, WorkerId, error::Result, worker::Offer};
use remuda_store::{GRANT_AGE, Parcel};
use remuda_transport::{Carrier, ParcelSource, Transport};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::seats::Room;

/// Offers are repeated after this, so that control planes know that they still hold.
const REPEAT: Duration = Duration::from_secs(1);
/// Room changes with every run. Control planes need not know of each.
const SPACING: Duration = Duration::from_millis(4);
const RETRY: Duration = Duration::from_secs(1);
/// A control plane that sent nothing for so long has no share of the room.
const ACTIVE: Duration = Duration::from_secs(10);
/// How long what was granted before the last offer may be on its way.
const LAST_PARCELS: Duration = Duration::from_millis(500);

pub(crate) struct Offers {
    pub(crate) worker: WorkerId,
    pub(crate) pool: Pool,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) room: Arc<Room>,
    pub(crate) stop: CancellationToken,
    /// Where the worker's clock begins.
    pub(crate) epoch: Instant,
}

/// What came from control planes.
struct Received {
    /// How many grants, and when the last of them.
    planes: HashMap<PlaneId, (u64, Instant)>,
    /// Control planes have not been told of all of it.
    news: bool,
}

impl Offers {
    /// Runs until `stop`, if grants are brought at all.
    pub(crate) async fn run(self) {
        let Some(carrier) = self.transport.carrier() else { return };
        while !self.stop.is_cancelled() {
            if let Err(error) = self.serve(carrier).await {
                tracing::debug!(error = error.chain(), retry_in = ?RETRY, "room cannot be offered at the moment");
                self.stop.run_until_cancelled(sleep(RETRY)).await;
            }
        }
    }

    async fn serve(&self, carrier: &dyn Carrier) -> Result<()> {
        // Before the first offer: whoever takes it up must be heard.
        let mut parcels = carrier.subscribe_parcels(self.worker).await?;
        let mut received = Received { planes: HashMap::new(), news: true };
        let mut offered = (0, Instant::now());
        loop {
            let offer = self.offer(&mut received);
            let news = std::mem::take(&mut received.news) || offer.room != offered.0;
            if news || offered.1.elapsed() >= REPEAT {
                offered = (offer.room, Instant::now());
                carrier.offer(&offer).await?;
            }
            if self.stop.is_cancelled() {
                self.receive_last(&mut *parcels, &mut received).await;
                return Ok(());
            }
            let next_offer = async {
                sleep(SPACING).await;
                drop(timeout(REPEAT, self.room.changed()).await);
            };
            tokio::pin!(next_offer);
            loop {
                tokio::select! {
                    biased;
                    () = self.stop.cancelled() => break,
                    parcel = parcels.next() => match parcel {
                        Some(parcel) => self.open(&parcel, &mut received),
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

    fn offer(&self, received: &mut Received) -> Offer {
        let now = Instant::now();
        received.planes.retain(|_, (_, at)| now.duration_since(*at) < 6 * ACTIVE);
        let active = received.planes.values().filter(|(_, at)| now.duration_since(*at) < ACTIVE).count();
        let share = self.room.free() / active.max(1);
        Offer {
            worker: self.worker,
            pool: self.pool.clone(),
            room: u32::try_from(share).unwrap_or(u32::MAX),
            stamp: self.stamp(now),
            received: received.planes.iter().map(|(plane, (count, _))| (*plane, *count)).collect(),
        }
    }

    fn open(&self, parcel: &[u8], received: &mut Received) {
        let parcel: Parcel = match serde_json::from_slice(parcel) {
            Ok(parcel) => parcel,
            Err(error) => {
                tracing::warn!(%error, "cannot read what was granted; the reconciler will tell");
                return;
            }
        };
        let now = Instant::now();
        received.planes.insert(parcel.from, (parcel.sent, now));
        received.news = true;
        // A stamp from the future is none of this worker's.
        let age = self.stamp(now).checked_sub(parcel.stamp).map(Duration::from_micros);
        let fresh = age.is_some_and(|age| age < GRANT_AGE);
        for grant in parcel.grants {
            match fresh {
                true => self.room.receive(Box::new(grant)),
                // It may have been told of meanwhile, and done.
                false => self.room.claim_own(grant.fence.tenant, grant.fence.session),
            }
        }
    }

    /// Nothing more is offered. What comes all the same is given back.
    async fn receive_last(&self, parcels: &mut dyn ParcelSource, received: &mut Received) {
        let until = Instant::now() + LAST_PARCELS;
        while let Ok(Some(parcel)) = tokio::time::timeout_at(until, parcels.next()).await {
            self.open(&parcel, received);
        }
    }
}
