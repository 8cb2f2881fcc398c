//! What a subscriber gets from somebody without a key, and from a worker that says more than it may.

use std::sync::Arc;

use async_nats::Message;
use futures::StreamExt as _;
use remuda_domain::{
    Appended, ControlPlaneId, Pool, RunId, SessionId, TenantId, Timestamp, WorkerId,
    bus::{BusKey, BusSigner},
    logs::{Notice, Processes},
    run::{Completion, RunEndNotice},
    worker::{Signal, SlotOffer},
};
use remuda_testkit::{NatsServer, nats_binaries};
use remuda_transport::{
    GRANT_VERSION, GrantBatch, GrantRecord, Nats, NatsOptions, Signing, SignsAs, Transport, new_bus_secret,
};
use tokio::time::timeout;
use uuid::Uuid;

use crate::support::{Keys, LONG, connect_signed, delta, event, options};

/// Two services of an installation, and a stranger who sees and sends everything.
struct Bus {
    one: Nats,
    other: Nats,
    keys: Arc<Keys>,
    options: NatsOptions,
    stranger: async_nats::Client,
    seen: async_nats::Subscriber,
    _server: NatsServer,
}

impl Bus {
    async fn new() -> Self {
        let server = NatsServer::start(&nats_binaries()[0]).unwrap();
        let (options, keys) = (options(&server.url()), Arc::new(Keys::new()));
        let one = connect_signed(&options, &keys, Signing::Require, SignsAs::Installation).await;
        let other = connect_signed(&options, &keys, Signing::Require, SignsAs::Installation).await;
        let stranger = async_nats::connect(server.url()).await.unwrap();
        let seen = stranger.subscribe(format!("{}.>", options.prefix)).await.unwrap();
        stranger.flush().await.unwrap();
        Self { one, other, keys, options, stranger, seen, _server: server }
    }

    /// A worker of the installation, with a key of its own.
    async fn worker(&self) -> (WorkerId, Nats) {
        let (worker, secret) = (WorkerId::new(), new_bus_secret());
        let nats = connect_signed(&self.options, &self.keys, Signing::Require, SignsAs::Worker).await;
        self.keys.add(BusKey { signer: BusSigner::Worker(worker), secret: secret.clone() });
        nats.sign_as(worker, &secret);
        (worker, nats)
    }

    /// The next message that anybody has sent.
    async fn captured(&mut self) -> Message {
        loop {
            let message = timeout(LONG, self.seen.next()).await.unwrap().unwrap();
            // Not the requests that show when a subscription is registered.
            if message.reply.is_none() {
                return message;
            }
        }
    }

    /// Sends a captured message again, once as it is and once without its proof.
    async fn repeat(&self, message: &Message) {
        let (subject, headers) = (message.subject.clone(), message.headers.clone().unwrap());
        let payload = message.payload.clone();
        self.stranger.publish_with_headers(subject.clone(), headers, payload.clone()).await.unwrap();
        self.stranger.publish(subject, payload).await.unwrap();
        self.stranger.flush().await.unwrap();
    }
}

#[tokio::test]
async fn unproven_events_are_hints_and_unproven_deltas_are_dropped() {
    let mut bus = Bus::new().await;
    let (tenant, session) = (TenantId::new(), SessionId::new());
    let mut events = bus.other.subscribe_events(tenant, session).await.unwrap();
    let mut deltas = bus.other.subscribe_deltas(tenant, session).await.unwrap();
    let appended = |cursor| Appended::from(vec![event(session, cursor)]);
    bus.one.publish_events(tenant, session, &appended(1)).await;
    assert_eq!(timeout(LONG, events.next()).await.unwrap().unwrap().len(), 1);
    let captured = bus.captured().await;
    bus.repeat(&captured).await;
    for _ in 0..2 {
        assert_eq!(timeout(LONG, events.next()).await.unwrap(), Some(Vec::new()), "a hint");
    }
    bus.one.publish_events(tenant, session, &appended(2)).await;
    assert_eq!(timeout(LONG, events.next()).await.unwrap().unwrap()[0].cursor, 2, "the real one arrives");

    bus.captured().await;
    bus.captured().await;
    bus.captured().await;
    bus.one.publish_deltas(tenant, session, &[delta(1)]).await;
    assert_eq!(timeout(LONG, deltas.next()).await.unwrap(), Some(vec![delta(1)]));
    let captured = bus.captured().await;
    bus.repeat(&captured).await;
    bus.one.publish_deltas(tenant, session, &[delta(2)]).await;
    assert_eq!(timeout(LONG, deltas.next()).await.unwrap(), Some(vec![delta(2)]), "nothing in between");
}

#[tokio::test]
async fn unproven_ends_signals_and_grants_say_nothing_but_look() {
    let mut bus = Bus::new().await;
    let (plane, worker) = (ControlPlaneId::new(), WorkerId::new());
    let mut ends = bus.other.subscribe_end_notices(plane).await.unwrap();
    let at = Timestamp::UNIX_EPOCH;
    let completed = Completion { started_at: at, finished_at: at, outcomes: Vec::new() };
    let notice = RunEndNotice { run: RunId::new(), completed: Some(completed) };
    bus.one.notify_end(plane, notice.clone());
    assert_eq!(timeout(LONG, ends.next()).await.unwrap(), Some(vec![notice.clone()]));
    let captured = bus.captured().await;
    bus.repeat(&captured).await;
    for _ in 0..2 {
        let hint = RunEndNotice { completed: None, ..notice.clone() };
        assert_eq!(timeout(LONG, ends.next()).await.unwrap(), Some(vec![hint]));
    }
    bus.captured().await;
    bus.captured().await;

    let mut signals = bus.other.subscribe_signals(worker).await.unwrap();
    bus.one.send_signal(worker, &Signal::Drain).await.unwrap();
    assert_eq!(timeout(LONG, signals.next()).await.unwrap(), Some(Signal::Drain));
    assert!(signals.is_proven());
    let captured = bus.captured().await;
    bus.repeat(&captured).await;
    for _ in 0..2 {
        assert_eq!(timeout(LONG, signals.next()).await.unwrap(), Some(Signal::Drain));
        assert!(!signals.is_proven());
    }
    bus.captured().await;
    bus.captured().await;

    let mut batches = bus.other.grant_transport().unwrap().subscribe_grants(worker).await.unwrap();
    let (tenant, session) = (TenantId::new(), SessionId::new());
    let record = GrantRecord { tenant, session, epoch: 1, body: Some("{}".into()) };
    let batch = GrantBatch { from: plane, stamp: 1, sent: 1, grants: vec![record] };
    bus.one.grant_transport().unwrap().send_grants(worker, &batch).await.unwrap();
    assert_eq!(timeout(LONG, batches.next()).await.unwrap().as_ref(), Some(&batch));
    assert!(batches.is_proven());
    let captured = bus.captured().await;
    bus.repeat(&captured).await;
    for _ in 0..2 {
        let hint = timeout(LONG, batches.next()).await.unwrap().unwrap();
        assert!(!batches.is_proven() && hint.grants.iter().all(|grant| grant.body.is_none()), "{hint:?}");
    }
}

fn offer(worker: WorkerId) -> SlotOffer {
    let pool = Pool::default();
    SlotOffer { worker, pool, slots: 1, stamp: 1, received: Vec::new(), grant_version: GRANT_VERSION }
}

#[tokio::test]
async fn unproven_offers_and_notices_are_dropped() {
    let mut bus = Bus::new().await;
    let (grants, mut notices) =
        (bus.other.grant_transport().unwrap(), bus.other.subscribe_notices().await.unwrap());
    let mut offers = grants.subscribe_offers().await.unwrap();
    let [first, second] = [offer(WorkerId::new()), offer(WorkerId::new())];
    bus.one.grant_transport().unwrap().offer(&first).await.unwrap();
    assert_eq!(timeout(LONG, offers.next()).await.unwrap(), Some(first));
    let captured = bus.captured().await;
    bus.repeat(&captured).await;
    bus.one.grant_transport().unwrap().offer(&second).await.unwrap();
    assert_eq!(timeout(LONG, offers.next()).await.unwrap(), Some(second));

    let ask = || Notice::AskLog { question: Uuid::now_v7(), from: "one".to_owned(), only: Processes::All };
    let [first, second] = [ask(), ask()];
    bus.one.broadcast(&first).await.unwrap();
    assert_eq!(timeout(LONG, notices.next()).await.unwrap(), Some(first));
    let captured = loop {
        let message = bus.captured().await;
        if message.subject.ends_with(".notices") {
            break message;
        }
    };
    bus.repeat(&captured).await;
    bus.one.broadcast(&second).await.unwrap();
    assert_eq!(timeout(LONG, notices.next()).await.unwrap(), Some(second));
}

#[tokio::test]
async fn worker_is_believed_only_what_a_worker_may_say() {
    let bus = Bus::new().await;
    let (worker, of_worker) = bus.worker().await;
    let victim = WorkerId::new();
    let service = bus.other.grant_transport().unwrap();
    let mut offers = service.subscribe_offers().await.unwrap();
    let mut signals = bus.other.subscribe_signals(victim).await.unwrap();
    let mut batches = service.subscribe_grants(victim).await.unwrap();
    let mut notices = bus.other.subscribe_notices().await.unwrap();

    // Slots of its own, not of another worker. The first message may come before the keys are read again.
    let own = offer(worker);
    let sending = async {
        loop {
            of_worker.grant_transport().unwrap().offer(&offer(victim)).await.unwrap();
            of_worker.grant_transport().unwrap().offer(&own).await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        received = timeout(LONG, offers.next()) => assert_eq!(received.unwrap().as_ref(), Some(&own)),
        () = sending => {}
    }
    let cancel = Signal::Cancel { session: SessionId::new(), run: RunId::new() };
    for (signal, proven) in [(Signal::Drain, false), (cancel, true)] {
        of_worker.send_signal(victim, &signal).await.unwrap();
        assert_eq!(timeout(LONG, signals.next()).await.unwrap(), Some(signal));
        assert_eq!(signals.is_proven(), proven);
    }
    let batch = GrantBatch { from: ControlPlaneId::new(), stamp: 1, sent: 1, grants: Vec::new() };
    of_worker.grant_transport().unwrap().send_grants(victim, &batch).await.unwrap();
    timeout(LONG, batches.next()).await.unwrap().unwrap();
    assert!(!batches.is_proven());
    let ask =
        |from: &str| Notice::AskLog { question: Uuid::now_v7(), from: from.to_owned(), only: Processes::All };
    let real = ask("one");
    of_worker.broadcast(&ask("a worker")).await.unwrap();
    bus.one.broadcast(&real).await.unwrap();
    assert_eq!(timeout(LONG, notices.next()).await.unwrap(), Some(real));
}

#[tokio::test]
async fn unsigned_and_signing_services_understand_each_other_until_signatures_are_required() {
    let server = NatsServer::start(&nats_binaries()[0]).unwrap();
    let (options, keys) = (options(&server.url()), Arc::new(Keys::new()));
    let connect = async |signing| connect_signed(&options, &keys, signing, SignsAs::Installation).await;
    let (off, sign, require) =
        (connect(Signing::Off).await, connect(Signing::Sign).await, connect(Signing::Require).await);
    let worker = WorkerId::new();
    for (from, to, proven) in [
        (&off, &sign, true),
        (&sign, &off, true),
        (&sign, &require, true),
        (&require, &sign, true),
        (&off, &require, false),
    ] {
        let mut signals = to.subscribe_signals(worker).await.unwrap();
        from.send_signal(worker, &Signal::Drain).await.unwrap();
        assert_eq!(timeout(LONG, signals.next()).await.unwrap(), Some(Signal::Drain));
        assert_eq!(signals.is_proven(), proven, "{from:?} to {to:?}");
    }
}
