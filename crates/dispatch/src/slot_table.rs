//! The free slots of workers, estimated from their offers and from the grants sent since.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use remuda_domain::{ControlPlaneId, Pool, WorkerId, worker::SlotOffer};
use tokio::time::Instant;

/// How long an offer is valid. Workers repeat them every second.
const OFFER_TTL: Duration = Duration::from_secs(3);
/// A grant sent longer ago than this was received or lost, whatever the worker has reported.
const IN_FLIGHT_TTL: Duration = Duration::from_secs(2);
/// Workers that are remembered, more than an installation has.
const MAX_WORKERS: usize = 4096;
/// How many workers of a pool are compared to find the one with the most free slots.
const CANDIDATES: usize = 8;

/// Slot offers of all workers, by pool, with reservations and grants.
#[derive(Debug, Default)]
pub(crate) struct SlotTable {
    pools: HashMap<Pool, Vec<WorkerSlots>>,
    pool_by_worker: HashMap<WorkerId, Pool>,
    /// Where the next search starts: round robin, so that every worker gets its share.
    next_start: usize,
    evicted_at: Option<Instant>,
}

/// The slots of one worker.
#[derive(Debug)]
struct WorkerSlots {
    worker: WorkerId,
    offered: u64,
    stamp: u64,
    offered_at: Instant,
    /// Reserved, and not granted yet.
    reserved: u64,
    /// Total grants: made, handed to the transport, and received by the worker.
    granted: u64,
    sent: u64,
    received: u64,
    granted_at: Instant,
}

impl WorkerSlots {
    fn free(&self, now: Instant) -> u64 {
        if now.duration_since(self.offered_at) >= OFFER_TTL {
            return 0;
        }
        let in_flight = match now.duration_since(self.granted_at) < IN_FLIGHT_TTL {
            true => self.granted.saturating_sub(self.received),
            false => 0,
        };
        self.offered.saturating_sub(in_flight + self.reserved)
    }

    /// The worker made no offer for long, and has no open reservation.
    fn is_expired(&self, now: Instant) -> bool {
        self.reserved == 0 && now.duration_since(self.offered_at) >= 10 * OFFER_TTL
    }
}

impl SlotTable {
    pub(crate) fn record_offer(&mut self, offer: &SlotOffer, me: ControlPlaneId, now: Instant) {
        // Version 0.1.0 cannot read the batches of this version.
        if offer.grant_version == 0 {
            return;
        }
        let received = offer.received.iter().find(|(plane, _)| *plane == me).map_or(0, |(_, count)| *count);
        let offered = u64::from(offer.slots);
        if let Some(slots) = self.worker(offer.worker) {
            // An older offer, which was overtaken or repeated.
            if offer.stamp < slots.stamp {
                return;
            }
            slots.offered = offered;
            slots.stamp = offer.stamp;
            slots.offered_at = now;
            slots.received = received;
            return;
        }
        self.evict_expired(now);
        if self.pool_by_worker.len() >= MAX_WORKERS {
            return;
        }
        self.pool_by_worker.insert(offer.worker, offer.pool.clone());
        self.pools.entry(offer.pool.clone()).or_default().push(WorkerSlots {
            worker: offer.worker,
            offered,
            stamp: offer.stamp,
            offered_at: now,
            reserved: 0,
            granted: received,
            sent: received,
            received,
            granted_at: now,
        });
    }

    /// Reserves a slot of a worker that has many free, and returns the stamp of its offer.
    pub(crate) fn reserve(&mut self, pool: &Pool, now: Instant) -> Option<(WorkerId, u64)> {
        let workers = self.pools.get_mut(pool)?;
        self.next_start = self.next_start.wrapping_add(1);
        let count = workers.len();
        let candidates = (0..count.min(CANDIDATES)).map(|step| (self.next_start + step) % count);
        let best = candidates.max_by_key(|index| workers[*index].free(now))?;
        let slots = workers.get_mut(best).filter(|slots| slots.free(now) > 0)?;
        slots.reserved += 1;
        Some((slots.worker, slots.stamp))
    }

    /// Frees a reserved slot.
    pub(crate) fn cancel(&mut self, worker: WorkerId) {
        if let Some(slots) = self.worker(worker) {
            slots.reserved = slots.reserved.saturating_sub(1);
        }
    }

    /// Turns a reservation into a grant.
    pub(crate) fn confirm(&mut self, worker: WorkerId, now: Instant) {
        if let Some(slots) = self.worker(worker) {
            slots.reserved = slots.reserved.saturating_sub(1);
            slots.granted += 1;
            slots.granted_at = now;
        }
    }

    /// Counts grants that are sent, or lost in sending. Returns how many there were so far, including these.
    pub(crate) fn count_sent(&mut self, worker: WorkerId, count: u64) -> u64 {
        self.worker(worker).map_or(count, |slots| {
            slots.sent += count;
            slots.sent
        })
    }

    fn worker(&mut self, worker: WorkerId) -> Option<&mut WorkerSlots> {
        let workers = self.pools.get_mut(self.pool_by_worker.get(&worker)?)?;
        workers.iter_mut().find(|slots| slots.worker == worker)
    }

    /// Forgets workers that are gone, if that was not done just now.
    fn evict_expired(&mut self, now: Instant) {
        if self.evicted_at.is_some_and(|at| now.duration_since(at) < OFFER_TTL) {
            return;
        }
        self.evicted_at = Some(now);
        for workers in self.pools.values_mut() {
            workers.retain(|slots| !slots.is_expired(now));
        }
        self.pools.retain(|_, workers| !workers.is_empty());
        let kept: HashSet<WorkerId> = self.pools.values().flatten().map(|slots| slots.worker).collect();
        self.pool_by_worker.retain(|worker, _| kept.contains(worker));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixture {
        table: SlotTable,
        me: ControlPlaneId,
        now: Instant,
    }

    impl Fixture {
        fn new() -> Self {
            Self { table: SlotTable::default(), me: ControlPlaneId::new(), now: Instant::now() }
        }

        fn offer(&mut self, worker: WorkerId, slots: u32, received: u64) {
            self.offer_at(worker, slots, received, 7);
        }

        fn offer_at(&mut self, worker: WorkerId, slots: u32, received: u64, stamp: u64) {
            let received = vec![(ControlPlaneId::new(), 99), (self.me, received)];
            let offer = SlotOffer { worker, pool: Pool::default(), slots, stamp, received, grant_version: 1 };
            self.table.record_offer(&offer, self.me, self.now);
        }

        fn reserve(&mut self) -> Option<WorkerId> {
            let (worker, stamp) = self.table.reserve(&Pool::default(), self.now)?;
            assert_eq!(stamp, 7);
            Some(worker)
        }

        fn grant(&mut self) -> Option<WorkerId> {
            let worker = self.reserve()?;
            self.table.confirm(worker, self.now);
            Some(worker)
        }
    }

    #[test]
    fn no_more_slots_are_reserved_than_offered() {
        let (mut fixture, worker) = (Fixture::new(), WorkerId::new());
        assert_eq!(fixture.reserve(), None);
        fixture.offer(worker, 2, 0);
        assert_eq!(
            (fixture.grant(), fixture.reserve(), fixture.reserve()),
            (Some(worker), Some(worker), None)
        );
        fixture.table.cancel(worker);
        assert_eq!(
            (fixture.grant(), fixture.grant()),
            (Some(worker), None),
            "a cancelled reservation is free again"
        );
        // It has received one of the two grants, and offers two more slots.
        fixture.offer(worker, 2, 1);
        assert_eq!((fixture.grant(), fixture.grant()), (Some(worker), None));
        assert_eq!(fixture.table.count_sent(worker, 3), 3);
        assert_eq!(fixture.table.count_sent(worker, 2), 5);
        assert_eq!(fixture.table.reserve(&"other".parse().unwrap(), fixture.now), None);
    }

    #[test]
    fn lost_grant_stops_taking_a_slot_after_the_in_flight_time() {
        let (mut fixture, worker) = (Fixture::new(), WorkerId::new());
        fixture.offer(worker, 1, 0);
        assert!(fixture.grant().is_some() && fixture.grant().is_none());
        fixture.now += IN_FLIGHT_TTL;
        fixture.offer(worker, 1, 0);
        assert!(fixture.grant().is_some() && fixture.grant().is_none());
    }

    #[test]
    fn expired_offers_are_ignored_and_evicted() {
        let (mut fixture, worker) = (Fixture::new(), WorkerId::new());
        fixture.offer(worker, 5, 0);
        fixture.now += OFFER_TTL;
        assert_eq!(fixture.reserve(), None);
        fixture.now += 10 * OFFER_TTL;
        let next = WorkerId::new();
        fixture.offer(next, 1, 0);
        assert_eq!((fixture.table.pool_by_worker.len(), fixture.reserve()), (1, Some(next)));
    }

    #[test]
    fn older_offer_of_a_worker_is_ignored() {
        let (mut fixture, worker) = (Fixture::new(), WorkerId::new());
        fixture.offer(worker, 1, 0);
        fixture.offer_at(worker, 9, 0, 6);
        assert_eq!((fixture.grant(), fixture.grant()), (Some(worker), None));
    }

    #[test]
    fn flood_of_workers_does_not_grow_the_table_without_bound() {
        let mut fixture = Fixture::new();
        for _ in 0..MAX_WORKERS + 100 {
            fixture.offer(WorkerId::new(), 1, 0);
        }
        assert_eq!(fixture.table.pool_by_worker.len(), MAX_WORKERS);
        fixture.now += 10 * OFFER_TTL;
        let worker = WorkerId::new();
        fixture.offer(worker, 1, 0);
        assert_eq!((fixture.table.pool_by_worker.len(), fixture.reserve()), (1, Some(worker)));
    }

    #[test]
    fn grants_are_spread_over_all_workers() {
        let (mut fixture, workers) = (Fixture::new(), [WorkerId::new(), WorkerId::new(), WorkerId::new()]);
        workers.iter().for_each(|worker| fixture.offer(*worker, 10, 0));
        let granted: Vec<WorkerId> = (0..30).filter_map(|_| fixture.grant()).collect();
        for worker in workers {
            assert_eq!(granted.iter().filter(|it| **it == worker).count(), 10);
        }
        assert_eq!(fixture.grant(), None);
    }
}
