//! Counts, limits and logs requests with invalid API keys.
//!
//! Only failures count, for each address and for all together. A request with a valid key is never refused. If an address
//! exceeds its limit, at most a few of its unknown keys are looked up at the same time, and invalid ones get
//! `authentication_limit`. Keys of 256 random bits cannot be guessed; the limit protects the store and the log.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use remuda_domain::{Code, Error, error::Result};
use remuda_telemetry::metrics::{
    self, Counter, KeyValue,
    registry::{AUTH_FAILURES, label},
};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, timeout},
};

/// Failures of one address that are answered as usual; after them one per second.
const PER_ADDRESS: Rate = Rate { burst: 20.0, per_second: 1.0 };
/// The same for all addresses together.
const TOTAL: Rate = Rate { burst: 500.0, per_second: 50.0 };
/// Addresses that are counted. The failures of further ones count only towards the total.
const MAX_ADDRESSES: usize = 10_000;
/// A full table is searched for unused addresses at most once in this time.
const PRUNE_INTERVAL: Duration = Duration::from_secs(1);
/// Concurrent lookups of unknown keys for addresses beyond their limit, and how many may wait for one.
const SLOW_LOOKUPS: usize = 2;
const MAX_WAITING: usize = 64;
const MAX_WAIT: Duration = Duration::from_secs(1);
/// At most one log line in this time.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Why a request was not authenticated.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failure<'a> {
    /// There was no key. Not limited: it costs nothing.
    Missing,
    /// What was sent cannot be a key.
    Malformed,
    /// The key with this hash is unknown, expired or revoked.
    Unknown(&'a [u8; 32]),
    /// The key was not looked up: too many others were.
    NotLookedUp,
}

impl Failure<'_> {
    fn reason(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Malformed => "malformed",
            Self::Unknown(_) => "unknown",
            Self::NotLookedUp => "limited",
        }
    }
}

#[derive(Debug)]
pub(crate) struct FailedAuth {
    state: Mutex<State>,
    lookups: Semaphore,
    waiting: AtomicUsize,
    counter: Counter<u64>,
}

#[derive(Debug)]
struct State {
    addresses: HashMap<IpAddr, Bucket>,
    pruned: Option<Instant>,
    total: Bucket,
    /// Failures since the last log line.
    unlogged: u64,
    last_log: Option<Instant>,
}

impl FailedAuth {
    pub(crate) fn new() -> Self {
        let counter = metrics::counter(&AUTH_FAILURES);
        // Every reason is exported from the start, so that the first failures show as an increase.
        for failure in
            [Failure::Missing, Failure::Malformed, Failure::Unknown(&[0; 32]), Failure::NotLookedUp]
        {
            counter.add(0, &[KeyValue::new(label::REASON, failure.reason())]);
        }
        let total = Bucket::full(TOTAL, Instant::now());
        let state = State { addresses: HashMap::new(), pruned: None, total, unlogged: 0, last_log: None };
        Self {
            state: Mutex::new(state),
            lookups: Semaphore::new(SLOW_LOOKUPS),
            waiting: AtomicUsize::new(0),
            counter,
        }
    }

    /// Call it before an unknown key is looked up, and keep the permit meanwhile. Waits if the client is beyond its limit.
    pub(crate) async fn permit_lookup(&self, client: IpAddr) -> Result<Option<SemaphorePermit<'_>>> {
        if !self.state.lock().is_exceeded(client, Instant::now()) {
            return Ok(None);
        }
        let _waiting = Waiting::new(&self.waiting);
        if self.waiting.load(Ordering::Relaxed) <= MAX_WAITING
            && let Ok(Ok(permit)) = timeout(MAX_WAIT, self.lookups.acquire()).await
        {
            return Ok(Some(permit));
        }
        Err(self.record(client, Failure::NotLookedUp, "too many invalid API keys are being sent"))
    }

    /// Counts a failure, and returns the error for the caller.
    pub(crate) fn record(&self, client: IpAddr, failure: Failure<'_>, message: &str) -> Error {
        self.counter.add(1, &[KeyValue::new(label::REASON, failure.reason())]);
        if matches!(failure, Failure::Missing) {
            return Error::new(Code::Unauthenticated, message);
        }
        let (now, mut state) = (Instant::now(), self.state.lock());
        let mut exceeded = state.count(client, now);
        if matches!(failure, Failure::NotLookedUp) {
            exceeded = exceeded.or(Some(MAX_WAIT));
        }
        if let Some(failures) = state.take_unlogged(now) {
            drop(state);
            // The beginning of the hash lets an operator recognize a key that was revoked or mistyped, and no more.
            let sha256 = match failure {
                Failure::Unknown(hash) => {
                    format!("{:02x}{:02x}{:02x}{:02x}", hash[0], hash[1], hash[2], hash[3])
                }
                Failure::Missing | Failure::Malformed | Failure::NotLookedUp => String::new(),
            };
            tracing::warn!(%client, sha256, failures, limited = exceeded.is_some(), "invalid API keys were refused");
        }
        match exceeded {
            None => Error::new(Code::Unauthenticated, message),
            Some(pause) => {
                let message = format!("{message}; too many invalid API keys came from this address");
                Error::new(Code::AuthenticationLimit, message).retry_after(pause)
            }
        }
    }
}

/// One of the requests that wait for a lookup.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl State {
    fn is_exceeded(&self, client: IpAddr, now: Instant) -> bool {
        let client = self.addresses.get(&network(client));
        self.total.at(TOTAL, now) < 1.0 || client.is_some_and(|bucket| bucket.at(PER_ADDRESS, now) < 1.0)
    }

    /// Counts a failure. Returns the time to wait if it exceeds a limit.
    fn count(&mut self, client: IpAddr, now: Instant) -> Option<Duration> {
        if self.addresses.len() >= MAX_ADDRESSES
            && self.pruned.is_none_or(|last| now >= last + PRUNE_INTERVAL)
        {
            self.pruned = Some(now);
            self.addresses.retain(|_, bucket| bucket.at(PER_ADDRESS, now) < PER_ADDRESS.burst);
        }
        let client = network(client);
        let has_room = self.addresses.len() < MAX_ADDRESSES || self.addresses.contains_key(&client);
        let address = has_room.then(|| {
            let bucket = self.addresses.entry(client).or_insert_with(|| Bucket::full(PER_ADDRESS, now));
            bucket.take(PER_ADDRESS, now)
        });
        let total = self.total.take(TOTAL, now);
        address.flatten().max(total)
    }

    /// The failures to log now, if a line is due.
    fn take_unlogged(&mut self, now: Instant) -> Option<u64> {
        self.unlogged += 1;
        if self.last_log.is_some_and(|last| now < last + LOG_INTERVAL) {
            return None;
        }
        self.last_log = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

/// An IPv6 host can choose among the addresses of its network.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        address @ IpAddr::V4(_) => address,
    }
}

#[derive(Clone, Copy)]
struct Rate {
    burst: f64,
    per_second: f64,
}

/// A token bucket.
#[derive(Debug)]
struct Bucket {
    tokens: f64,
    since: Instant,
}

impl Bucket {
    fn full(rate: Rate, now: Instant) -> Self {
        Self { tokens: rate.burst, since: now }
    }

    /// The tokens at a time.
    fn at(&self, rate: Rate, now: Instant) -> f64 {
        let added = now.saturating_duration_since(self.since).as_secs_f64() * rate.per_second;
        (self.tokens + added).min(rate.burst)
    }

    /// Takes a token. Returns the time until there is one if there is none.
    fn take(&mut self, rate: Rate, now: Instant) -> Option<Duration> {
        let tokens = self.at(rate, now);
        if tokens < 1.0 {
            return Some(Duration::from_secs_f64((1.0 - tokens) / rate.per_second));
        }
        *self = Self { tokens: tokens - 1.0, since: now };
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Failure<'_> = Failure::Unknown(&[7; 32]);

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn address_with_many_failures_is_told_to_slow_down() {
        let failed = FailedAuth::new();
        let (attacker, other) = (address("192.0.2.1"), address("192.0.2.2"));
        let codes = |count: usize| -> Vec<Code> {
            (0..count).map(|_| failed.record(attacker, KEY, "unknown").code()).collect()
        };
        assert_eq!(codes(20), [Code::Unauthenticated; 20]);
        assert_eq!(codes(100), [Code::AuthenticationLimit; 100]);
        let error = failed.record(attacker, KEY, "unknown");
        let pause = error.retry_delay().unwrap();
        assert!(pause > Duration::ZERO && pause <= Duration::from_secs(1), "{pause:?}");
        assert_eq!(failed.record(other, KEY, "unknown").code(), Code::Unauthenticated);
        assert_eq!(failed.record(attacker, Failure::Missing, "none").code(), Code::Unauthenticated);
        tokio::time::advance(pause).await;
        assert_eq!(codes(2), [Code::Unauthenticated, Code::AuthenticationLimit]);
    }

    #[tokio::test(start_paused = true)]
    async fn keys_are_looked_up_also_beyond_the_limit() {
        let failed = FailedAuth::new();
        let client = address("192.0.2.1");
        assert!(failed.permit_lookup(client).await.unwrap().is_none());
        let exceed = || (0..50).for_each(|_| drop(failed.record(client, KEY, "unknown")));
        exceed();
        let (one, two) =
            (failed.permit_lookup(client).await.unwrap(), failed.permit_lookup(client).await.unwrap());
        assert!(one.is_some() && two.is_some());
        // No permit becomes free: the wait ends.
        assert_eq!(failed.permit_lookup(client).await.unwrap_err().code(), Code::AuthenticationLimit);
        drop(two);
        exceed();
        assert!(failed.permit_lookup(client).await.unwrap().is_some());
        assert!(failed.permit_lookup(address("192.0.2.2")).await.unwrap().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn many_addresses_share_a_limit_and_need_bounded_memory() {
        let failed = FailedAuth::new();
        let mut limited = 0;
        for number in 0..u32::try_from(2 * MAX_ADDRESSES).unwrap() {
            let error = failed.record(IpAddr::V4(number.into()), KEY, "unknown");
            limited += usize::from(error.code() == Code::AuthenticationLimit);
        }
        assert_eq!(limited, 2 * MAX_ADDRESSES - 500);
        assert!(failed.state.lock().addresses.len() <= MAX_ADDRESSES);
        // Addresses that have been quiet make room.
        tokio::time::advance(Duration::from_secs(60)).await;
        failed.record(address("2001:db8::1"), KEY, "unknown");
        assert_eq!(failed.state.lock().addresses.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_of_one_ipv6_network_count_together() {
        let failed = FailedAuth::new();
        for host in 0..20 {
            failed.record(address(&format!("2001:db8::{host:x}")), KEY, "unknown");
        }
        let code = |text| failed.record(address(text), KEY, "unknown").code();
        assert_eq!(code("2001:db8::ffff"), Code::AuthenticationLimit);
        assert_eq!(code("2001:db8:0:1::1"), Code::Unauthenticated);
        assert_eq!(network(address("::ffff:192.0.2.1")), address("192.0.2.1"));
    }

    #[tokio::test(start_paused = true)]
    async fn log_lines_are_limited_and_count_what_they_leave_out() {
        let mut state = FailedAuth::new().state.into_inner();
        let lines: Vec<u64> = (0..1000).filter_map(|_| state.take_unlogged(Instant::now())).collect();
        assert_eq!(lines, [1]);
        tokio::time::advance(LOG_INTERVAL).await;
        assert_eq!(state.take_unlogged(Instant::now()), Some(1000));
    }
}
