//! What every transport guarantees for tokens, events and signals.

use std::{collections::HashSet, time::Duration};

use remuda_domain::{RunId, SessionId, TenantId, WorkerId, worker::Signal};
use remuda_testkit::wait_for;
use remuda_transport::{Published, TokenCounts};
use tokio::time::{Instant, timeout};

use crate::support::{ACK_WAIT, LONG, TransportPair, event, pools, stays_empty, take_one};

/// Runs every case on the in-memory transport and on each NATS server version.
macro_rules! transport_suite {
    ($($case:ident)*) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(crate::support::TransportPair::memory()).await;
            })*
        }

        mod nats {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                for binary in remuda_testkit::nats_binaries() {
                    super::$case(crate::support::TransportPair::nats(&binary).await).await;
                }
            })*
        }
    };
}

pub(crate) use transport_suite;

transport_suite! {
    token_is_delivered_once
    second_publish_is_a_duplicate_while_a_token_exists
    publish_is_accepted_immediately_after_finish
    dropped_token_is_redelivered
    token_kept_alive_is_not_redelivered
    token_put_back_is_redelivered_after_the_delay
    tokens_arrive_in_publish_order
    pools_are_separate
    take_returns_at_most_max_tokens
    source_with_one_slot_leaves_other_tokens_to_others
    cancelled_take_loses_no_token
    dropped_source_loses_no_token
    fewer_free_slots_leave_tokens_to_others
    concurrent_sources_finish_each_token_once
    take_without_tokens_times_out
    tenants_do_not_see_each_others_events
    events_reach_earlier_subscribers_in_order
    source_of_a_lagging_reader_ends
    signals_reach_only_their_worker
    tokens_are_counted
    ping_succeeds
}

async fn token_is_delivered_once(pair: TransportPair) {
    let session = SessionId::new();
    assert_eq!(pair.publish(session).await, Published::Stored);
    let (mut one, mut other) = (pair.source().await, pair.other.tokens(&pair.pool).await.unwrap());
    let token = take_one(&mut one).await;
    assert_eq!((token.tenant(), token.session()), (pair.tenant, session));
    let quiet = ACK_WAIT / 3;
    assert!(stays_empty(&mut one, quiet).await && stays_empty(&mut other, quiet).await);
    token.finish().await.unwrap();
    assert!(stays_empty(&mut one, ACK_WAIT * 2).await);
}

async fn second_publish_is_a_duplicate_while_a_token_exists(pair: TransportPair) {
    let session = SessionId::new();
    assert_eq!(pair.publish(session).await, Published::Stored);
    assert_eq!(pair.publish(session).await, Published::AlreadyScheduled);
    assert_eq!(pair.publish(SessionId::new()).await, Published::Stored, "another session");
    let token = take_one(&mut pair.source().await).await;
    assert_eq!(token.session(), session);
    assert_eq!(pair.publish(session).await, Published::AlreadyScheduled);
}

async fn publish_is_accepted_immediately_after_finish(pair: TransportPair) {
    let session = SessionId::new();
    let mut source = pair.source().await;
    for cycle in 0..500 {
        let publisher = if cycle % 2 == 0 { &pair.one } else { &pair.other };
        let published = publisher.publish_token(&pair.pool, pair.tenant, session).await.unwrap();
        assert_eq!(published, Published::Stored, "cycle {cycle}");
        take_one(&mut source).await.finish().await.unwrap();
    }
}

async fn dropped_token_is_redelivered(pair: TransportPair) {
    let session = SessionId::new();
    pair.publish(session).await;
    let mut source = pair.source().await;
    drop(take_one(&mut source).await);
    let token = take_one(&mut source).await;
    assert_eq!(token.session(), session);
    token.finish().await.unwrap();
}

async fn token_kept_alive_is_not_redelivered(pair: TransportPair) {
    pair.publish(SessionId::new()).await;
    let token = take_one(&mut pair.source().await).await;
    let mut other = pair.other.tokens(&pair.pool).await.unwrap();
    let end = Instant::now() + ACK_WAIT * 3;
    while Instant::now() < end {
        token.keep_alive().await.unwrap();
        let pause = token.keep_alive_every().min(ACK_WAIT / 3);
        assert!(stays_empty(&mut other, pause).await);
    }
    token.finish().await.unwrap();
}

async fn token_put_back_is_redelivered_after_the_delay(pair: TransportPair) {
    let session = SessionId::new();
    pair.publish(session).await;
    let mut source = pair.source().await;
    let delay = ACK_WAIT * 2;
    let given_back = Instant::now();
    take_one(&mut source).await.retry_after(delay).await.unwrap();
    let token = take_one(&mut source).await;
    assert_eq!(token.session(), session);
    assert!(given_back.elapsed() >= delay, "after {:?}", given_back.elapsed());
    token.retry_after(Duration::ZERO).await.unwrap();
    let start = Instant::now();
    take_one(&mut source).await.finish().await.unwrap();
    assert!(start.elapsed() < ACK_WAIT / 2, "immediately, not after {:?}", start.elapsed());
}

async fn tokens_arrive_in_publish_order(pair: TransportPair) {
    let sessions: Vec<SessionId> = (0..20).map(|_| SessionId::new()).collect();
    for session in &sessions {
        pair.publish(*session).await;
    }
    let mut source = pair.source().await;
    let mut seen = Vec::new();
    while seen.len() < sessions.len() {
        for token in source.take(7).await.unwrap() {
            seen.push(token.session());
            token.finish().await.unwrap();
        }
    }
    assert_eq!(seen, sessions);
}

async fn pools_are_separate(pair: TransportPair) {
    let [pool, gpu] = pools();
    let session = SessionId::new();
    assert_eq!(pair.one.publish_token(&gpu, pair.tenant, session).await.unwrap(), Published::Stored);
    assert!(stays_empty(&mut pair.one.tokens(&pool).await.unwrap(), Duration::from_millis(300)).await);
    let token = take_one(&mut pair.one.tokens(&gpu).await.unwrap()).await;
    assert_eq!(token.session(), session);
    token.finish().await.unwrap();
}

async fn take_returns_at_most_max_tokens(pair: TransportPair) {
    for _ in 0..30 {
        pair.publish(SessionId::new()).await;
    }
    let mut source = pair.source().await;
    assert!(source.take(0).await.unwrap().is_empty());
    let mut seen = 0;
    for max in [1, 2, 3, 5, 8].into_iter().cycle() {
        let tokens = source.take(max).await.unwrap();
        assert!(tokens.len() <= max, "{} of {max}", tokens.len());
        seen += tokens.len();
        for token in tokens {
            token.finish().await.unwrap();
        }
        if seen == 30 {
            break;
        }
    }
    assert!(stays_empty(&mut source, Duration::from_millis(100)).await);
}

async fn source_with_one_slot_leaves_other_tokens_to_others(pair: TransportPair) {
    for _ in 0..2 {
        pair.publish(SessionId::new()).await;
    }
    let (mut one, mut other) = (pair.source().await, pair.other.tokens(&pair.pool).await.unwrap());
    let start = Instant::now();
    let first = take_one(&mut one).await;
    let second = take_one(&mut other).await;
    assert_ne!(first.session(), second.session());
    assert!(start.elapsed() < ACK_WAIT, "the second token was held back for {:?}", start.elapsed());
}

async fn cancelled_take_loses_no_token(pair: TransportPair) {
    let mut source = pair.source().await;
    let mut seen = HashSet::new();
    let sessions: HashSet<SessionId> = (0..100).map(|_| SessionId::new()).collect();
    let start = Instant::now();
    for (index, session) in sessions.iter().enumerate() {
        pair.publish(*session).await;
        let limit = Duration::from_micros(50 * (index as u64 % 20));
        for token in timeout(limit, source.take(3)).await.map(Result::unwrap).into_iter().flatten() {
            seen.insert(token.session());
            token.finish().await.unwrap();
        }
    }
    while seen.len() < sessions.len() {
        let token = take_one(&mut source).await;
        seen.insert(token.session());
        token.finish().await.unwrap();
    }
    assert_eq!(seen, sessions);
    assert!(start.elapsed() < LONG);
}

async fn dropped_source_loses_no_token(pair: TransportPair) {
    // Its pull request is open on the server when it is dropped.
    let mut gone = pair.source().await;
    assert!(stays_empty(&mut gone, Duration::from_millis(100)).await);
    drop(gone);
    let session = SessionId::new();
    pair.publish(session).await;
    let start = Instant::now();
    let token = take_one(&mut pair.other.tokens(&pair.pool).await.unwrap()).await;
    assert_eq!(token.session(), session);
    assert!(start.elapsed() < ACK_WAIT, "after {:?}", start.elapsed());
}

async fn fewer_free_slots_leave_tokens_to_others(pair: TransportPair) {
    let mut source = pair.source().await;
    // It requests eight tokens and gets none, then has one free slot only.
    assert!(timeout(Duration::from_millis(100), source.take(8)).await.is_err());
    for _ in 0..4 {
        pair.publish(SessionId::new()).await;
    }
    let start = Instant::now();
    let tokens = source.take(1).await.unwrap();
    assert!(tokens.len() <= 1);
    let mut sessions: HashSet<SessionId> = tokens.iter().map(|token| token.session()).collect();
    let mut other = pair.other.tokens(&pair.pool).await.unwrap();
    while sessions.len() < 4 {
        assert!(sessions.insert(take_one(&mut other).await.session()), "a token came twice");
    }
    assert!(start.elapsed() < ACK_WAIT, "after {:?}", start.elapsed());
}

async fn concurrent_sources_finish_each_token_once(pair: TransportPair) {
    const TOKENS: usize = 400;
    let publish = async {
        for _ in 0..TOKENS {
            pair.publish(SessionId::new()).await;
        }
    };
    let work = |mut source: Box<dyn remuda_transport::TokenSource>, slots: usize| async move {
        let mut seen = Vec::new();
        loop {
            let tokens = match timeout(Duration::from_millis(500), source.take(slots)).await {
                Ok(tokens) => tokens.unwrap(),
                Err(_) => return seen,
            };
            for token in tokens {
                seen.push(token.session());
                token.finish().await.unwrap();
            }
        }
    };
    let (one, other) = (pair.source().await, pair.other.tokens(&pair.pool).await.unwrap());
    let third = pair.source().await;
    let ((), a, b, c) = tokio::join!(publish, work(one, 1), work(other, 4), work(third, 16));
    let seen: Vec<SessionId> = [a, b, c].concat();
    assert_eq!(seen.len(), TOKENS, "each exactly once while all is well");
    assert_eq!(seen.into_iter().collect::<HashSet<_>>().len(), TOKENS);
    wait_for("no tokens left", LONG, || async {
        pair.one.token_counts(&pair.pool).await.unwrap() == TokenCounts::default()
    })
    .await;
}

async fn take_without_tokens_times_out(pair: TransportPair) {
    let mut source = pair.source().await;
    for _ in 0..2 {
        let start = Instant::now();
        assert!(source.take(2).await.unwrap().is_empty());
        assert!((3..10).contains(&start.elapsed().as_secs()), "after {:?}", start.elapsed());
    }
    // A token that is published later is not missed.
    let session = SessionId::new();
    let (token, _) = tokio::join!(take_one(&mut source), pair.publish(session));
    assert_eq!(token.session(), session);
}

async fn tenants_do_not_see_each_others_events(pair: TransportPair) {
    let (session, other_tenant) = (SessionId::new(), TenantId::new());
    let mut own = pair.other.subscribe_events(pair.tenant, session).await.unwrap();
    let mut foreign = pair.other.subscribe_events(other_tenant, session).await.unwrap();
    let mut other_session = pair.other.subscribe_events(pair.tenant, SessionId::new()).await.unwrap();
    pair.one.publish_events(pair.tenant, session, &event(session, 1).into()).await;
    assert_eq!(timeout(LONG, own.next()).await.unwrap().unwrap().len(), 1);
    assert!(timeout(Duration::from_millis(100), foreign.next()).await.is_err());
    assert!(timeout(Duration::from_millis(100), other_session.next()).await.is_err());
}

async fn events_reach_earlier_subscribers_in_order(pair: TransportPair) {
    for round in 0..20 {
        let session = SessionId::new();
        let mut one = pair.other.subscribe_events(pair.tenant, session).await.unwrap();
        let mut two = pair.one.subscribe_events(pair.tenant, session).await.unwrap();
        for first in (1..=50).step_by(5) {
            let batch: Vec<_> = (first..first + 5).map(|cursor| event(session, cursor)).collect();
            pair.one.publish_events(pair.tenant, session, &batch.into()).await;
        }
        for source in [&mut one, &mut two] {
            let mut seen = Vec::new();
            while seen.len() < 50 {
                let events =
                    timeout(LONG, source.next()).await.unwrap().expect("the source should not have ended");
                seen.extend(events.iter().map(|event| event.cursor));
            }
            assert_eq!(seen, (1..=50).collect::<Vec<_>>(), "round {round}");
        }
    }
}

async fn source_of_a_lagging_reader_ends(pair: TransportPair) {
    let session = SessionId::new();
    let mut slow = pair.other.subscribe_events(pair.tenant, session).await.unwrap();
    let mut quick = pair.other.subscribe_events(pair.tenant, session).await.unwrap();
    const BATCHES: i64 = 1000;
    for cursor in 1..=BATCHES {
        pair.one.publish_events(pair.tenant, session, &event(session, cursor).into()).await;
        assert_eq!(timeout(LONG, quick.next()).await.unwrap().unwrap()[0].cursor, cursor);
    }
    let mut seen = 0;
    while let Some(events) = timeout(LONG, slow.next()).await.unwrap() {
        for event in events {
            seen += 1;
            assert_eq!(event.cursor, seen, "nothing may be skipped silently");
        }
    }
    assert!(seen < BATCHES);
    assert!(slow.next().await.is_none(), "an ended source stays ended");
    let mut resubscribed = pair.other.subscribe_events(pair.tenant, session).await.unwrap();
    pair.one.publish_events(pair.tenant, session, &event(session, 1001).into()).await;
    assert_eq!(timeout(LONG, resubscribed.next()).await.unwrap().unwrap()[0].cursor, 1001);
}

async fn signals_reach_only_their_worker(pair: TransportPair) {
    let (worker, other_worker) = (WorkerId::new(), WorkerId::new());
    let mut own = pair.other.subscribe_signals(worker).await.unwrap();
    let mut foreign = pair.other.subscribe_signals(other_worker).await.unwrap();
    let cancel = Signal::Cancel { session: SessionId::new(), run: RunId::new() };
    for signal in [&cancel, &Signal::Drain] {
        pair.one.send_signal(worker, signal).await.unwrap();
    }
    assert_eq!(timeout(LONG, own.next()).await.unwrap(), Some(cancel));
    assert_eq!(timeout(LONG, own.next()).await.unwrap(), Some(Signal::Drain));
    assert!(timeout(Duration::from_millis(100), foreign.next()).await.is_err());
    pair.one.send_signal(WorkerId::new(), &Signal::Drain).await.unwrap();
}

async fn tokens_are_counted(pair: TransportPair) {
    for _ in 0..3 {
        pair.publish(SessionId::new()).await;
    }
    assert_eq!(pair.other.token_counts(&pair.pool).await.unwrap(), TokenCounts { waiting: 3, taken: 0 });
    let token = take_one(&mut pair.source().await).await;
    assert_eq!(pair.other.token_counts(&pair.pool).await.unwrap(), TokenCounts { waiting: 2, taken: 1 });
    token.finish().await.unwrap();
    assert_eq!(pair.other.token_counts(&pair.pool).await.unwrap(), TokenCounts { waiting: 2, taken: 0 });
    let [_, gpu] = pools();
    assert_eq!(pair.other.token_counts(&gpu).await.unwrap(), TokenCounts::default());
}

async fn ping_succeeds(pair: TransportPair) {
    pair.one.ping().await.unwrap();
}
