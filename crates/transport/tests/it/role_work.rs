//! Each role does all of its work with the credentials of that role.

use std::{sync::Arc, time::Duration};

use remuda_domain::{
    Appended, ControlPlaneId, Pool, RunId, SessionId, TenantId, WorkerId,
    logs::{Notice, Processes},
    run::RunEndNotice,
    worker::{Signal, SlotOffer},
};
use remuda_testkit::{nats_binaries, wait_for};
use remuda_transport::{
    BusRole, BusSigning, GRANT_VERSION, GrantBatch, KeySource, Nats, Published, Signing, SignsAs, Transport,
};
use tokio::time::timeout;
use uuid::Uuid;

use crate::{
    roles::SecuredServer,
    support::{Keys, LONG, delta, event, take_one},
};

/// A client with the credentials of a role.
async fn connect(server: &SecuredServer, role: BusRole, keys: &Arc<Keys>) -> Nats {
    let keys = Arc::clone(keys) as Arc<dyn KeySource>;
    let signing = BusSigning { signing: Signing::Require, signs_as: SignsAs::Installation, keys };
    Nats::connect_signed(server.options(role), signing).await.unwrap()
}

#[tokio::test]
async fn every_role_can_do_its_work() {
    for binary in nats_binaries() {
        let server = SecuredServer::start(&binary);
        let keys = Arc::new(Keys::new());
        let plane = connect(&server, BusRole::ControlPlane, &keys).await;
        let worker = connect(&server, BusRole::Worker, &keys).await;
        let stream = connect(&server, BusRole::Stream, &keys).await;
        // Only a control plane creates the stream.
        let early = worker.provision(&[Pool::default()]).await.unwrap_err();
        assert!(early.to_string().contains("a control plane creates it"), "{early}");
        plane.provision(&["gpu".parse().unwrap()]).await.unwrap();
        worker.provision(&[Pool::default()]).await.unwrap();
        tokens_reach_workers(&plane, &worker).await;
        events_reach_readers(&plane, &worker, &stream).await;
        grants_and_signals_reach_workers(&plane, &worker, &stream).await;
        notices_reach_everyone(&[&plane, &worker, &stream]).await;
        for nats in [&plane, &worker, &stream] {
            nats.ping().await.unwrap();
            assert_eq!(nats.inspect().await.unwrap().problems, [""; 0]);
        }
        assert_eq!(plane.repair().await.unwrap(), [""; 0]);
    }
}

async fn tokens_reach_workers(plane: &Nats, worker: &Nats) {
    let (pool, tenant) = (Pool::default(), TenantId::new());
    let mut source = worker.tokens(&pool).await.unwrap();
    for publisher in [plane, worker] {
        let session = SessionId::new();
        assert_eq!(publisher.publish_token(&pool, tenant, session).await.unwrap(), Published::Stored);
        let token = take_one(&mut source).await;
        assert_eq!(token.session(), session);
        token.keep_alive().await.unwrap();
        token.retry_after(Duration::ZERO).await.unwrap();
        take_one(&mut source).await.finish().await.unwrap();
    }
    // A token that is not delivered.
    let (other, session) = ("gpu".parse().unwrap(), SessionId::new());
    plane.publish_token(&other, tenant, session).await.unwrap();
    assert!(plane.discard_token(&other, tenant, session, Duration::ZERO).await.unwrap());
    assert_eq!(plane.token_counts(&pool).await.unwrap().waiting, 0);
    assert_eq!(plane.orphaned_tokens().await.unwrap(), 0);
}

async fn events_reach_readers(plane: &Nats, worker: &Nats, stream: &Nats) {
    let (tenant, session) = (TenantId::new(), SessionId::new());
    for reader in [plane, stream] {
        let mut events = reader.subscribe_events(tenant, session).await.unwrap();
        let mut deltas = reader.subscribe_deltas(tenant, session).await.unwrap();
        for (cursor, publisher) in (1..).zip([plane, worker]) {
            publisher.publish_events(tenant, session, &Appended::from(vec![event(session, cursor)])).await;
            let found = timeout(LONG, events.next()).await.unwrap().unwrap();
            assert_eq!(found[0].cursor, cursor);
        }
        worker.publish_deltas(tenant, session, &[delta(1)]).await;
        assert_eq!(timeout(LONG, deltas.next()).await.unwrap().unwrap(), [delta(1)]);
    }
}

async fn grants_and_signals_reach_workers(plane: &Nats, worker: &Nats, stream: &Nats) {
    let (id, from) = (WorkerId::new(), ControlPlaneId::new());
    let (grants, offers) = (plane.grant_transport().unwrap(), worker.grant_transport().unwrap());
    let mut offered = grants.subscribe_offers().await.unwrap();
    let (pool, received) = (Pool::default(), Vec::new());
    let offer = SlotOffer { worker: id, pool, slots: 1, stamp: 1, received, grant_version: GRANT_VERSION };
    offers.offer(&offer).await.unwrap();
    assert_eq!(timeout(LONG, offered.next()).await.unwrap(), Some(offer));

    let mut granted = offers.subscribe_grants(id).await.unwrap();
    let batch = GrantBatch { from, stamp: 1, sent: 1, grants: Vec::new() };
    grants.send_grants(id, &batch).await.unwrap();
    assert_eq!(timeout(LONG, granted.next()).await.unwrap(), Some(batch));

    let mut signals = worker.subscribe_signals(id).await.unwrap();
    for sender in [plane, worker, stream] {
        sender.send_signal(id, &Signal::Drain).await.unwrap();
        assert_eq!(timeout(LONG, signals.next()).await.unwrap(), Some(Signal::Drain));
    }
    let mut ends = plane.subscribe_end_notices(from).await.unwrap();
    for sender in [plane, worker] {
        let notice = RunEndNotice { run: RunId::new(), completed: None };
        sender.notify_end(from, notice.clone());
        assert_eq!(timeout(LONG, ends.next()).await.unwrap(), Some(vec![notice]));
    }
}

async fn notices_reach_everyone(all: &[&Nats]) {
    for sender in all {
        for receiver in all {
            let mut notices = receiver.subscribe_notices().await.unwrap();
            let question = Uuid::now_v7();
            let notice = Notice::AskLog { question, from: "a process".to_owned(), only: Processes::All };
            sender.broadcast(&notice).await.unwrap();
            assert_eq!(timeout(LONG, notices.next()).await.unwrap(), Some(notice));
        }
    }
}

#[tokio::test]
async fn worker_continues_after_a_control_plane_has_created_the_stream_again() {
    for binary in nats_binaries() {
        let mut server = SecuredServer::start(&binary);
        let keys = Arc::new(Keys::new());
        let plane = connect(&server, BusRole::ControlPlane, &keys).await;
        let worker = connect(&server, BusRole::Worker, &keys).await;
        let (pool, tenant, session) = (Pool::default(), TenantId::new(), SessionId::new());
        plane.provision(std::slice::from_ref(&pool)).await.unwrap();
        let mut source = worker.tokens(&pool).await.unwrap();
        server.server.wipe_and_restart().unwrap();
        let taken = take_one(&mut source);
        let published = wait_for("the stream", LONG, || async {
            plane.publish_token(&pool, tenant, session).await.is_ok()
        });
        let (token, ()) = tokio::join!(taken, published);
        assert_eq!(token.session(), session);
    }
}
