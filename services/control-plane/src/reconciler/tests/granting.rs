//! Runs that are granted with their submits, over a real nats-server.

use std::{sync::Arc, time::Duration};

use remuda_domain::{
    Pool, SessionId, WorkerId,
    session::SessionRef,
    worker::{Offer, Signal},
};
use remuda_store::{Heartbeat, Parcel};
use remuda_testkit::{NatsServer, nats_binaries, wait_for};
use remuda_transport::{Nats, NatsOptions, ParcelSource, Transport};
use tokio::time::timeout;

use super::{
    super::{
        find_unheld::FindUnheld,
        task::{BackgroundTask as _, Round},
    },
    lab::{Lab, NEVER, PATIENCE},
};

async fn lab(server: &NatsServer) -> Lab {
    let options = NatsOptions { servers: vec![server.url()], ..NatsOptions::default() };
    let nats = Nats::connect(options).await.unwrap();
    nats.prepare(&["default".parse().unwrap()]).await.unwrap();
    Lab::on(Arc::new(nats)).await
}

impl Lab {
    async fn offer(&self, worker: WorkerId, room: u32) {
        let offer = Offer { worker, pool: Pool::default(), room, stamp: 17, received: Vec::new() };
        self.transport.carrier().unwrap().offer(&offer).await.unwrap();
    }

    /// Submits the first runs of sessions until one of them is granted.
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

async fn parcel(parcels: &mut dyn ParcelSource) -> Parcel {
    let parcel = timeout(PATIENCE, parcels.next()).await.unwrap().unwrap();
    serde_json::from_slice(&parcel).unwrap()
}

#[tokio::test]
async fn first_runs_go_where_room_is_offered() {
    for binary in nats_binaries() {
        let server = NatsServer::start(&binary).unwrap();
        let lab = lab(&server).await;
        let worker = lab.worker(NEVER).await;
        let mut parcels = lab.transport.carrier().unwrap().subscribe_parcels(worker).await.unwrap();
        lab.offer(worker, 2).await;
        let first = lab.granted().await;
        let sent = parcel(&mut *parcels).await;
        assert_eq!((sent.stamp, sent.sent, sent.grants.len()), (17, 1, 1));
        let grant = &sent.grants[0];
        assert_eq!((grant.fence.session, grant.fence.worker, grant.fence.epoch), (first, worker, 1));
        assert_eq!((grant.run.seq, grant.run.attempt), (1, 1));
        lab.granted().await;
        let next = parcel(&mut *parcels).await;
        assert_eq!((next.from, next.sent), (sent.from, 2));
        let beyond = lab.runnable().await;
        assert_eq!(lab.owner(beyond).await, None, "there was room for two");
        drop(parcels);
        lab.end().await;
    }
}

#[tokio::test]
async fn an_owner_is_told_of_what_it_does_not_have() {
    let server = NatsServer::start(&nats_binaries()[0]).unwrap();
    let lab = lab(&server).await;
    let worker = lab.worker(NEVER).await;
    lab.offer(worker, 1).await;
    // Nobody listens to what is sent.
    let session = lab.granted().await;
    let transport = Arc::clone(&lab.transport) as Arc<dyn Transport>;
    let mut task = FindUnheld {
        store: Arc::clone(&lab.store),
        transport,
        pace: NEVER,
        granted_ago: Duration::ZERO,
        after: None,
    };
    assert_eq!(task.round().await.unwrap(), Round::of([("told", 0)]), "it has not said what it has");
    let mut signals = lab.transport.subscribe_signals(worker).await.unwrap();
    lab.store.renew_lease(&Heartbeat { worker, lease: NEVER, running: Vec::new() }).await.unwrap();
    assert_eq!(task.round().await.unwrap(), Round::of([("told", 1)]));
    let told = timeout(PATIENCE, signals.next()).await.unwrap().unwrap();
    assert_eq!(told, Signal::Yours { tenant: lab.tenant, session });
    // So it asks for it, and has it.
    let grant = lab.claim(session, worker).await;
    assert_eq!((grant.fence.epoch, grant.run.attempt), (2, 1));
    let running = vec![grant.run.id];
    lab.store.renew_lease(&Heartbeat { worker, lease: NEVER, running }).await.unwrap();
    assert_eq!(task.round().await.unwrap(), Round::of([("told", 0)]));
    drop((signals, task));
    lab.end().await;
}
