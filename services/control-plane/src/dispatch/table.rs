//! How much room workers have, as far as it is known.

use std::{collections::HashMap, time::Duration};

use remuda_domain::{PlaneId, Pool, WorkerId, worker::Offer};
use tokio::time::Instant;

/// An offer counts for so long. Workers repeat them every second.
const FRESH: Duration = Duration::from_secs(3);
/// What was sent so long ago was received or lost, whatever the worker has told of it.
const UNDER_WAY: Duration = Duration::from_secs(2);
/// Workers of a pool among which the one with the most room is looked for.
const CANDIDATES: usize = 8;

/// Offers, and what was made of them.
#[derive(Debug, Default)]
pub(super) struct Table {
    pools: HashMap<Pool, Vec<Bench>>,
    places: HashMap<WorkerId, Pool>,
    /// Where the next look begins, so that all get their turn.
    turn: usize,
}

/// The seats of one worker.
#[derive(Debug)]
struct Bench {
    worker: WorkerId,
    room: u64,
    stamp: u64,
    offered_at: Instant,
    /// Reserved, and not granted yet.
    reserved: u64,
    /// Granted to it in all, handed to the transport in all, and how many of these it has received.
    granted: u64,
    sent: u64,
    received: u64,
    granted_at: Instant,
}

impl Bench {
    fn free(&self, now: Instant) -> u64 {
        if now.duration_since(self.offered_at) >= FRESH {
            return 0;
        }
        let under_way = match now.duration_since(self.granted_at) < UNDER_WAY {
            true => self.granted.saturating_sub(self.received),
            false => 0,
        };
        self.room.saturating_sub(under_way + self.reserved)
    }

    /// Nothing was heard of it for long, and nothing is under way.
    fn is_gone(&self, now: Instant) -> bool {
        self.reserved == 0 && now.duration_since(self.offered_at) >= 10 * FRESH
    }
}

impl Table {
    pub(super) fn offered(&mut self, offer: &Offer, me: PlaneId, now: Instant) {
        let received = offer.received.iter().find(|(plane, _)| *plane == me).map_or(0, |(_, count)| *count);
        let room = u64::from(offer.room);
        if let Some(bench) = self.bench(offer.worker) {
            bench.room = room;
            bench.stamp = offer.stamp;
            bench.offered_at = now;
            bench.received = received;
            return;
        }
        self.forget_gone(now);
        self.places.insert(offer.worker, offer.pool.clone());
        self.pools.entry(offer.pool.clone()).or_default().push(Bench {
            worker: offer.worker,
            room,
            stamp: offer.stamp,
            offered_at: now,
            reserved: 0,
            granted: received,
            sent: received,
            received,
            granted_at: now,
        });
    }

    /// A place at one of the workers that have the most room, and the stamp of its offer.
    pub(super) fn reserve(&mut self, pool: &Pool, now: Instant) -> Option<(WorkerId, u64)> {
        let benches = self.pools.get_mut(pool)?;
        self.turn = self.turn.wrapping_add(1);
        let count = benches.len();
        let looked_at = (0..count.min(CANDIDATES)).map(|step| (self.turn + step) % count);
        let best = looked_at.max_by_key(|place| benches[*place].free(now))?;
        let bench = benches.get_mut(best).filter(|bench| bench.free(now) > 0)?;
        bench.reserved += 1;
        Some((bench.worker, bench.stamp))
    }

    pub(super) fn give_back(&mut self, worker: WorkerId) {
        if let Some(bench) = self.bench(worker) {
            bench.reserved = bench.reserved.saturating_sub(1);
        }
    }

    /// A reserved place is taken.
    pub(super) fn grant(&mut self, worker: WorkerId, now: Instant) {
        if let Some(bench) = self.bench(worker) {
            bench.reserved = bench.reserved.saturating_sub(1);
            bench.granted += 1;
            bench.granted_at = now;
        }
    }

    /// How many grants were sent to the worker so far.
    pub(super) fn sent_to(&mut self, worker: WorkerId) -> u64 {
        self.bench(worker).map_or(0, |bench| bench.sent)
    }

    /// So many more are sent, or lost.
    pub(super) fn sent(&mut self, worker: WorkerId, count: u64) {
        if let Some(bench) = self.bench(worker) {
            bench.sent += count;
        }
    }

    fn bench(&mut self, worker: WorkerId) -> Option<&mut Bench> {
        let benches = self.pools.get_mut(self.places.get(&worker)?)?;
        benches.iter_mut().find(|bench| bench.worker == worker)
    }

    fn forget_gone(&mut self, now: Instant) {
        for benches in self.pools.values_mut() {
            benches.retain(|bench| !bench.is_gone(now));
        }
        self.pools.retain(|_, benches| !benches.is_empty());
        let pools = &self.pools;
        self.places.retain(|worker, pool| {
            pools.get(pool).is_some_and(|benches| benches.iter().any(|bench| bench.worker == *worker))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Lab {
        table: Table,
        me: PlaneId,
        now: Instant,
    }

    impl Lab {
        fn new() -> Self {
            Self { table: Table::default(), me: PlaneId::new(), now: Instant::now() }
        }

        fn offer(&mut self, worker: WorkerId, room: u32, received: u64) {
            let received = vec![(PlaneId::new(), 99), (self.me, received)];
            let offer = Offer { worker, pool: Pool::default(), room, stamp: 7, received };
            self.table.offered(&offer, self.me, self.now);
        }

        fn reserve(&mut self) -> Option<WorkerId> {
            let (worker, stamp) = self.table.reserve(&Pool::default(), self.now)?;
            assert_eq!(stamp, 7);
            Some(worker)
        }

        fn grant(&mut self) -> Option<WorkerId> {
            let worker = self.reserve()?;
            self.table.grant(worker, self.now);
            Some(worker)
        }
    }

    #[test]
    fn no_more_is_granted_than_is_offered() {
        let (mut lab, worker) = (Lab::new(), WorkerId::new());
        assert_eq!(lab.reserve(), None);
        lab.offer(worker, 2, 0);
        assert_eq!((lab.grant(), lab.reserve(), lab.reserve()), (Some(worker), Some(worker), None));
        lab.table.give_back(worker);
        assert_eq!((lab.grant(), lab.grant()), (Some(worker), None), "what was given back is free");
        // It has received one of the two, and has room for two more besides.
        lab.offer(worker, 2, 1);
        assert_eq!((lab.grant(), lab.grant()), (Some(worker), None));
        lab.table.sent(worker, 3);
        assert_eq!(lab.table.sent_to(worker), 3);
        assert_eq!(lab.table.reserve(&"other".parse().unwrap(), lab.now), None);
    }

    #[test]
    fn what_was_lost_on_its_way_takes_no_room_for_long() {
        let (mut lab, worker) = (Lab::new(), WorkerId::new());
        lab.offer(worker, 1, 0);
        assert!(lab.grant().is_some() && lab.grant().is_none());
        lab.now += UNDER_WAY;
        lab.offer(worker, 1, 0);
        assert!(lab.grant().is_some() && lab.grant().is_none());
    }

    #[test]
    fn old_offers_count_no_more_and_are_forgotten() {
        let (mut lab, worker) = (Lab::new(), WorkerId::new());
        lab.offer(worker, 5, 0);
        lab.now += FRESH;
        assert_eq!(lab.reserve(), None);
        lab.now += 10 * FRESH;
        let next = WorkerId::new();
        lab.offer(next, 1, 0);
        assert_eq!((lab.table.places.len(), lab.reserve()), (1, Some(next)));
    }

    #[test]
    fn workers_share_what_comes() {
        let (mut lab, workers) = (Lab::new(), [WorkerId::new(), WorkerId::new(), WorkerId::new()]);
        workers.iter().for_each(|worker| lab.offer(*worker, 10, 0));
        let granted: Vec<WorkerId> = (0..30).filter_map(|_| lab.grant()).collect();
        for worker in workers {
            assert_eq!(granted.iter().filter(|it| **it == worker).count(), 10);
        }
        assert_eq!(lab.grant(), None);
    }
}
