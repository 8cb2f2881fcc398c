//! What every transport must uphold.

use std::{collections::HashSet, time::Duration};

use remuda_domain::{RunId, SessionId, TenantId, WorkerId, worker::Signal};
use remuda_testkit::wait_for;
use remuda_transport::{Published, TokenCounts};
use tokio::time::{Instant, timeout};

use crate::support::{ACK_WAIT, Fleet, LONG, event, pools, stays_empty, take_one};

/// Runs every case on the in-process transport and on NATS, each server version by turns.
macro_rules! transport_suite {
    ($($case:ident)*) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(crate::support::Fleet::memory()).await;
            })*
        }

        mod nats {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                for binary in remuda_testkit::nats_binaries() {
                    super::$case(crate::support::Fleet::nats(&binary).await).await;
                }
            })*
        }
    };
}

pub(crate) use transport_suite;

transport_suite! {
    a_token_is_delivered_once
    a_second_publish_is_refused_while_a_token_exists
    after_finish_a_publish_is_accepted_at_once
    a_dropped_token_comes_back
    a_token_kept_alive_does_not_come_back
    a_token_given_back_comes_after_the_delay_and_not_before
    tokens_come_in_the_order_they_were_published
    pools_are_separate
    take_never_returns_more_than_asked_for
    one_slot_does_not_hoard
    a_cancelled_take_loses_nothing
    a_dropped_source_loses_nothing
    less_room_gives_tokens_to_others
    many_workers_finish_everything
    an_empty_take_ends
    tenants_do_not_see_each_others_events
    events_come_in_order_to_whoever_subscribed_before
    a_reader_that_lags_is_told_to_start_anew
    signals_reach_only_their_worker
    tokens_are_counted
    it_answers_a_ping
}

async fn a_token_is_delivered_once(fleet: Fleet) {
    let session = SessionId::new();
    assert_eq!(fleet.publish(session).await, Published::Stored);
    let (mut one, mut other) = (fleet.source().await, fleet.other.tokens(&fleet.pool).await.unwrap());
    let token = take_one(&mut one).await;
    assert_eq!((token.tenant(), token.session()), (fleet.tenant, session));
    let quiet = ACK_WAIT / 3;
    assert!(stays_empty(&mut one, quiet).await && stays_empty(&mut other, quiet).await);
    token.finish().await.unwrap();
    assert!(stays_empty(&mut one, ACK_WAIT * 2).await);
}

async fn a_second_publish_is_refused_while_a_token_exists(fleet: Fleet) {
    let session = SessionId::new();
    assert_eq!(fleet.publish(session).await, Published::Stored);
    assert_eq!(fleet.publish(session).await, Published::AlreadyScheduled);
    assert_eq!(fleet.publish(SessionId::new()).await, Published::Stored, "another session");
    let token = take_one(&mut fleet.source().await).await;
    assert_eq!(token.session(), session);
    assert_eq!(fleet.publish(session).await, Published::AlreadyScheduled);
}

async fn after_finish_a_publish_is_accepted_at_once(fleet: Fleet) {
    let session = SessionId::new();
    let mut source = fleet.source().await;
    for cycle in 0..500 {
        let publisher = if cycle % 2 == 0 { &fleet.one } else { &fleet.other };
        let published = publisher.publish_token(&fleet.pool, fleet.tenant, session).await.unwrap();
        assert_eq!(published, Published::Stored, "cycle {cycle}");
        take_one(&mut source).await.finish().await.unwrap();
    }
}

async fn a_dropped_token_comes_back(fleet: Fleet) {
    let session = SessionId::new();
    fleet.publish(session).await;
    let mut source = fleet.source().await;
    drop(take_one(&mut source).await);
    let token = take_one(&mut source).await;
    assert_eq!(token.session(), session);
    token.finish().await.unwrap();
}

async fn a_token_kept_alive_does_not_come_back(fleet: Fleet) {
    fleet.publish(SessionId::new()).await;
    let token = take_one(&mut fleet.source().await).await;
    let mut other = fleet.other.tokens(&fleet.pool).await.unwrap();
    let end = Instant::now() + ACK_WAIT * 3;
    while Instant::now() < end {
        token.keep_alive().await.unwrap();
        let pause = token.keep_alive_every().min(ACK_WAIT / 3);
        assert!(stays_empty(&mut other, pause).await);
    }
    token.finish().await.unwrap();
}

async fn a_token_given_back_comes_after_the_delay_and_not_before(fleet: Fleet) {
    let session = SessionId::new();
    fleet.publish(session).await;
    let mut source = fleet.source().await;
    let delay = ACK_WAIT * 2;
    let given_back = Instant::now();
    take_one(&mut source).await.retry_after(delay).await.unwrap();
    let token = take_one(&mut source).await;
    assert_eq!(token.session(), session);
    assert!(given_back.elapsed() >= delay, "after {:?}", given_back.elapsed());
    token.retry_after(Duration::ZERO).await.unwrap();
    let start = Instant::now();
    take_one(&mut source).await.finish().await.unwrap();
    assert!(start.elapsed() < ACK_WAIT / 2, "at once, not after {:?}", start.elapsed());
}

async fn tokens_come_in_the_order_they_were_published(fleet: Fleet) {
    let sessions: Vec<SessionId> = (0..20).map(|_| SessionId::new()).collect();
    for session in &sessions {
        fleet.publish(*session).await;
    }
    let mut source = fleet.source().await;
    let mut seen = Vec::new();
    while seen.len() < sessions.len() {
        for token in source.take(7).await.unwrap() {
            seen.push(token.session());
            token.finish().await.unwrap();
        }
    }
    assert_eq!(seen, sessions);
}

async fn pools_are_separate(fleet: Fleet) {
    let [pool, gpu] = pools();
    let session = SessionId::new();
    assert_eq!(fleet.one.publish_token(&gpu, fleet.tenant, session).await.unwrap(), Published::Stored);
    assert!(stays_empty(&mut fleet.one.tokens(&pool).await.unwrap(), Duration::from_millis(300)).await);
    let token = take_one(&mut fleet.one.tokens(&gpu).await.unwrap()).await;
    assert_eq!(token.session(), session);
    token.finish().await.unwrap();
}

async fn take_never_returns_more_than_asked_for(fleet: Fleet) {
    for _ in 0..30 {
        fleet.publish(SessionId::new()).await;
    }
    let mut source = fleet.source().await;
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

async fn one_slot_does_not_hoard(fleet: Fleet) {
    for _ in 0..2 {
        fleet.publish(SessionId::new()).await;
    }
    let (mut one, mut other) = (fleet.source().await, fleet.other.tokens(&fleet.pool).await.unwrap());
    let start = Instant::now();
    let first = take_one(&mut one).await;
    let second = take_one(&mut other).await;
    assert_ne!(first.session(), second.session());
    assert!(start.elapsed() < ACK_WAIT, "the second token was held back for {:?}", start.elapsed());
}

async fn a_cancelled_take_loses_nothing(fleet: Fleet) {
    let mut source = fleet.source().await;
    let mut seen = HashSet::new();
    let sessions: HashSet<SessionId> = (0..100).map(|_| SessionId::new()).collect();
    let start = Instant::now();
    for (index, session) in sessions.iter().enumerate() {
        fleet.publish(*session).await;
        let patience = Duration::from_micros(50 * (index as u64 % 20));
        for token in timeout(patience, source.take(3)).await.map(Result::unwrap).into_iter().flatten() {
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

async fn a_dropped_source_loses_nothing(fleet: Fleet) {
    // Its request is open on the server when it goes.
    let mut gone = fleet.source().await;
    assert!(stays_empty(&mut gone, Duration::from_millis(100)).await);
    drop(gone);
    let session = SessionId::new();
    fleet.publish(session).await;
    let start = Instant::now();
    let token = take_one(&mut fleet.other.tokens(&fleet.pool).await.unwrap()).await;
    assert_eq!(token.session(), session);
    assert!(start.elapsed() < ACK_WAIT, "after {:?}", start.elapsed());
}

async fn less_room_gives_tokens_to_others(fleet: Fleet) {
    let mut source = fleet.source().await;
    // It asks for eight and gets none, then has room for one only.
    assert!(timeout(Duration::from_millis(100), source.take(8)).await.is_err());
    for _ in 0..4 {
        fleet.publish(SessionId::new()).await;
    }
    let start = Instant::now();
    let tokens = source.take(1).await.unwrap();
    assert!(tokens.len() <= 1);
    let mut sessions: HashSet<SessionId> = tokens.iter().map(|token| token.session()).collect();
    let mut other = fleet.other.tokens(&fleet.pool).await.unwrap();
    while sessions.len() < 4 {
        assert!(sessions.insert(take_one(&mut other).await.session()), "a token came twice");
    }
    assert!(start.elapsed() < ACK_WAIT, "after {:?}", start.elapsed());
}

async fn many_workers_finish_everything(fleet: Fleet) {
    const TOKENS: usize = 400;
    let publish = async {
        for _ in 0..TOKENS {
            fleet.publish(SessionId::new()).await;
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
    let (one, other) = (fleet.source().await, fleet.other.tokens(&fleet.pool).await.unwrap());
    let third = fleet.source().await;
    let ((), a, b, c) = tokio::join!(publish, work(one, 1), work(other, 4), work(third, 16));
    let seen: Vec<SessionId> = [a, b, c].concat();
    assert_eq!(seen.len(), TOKENS, "each exactly once while all is well");
    assert_eq!(seen.into_iter().collect::<HashSet<_>>().len(), TOKENS);
    wait_for("no tokens left", LONG, || async {
        fleet.one.token_counts(&fleet.pool).await.unwrap() == TokenCounts::default()
    })
    .await;
}

async fn an_empty_take_ends(fleet: Fleet) {
    let mut source = fleet.source().await;
    for _ in 0..2 {
        let start = Instant::now();
        assert!(source.take(2).await.unwrap().is_empty());
        assert!((3..10).contains(&start.elapsed().as_secs()), "after {:?}", start.elapsed());
    }
    // And a token that comes later is not missed.
    let session = SessionId::new();
    let (token, _) = tokio::join!(take_one(&mut source), fleet.publish(session));
    assert_eq!(token.session(), session);
}

async fn tenants_do_not_see_each_others_events(fleet: Fleet) {
    let (session, stranger) = (SessionId::new(), TenantId::new());
    let mut own = fleet.other.subscribe_events(fleet.tenant, session).await.unwrap();
    let mut foreign = fleet.other.subscribe_events(stranger, session).await.unwrap();
    let mut elsewhere = fleet.other.subscribe_events(fleet.tenant, SessionId::new()).await.unwrap();
    fleet.one.publish_events(fleet.tenant, session, &event(session, 1).into()).await;
    assert_eq!(timeout(LONG, own.next()).await.unwrap().unwrap().len(), 1);
    assert!(timeout(Duration::from_millis(100), foreign.next()).await.is_err());
    assert!(timeout(Duration::from_millis(100), elsewhere.next()).await.is_err());
}

async fn events_come_in_order_to_whoever_subscribed_before(fleet: Fleet) {
    for round in 0..20 {
        let session = SessionId::new();
        let mut one = fleet.other.subscribe_events(fleet.tenant, session).await.unwrap();
        let mut two = fleet.one.subscribe_events(fleet.tenant, session).await.unwrap();
        for first in (1..=50).step_by(5) {
            let batch: Vec<_> = (first..first + 5).map(|cursor| event(session, cursor)).collect();
            fleet.one.publish_events(fleet.tenant, session, &batch.into()).await;
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

async fn a_reader_that_lags_is_told_to_start_anew(fleet: Fleet) {
    let session = SessionId::new();
    let mut slow = fleet.other.subscribe_events(fleet.tenant, session).await.unwrap();
    let mut quick = fleet.other.subscribe_events(fleet.tenant, session).await.unwrap();
    const BATCHES: i64 = 1000;
    for cursor in 1..=BATCHES {
        fleet.one.publish_events(fleet.tenant, session, &event(session, cursor).into()).await;
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
    assert!(slow.next().await.is_none(), "ended is ended");
    let mut anew = fleet.other.subscribe_events(fleet.tenant, session).await.unwrap();
    fleet.one.publish_events(fleet.tenant, session, &event(session, 1001).into()).await;
    assert_eq!(timeout(LONG, anew.next()).await.unwrap().unwrap()[0].cursor, 1001);
}

async fn signals_reach_only_their_worker(fleet: Fleet) {
    let (worker, colleague) = (WorkerId::new(), WorkerId::new());
    let mut own = fleet.other.subscribe_signals(worker).await.unwrap();
    let mut foreign = fleet.other.subscribe_signals(colleague).await.unwrap();
    let cancel = Signal::Cancel { session: SessionId::new(), run: RunId::new() };
    for signal in [&cancel, &Signal::Drain] {
        fleet.one.send_signal(worker, signal).await.unwrap();
    }
    assert_eq!(timeout(LONG, own.next()).await.unwrap(), Some(cancel));
    assert_eq!(timeout(LONG, own.next()).await.unwrap(), Some(Signal::Drain));
    assert!(timeout(Duration::from_millis(100), foreign.next()).await.is_err());
    fleet.one.send_signal(WorkerId::new(), &Signal::Drain).await.unwrap();
}

async fn tokens_are_counted(fleet: Fleet) {
    for _ in 0..3 {
        fleet.publish(SessionId::new()).await;
    }
    assert_eq!(fleet.other.token_counts(&fleet.pool).await.unwrap(), TokenCounts { waiting: 3, taken: 0 });
    let token = take_one(&mut fleet.source().await).await;
    assert_eq!(fleet.other.token_counts(&fleet.pool).await.unwrap(), TokenCounts { waiting: 2, taken: 1 });
    token.finish().await.unwrap();
    assert_eq!(fleet.other.token_counts(&fleet.pool).await.unwrap(), TokenCounts { waiting: 2, taken: 0 });
    let [_, gpu] = pools();
    assert_eq!(fleet.other.token_counts(&gpu).await.unwrap(), TokenCounts::default());
}

async fn it_answers_a_ping(fleet: Fleet) {
    fleet.one.ping().await.unwrap();
}
