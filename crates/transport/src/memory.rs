//! The transport within one process: queues and broadcast channels behind short locks.

mod broadcast;
mod queue;

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use remuda_domain::{
    Appended, ControlPlaneId, Event, Pool, SessionId, TenantId, WorkerId, error::Result, event::Delta,
    logs::Notice, run::RunEndNotice, trace::TraceContext, worker::Signal,
};
use tokio::time::{Instant, timeout_at};

use self::{
    broadcast::{Listener, Topics},
    queue::{PoppedTokens, Queue, TokenKey},
};
use crate::{
    meters::{Deliveries, Meters},
    traits::{
        DeltaSource, EndNoticeSource, EventSource, NoticeSource, Published, SignalSource, Token, TokenCounts,
        TokenSource, Transport,
    },
};

/// Batches of events, and of deltas, that a reader may lag behind before its source ends.
const EVENT_BUFFER: usize = 64;
const DELTA_BUFFER: usize = 256;
/// End notices that a control plane may lag behind.
const END_BUFFER: usize = 4096;
const SIGNAL_BUFFER: usize = 64;
const NOTICE_BUFFER: usize = 64;
/// How long `take` waits before it returns empty, as over NATS.
const TAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Keeps the sum of clock and delay within the range of the clock.
const MAX_DELAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Tokens of this transport do not expire, so `keep_alive` does nothing.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(10);

/// Tokens, events and signals in memory. Clones share them.
///
/// A token is put back the moment its handle is dropped: its holder is a task of this process. Memory is bounded by
/// the sessions that have a token or a listener.
#[derive(Clone, Default)]
pub struct Memory {
    shared: Arc<Shared>,
}

/// The session whose events and deltas are published.
type SessionKey = (TenantId, SessionId);
type Batch<T> = Arc<[T]>;
/// Events with their trace context.
type EventBatch = (Batch<Event>, Option<TraceContext>);

#[derive(Default)]
struct Shared {
    /// One queue for every pool ever named. Pools are few and come from the configuration.
    pools: Mutex<HashMap<Pool, Arc<Queue>>>,
    events: Arc<Topics<SessionKey, EventBatch>>,
    deltas: Arc<Topics<SessionKey, Batch<Delta>>>,
    ends: Arc<Topics<ControlPlaneId, RunEndNotice>>,
    signals: Arc<Topics<WorkerId, Signal>>,
    notices: Arc<Topics<(), Notice>>,
    meters: Meters,
}

impl Memory {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn queue(&self, pool: &Pool) -> Arc<Queue> {
        let mut pools = self.shared.pools.lock();
        if let Some(queue) = pools.get(pool) {
            return Arc::clone(queue);
        }
        Arc::clone(pools.entry(pool.clone()).or_default())
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

#[async_trait]
impl Transport for Memory {
    async fn publish_token(&self, pool: &Pool, tenant: TenantId, session: SessionId) -> Result<Published> {
        self.publish_token_from(pool, tenant, session, None).await
    }

    async fn publish_token_from(
        &self,
        pool: &Pool,
        tenant: TenantId,
        session: SessionId,
        origin: Option<TraceContext>,
    ) -> Result<Published> {
        let published = Ok(self.queue(pool).publish(TokenKey { tenant, session }, origin));
        self.shared.meters.published(&published);
        published
    }

    async fn tokens(&self, pool: &Pool) -> Result<Box<dyn TokenSource>> {
        Ok(Box::new(MemoryTokens {
            queue: self.queue(pool),
            deliveries: self.shared.meters.deliveries(pool),
        }))
    }

    async fn publish_events(&self, tenant: TenantId, session: SessionId, events: &Appended) {
        self.publish_events_from(tenant, session, events, None).await;
    }

    async fn publish_events_from(
        &self,
        tenant: TenantId,
        session: SessionId,
        events: &Appended,
        origin: Option<TraceContext>,
    ) {
        if !events.is_empty() {
            self.shared.events.send(&(tenant, session), || (events[..].into(), origin));
        }
    }

    async fn subscribe_events(&self, tenant: TenantId, session: SessionId) -> Result<Box<dyn EventSource>> {
        let listener = Topics::subscribe(&self.shared.events, (tenant, session), EVENT_BUFFER);
        Ok(Box::new(MemoryEvents { listener, origin: None }))
    }

    fn notify_end(&self, plane: ControlPlaneId, notice: RunEndNotice) {
        self.shared.ends.send(&plane, || notice);
    }

    async fn subscribe_end_notices(&self, plane: ControlPlaneId) -> Result<Box<dyn EndNoticeSource>> {
        Ok(Box::new(MemoryEndNotices(Topics::subscribe(&self.shared.ends, plane, END_BUFFER))))
    }

    async fn publish_deltas(&self, tenant: TenantId, session: SessionId, deltas: &[Delta]) {
        if !deltas.is_empty() {
            self.shared.deltas.send(&(tenant, session), || deltas.into());
        }
    }

    async fn subscribe_deltas(&self, tenant: TenantId, session: SessionId) -> Result<Box<dyn DeltaSource>> {
        Ok(Box::new(MemoryDeltas(Topics::subscribe(&self.shared.deltas, (tenant, session), DELTA_BUFFER))))
    }

    async fn send_signal(&self, worker: WorkerId, signal: &Signal) -> Result<()> {
        self.shared.signals.send(&worker, || signal.clone());
        Ok(())
    }

    async fn subscribe_signals(&self, worker: WorkerId) -> Result<Box<dyn SignalSource>> {
        Ok(Box::new(MemorySignals(Topics::subscribe(&self.shared.signals, worker, SIGNAL_BUFFER))))
    }

    async fn broadcast(&self, notice: &Notice) -> Result<()> {
        self.shared.notices.send(&(), || notice.clone());
        Ok(())
    }

    async fn subscribe_notices(&self) -> Result<Box<dyn NoticeSource>> {
        Ok(Box::new(MemoryNotices(Topics::subscribe(&self.shared.notices, (), NOTICE_BUFFER))))
    }

    async fn token_counts(&self, pool: &Pool) -> Result<TokenCounts> {
        Ok(self.queue(pool).counts())
    }

    async fn ping(&self) -> Result<()> {
        Ok(())
    }
}

struct MemoryTokens {
    queue: Arc<Queue>,
    deliveries: Deliveries,
}

#[async_trait]
impl TokenSource for MemoryTokens {
    async fn take(&mut self, max: usize) -> Result<Vec<Box<dyn Token>>> {
        if max == 0 {
            return Ok(Vec::new());
        }
        let deadline = Instant::now() + TAKE_TIMEOUT;
        loop {
            let woken = self.queue.woken();
            tokio::pin!(woken);
            // Register before the check, so that a publish between check and wait is not missed.
            woken.as_mut().enable();
            let PoppedTokens { keys, redelivered, next_due } = self.queue.pop(max);
            if !keys.is_empty() {
                self.deliveries.count(keys.len() as u64, redelivered);
                return Ok(keys.into_iter().map(|(key, origin)| self.to_token(key, origin)).collect());
            }
            if Instant::now() >= deadline {
                return Ok(Vec::new());
            }
            let until = next_due.map_or(deadline, |due| due.min(deadline));
            // Woken or timed out: the next check decides.
            timeout_at(until, woken).await.ok();
        }
    }
}

impl MemoryTokens {
    fn to_token(&self, key: TokenKey, origin: Option<TraceContext>) -> Box<dyn Token> {
        Box::new(MemoryToken { key, origin, queue: Arc::clone(&self.queue), owned: true })
    }
}

struct MemoryToken {
    key: TokenKey,
    origin: Option<TraceContext>,
    queue: Arc<Queue>,
    owned: bool,
}

#[async_trait]
impl Token for MemoryToken {
    fn tenant(&self) -> TenantId {
        self.key.tenant
    }

    fn session(&self) -> SessionId {
        self.key.session
    }

    fn origin(&self) -> Option<TraceContext> {
        self.origin
    }

    async fn keep_alive(&self) -> Result<()> {
        Ok(())
    }

    fn keep_alive_every(&self) -> Duration {
        KEEP_ALIVE_EVERY
    }

    async fn finish(mut self: Box<Self>) -> Result<()> {
        self.owned = false;
        self.queue.remove(self.key);
        Ok(())
    }

    async fn retry_after(mut self: Box<Self>, delay: Duration) -> Result<()> {
        self.owned = false;
        self.queue.put_back(self.key, delay.min(MAX_DELAY));
        Ok(())
    }
}

impl Drop for MemoryToken {
    fn drop(&mut self) {
        if self.owned {
            self.queue.put_back(self.key, Duration::ZERO);
        }
    }
}

struct MemoryEvents {
    listener: Listener<SessionKey, EventBatch>,
    origin: Option<TraceContext>,
}

#[async_trait]
impl EventSource for MemoryEvents {
    async fn next(&mut self) -> Option<Vec<Event>> {
        let (events, origin) = self.listener.next().await?;
        self.origin = origin;
        Some(events.to_vec())
    }

    fn origin(&self) -> Option<TraceContext> {
        self.origin
    }
}

struct MemoryEndNotices(Listener<ControlPlaneId, RunEndNotice>);

#[async_trait]
impl EndNoticeSource for MemoryEndNotices {
    async fn next(&mut self) -> Option<Vec<RunEndNotice>> {
        self.0.next().await.map(|notice| vec![notice])
    }
}

struct MemoryDeltas(Listener<SessionKey, Batch<Delta>>);

#[async_trait]
impl DeltaSource for MemoryDeltas {
    async fn next(&mut self) -> Option<Vec<Delta>> {
        self.0.next().await.map(|deltas| deltas.to_vec())
    }
}

struct MemorySignals(Listener<WorkerId, Signal>);

#[async_trait]
impl SignalSource for MemorySignals {
    async fn next(&mut self) -> Option<Signal> {
        self.0.next().await
    }
}

struct MemoryNotices(Listener<(), Notice>);

#[async_trait]
impl NoticeSource for MemoryNotices {
    async fn next(&mut self) -> Option<Notice> {
        self.0.next().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn memory_is_freed_without_tokens_and_listeners() {
        let memory = Memory::new();
        let (pool, tenant) = (Pool::default(), TenantId::new());
        for _ in 0..100 {
            let session = SessionId::new();
            memory.publish_events(tenant, session, &Appended::default()).await;
            drop(memory.subscribe_events(tenant, session).await.unwrap());
            memory.publish_deltas(tenant, session, &[]).await;
            drop(memory.subscribe_deltas(tenant, session).await.unwrap());
            memory.publish_token(&pool, tenant, session).await.unwrap();
            let mut tokens = memory.tokens(&pool).await.unwrap();
            for token in tokens.take(1).await.unwrap() {
                token.finish().await.unwrap();
            }
            drop(memory.subscribe_signals(WorkerId::new()).await.unwrap());
            drop(memory.subscribe_notices().await.unwrap());
            drop(memory.subscribe_end_notices(ControlPlaneId::new()).await.unwrap());
        }
        let shared = &memory.shared;
        let topics = [
            shared.events.len(),
            shared.deltas.len(),
            shared.ends.len(),
            shared.signals.len(),
            shared.notices.len(),
        ];
        assert_eq!(topics, [0; 5]);
        assert!(memory.queue(&pool).is_empty());
    }

    #[tokio::test]
    async fn pending_take_returns_a_token_when_its_delay_ends() {
        let memory = Memory::new();
        let (pool, session) = (Pool::default(), SessionId::new());
        memory.publish_token(&pool, TenantId::new(), session).await.unwrap();
        let mut tokens = memory.tokens(&pool).await.unwrap();
        let token = tokens.take(1).await.unwrap().remove(0);
        let start = Instant::now();
        let mut other = memory.tokens(&pool).await.unwrap();
        let (taken, ()) = tokio::join!(other.take(1), async {
            tokio::task::yield_now().await;
            token.retry_after(Duration::from_millis(50)).await.unwrap();
        });
        assert_eq!(taken.unwrap()[0].session(), session);
        assert!((50..2000).contains(&start.elapsed().as_millis()));
    }

    #[tokio::test]
    async fn source_of_a_lagging_listener_ends() {
        let memory = Memory::new();
        let (worker, signal) = (WorkerId::new(), Signal::Drain);
        let mut signals = memory.subscribe_signals(worker).await.unwrap();
        for _ in 0..=SIGNAL_BUFFER {
            memory.send_signal(worker, &signal).await.unwrap();
        }
        assert_eq!(signals.next().await, None);
        assert_eq!(signals.next().await, None);
        let mut resubscribed = memory.subscribe_signals(worker).await.unwrap();
        memory.send_signal(worker, &signal).await.unwrap();
        assert_eq!(resubscribed.next().await, Some(signal));
    }
}
