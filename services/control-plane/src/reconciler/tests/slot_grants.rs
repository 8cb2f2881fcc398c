//! Sessions that are granted in the submit transaction, over a real nats-server.

use std::{sync::Arc, time::Duration};

use remuda_domain::{
    Pool, SessionId, WorkerId,
    session::SessionRef,
    worker::{Signal, SlotOffer},
};
use remuda_store::{Grant, Heartbeat};
use remuda_testkit::{NatsServer, nats_binaries, wait_for};
use remuda_transport::{GRANT_VERSION, GrantBatch, GrantSource, Nats, NatsOptions, Transport};
use tokio::time::timeout;

use super::{
    super::{
        background_task::{BackgroundTask as _, Round},
        redeliver_lost_grants::RedeliverLostGrants,
    },
    fixture::{Fixture, NEVER, PATIENCE},
};

async fn fixture(server: &NatsServer) -> Fixture {
    let options = NatsOptions { servers: vec![server.url()], ..NatsOptions::default() };
    let nats = Nats::connect(options).await.unwrap();
    nats.provision(&["default".parse().unwrap()]).await.unwrap();
    Fixture::on(Arc::new(nats)).await
}

impl Fixture {
    async fn offer(&self, worker: WorkerId, slots: u32) {
        let pool = Pool::default();
        let offer =
            SlotOffer { worker, pool, slots, stamp: 17, received: Vec::new(), grant_version: GRANT_VERSION };
        self.transport.grant_transport().unwrap().offer(&offer).await.unwrap();
    }

    /// Submits first runs of new sessions until one of them is granted.
    async fn granted(&self) -> SessionId {
        let submitted = || async {
            let session = self.runnable().await;
            self.owner(session).await.map(|_| session)
        };
        wait_for("a grant", PATIENCE, submitted).await
    }

    async fn owner(&self, session: SessionId) -> Option<WorkerId> {
        self.store.get_session(self.tenant, &SessionRef::Id(session)).await.unwrap().owner
    }
}

async fn batch(batches: &mut dyn GrantSource) -> GrantBatch {
    timeout(PATIENCE, batches.next()).await.unwrap().unwrap()
}

#[tokio::test]
async fn first_runs_are_granted_to_workers_that_offer_slots() {
    for binary in nats_binaries() {
        let server = NatsServer::start(&binary).unwrap();
        let fixture = fixture(&server).await;
        let worker = fixture.worker(NEVER).await;
        let mut batches =
            fixture.transport.grant_transport().unwrap().subscribe_grants(worker).await.unwrap();
        fixture.offer(worker, 2).await;
        let first = fixture.granted().await;
        let sent = batch(&mut *batches).await;
        assert_eq!((sent.stamp, sent.sent, sent.grants.len()), (17, 1, 1));
        let grant: Grant = serde_json::from_slice(sent.grants[0].body.as_ref().unwrap()).unwrap();
        assert_eq!((grant.fence.session, grant.fence.worker, grant.fence.epoch), (first, worker, 1));
        assert_eq!((grant.run.seq, grant.run.attempt), (1, 1));
        fixture.granted().await;
        let next = batch(&mut *batches).await;
        assert_eq!((next.from, next.sent), (sent.from, 2));
        let beyond = fixture.runnable().await;
        assert_eq!(fixture.owner(beyond).await, None, "two slots were offered");
        drop(batches);
        fixture.shut_down().await;
    }
}

#[tokio::test]
async fn owner_is_signalled_if_its_grant_was_lost() {
    let server = NatsServer::start(&nats_binaries()[0]).unwrap();
    let fixture = fixture(&server).await;
    let worker = fixture.worker(NEVER).await;
    fixture.offer(worker, 1).await;
    // The worker does not subscribe to grants, so this one is lost.
    let session = fixture.granted().await;
    let transport = Arc::clone(&fixture.transport) as Arc<dyn Transport>;
    let mut task = RedeliverLostGrants {
        store: Arc::clone(&fixture.store),
        transport,
        pace: NEVER,
        granted_ago: Duration::ZERO,
        after: None,
    };
    assert_eq!(task.round().await.unwrap(), Round::of([("told", 0)]), "it has sent no heartbeat yet");
    let mut signals = fixture.transport.subscribe_signals(worker).await.unwrap();
    fixture
        .store
        .renew_lease(&Heartbeat { worker, lease: NEVER, running: Vec::new(), worked: Vec::new() })
        .await
        .unwrap();
    assert_eq!(task.round().await.unwrap(), Round::of([("told", 1)]));
    let signal = timeout(PATIENCE, signals.next()).await.unwrap().unwrap();
    assert_eq!(signal, Signal::ReclaimSession { tenant: fixture.tenant, session });
    // It claims the session and gets it.
    let grant = fixture.claim(session, worker).await;
    assert_eq!((grant.fence.epoch, grant.run.attempt), (2, 1));
    let running = vec![grant.run.id];
    fixture
        .store
        .renew_lease(&Heartbeat { worker, lease: NEVER, running, worked: Vec::new() })
        .await
        .unwrap();
    assert_eq!(task.round().await.unwrap(), Round::of([("told", 0)]));
    drop((signals, task));
    fixture.shut_down().await;
}
