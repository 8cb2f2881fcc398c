//! Delivering to webhooks: when, and by whom.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use remuda_domain::{
    SessionId,
    identity::{Principal, Scope},
    webhook::{Webhook, WebhookState},
};
use remuda_egress::Allowed;
use remuda_testkit::wait_for;
use remuda_transport::Transport as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::lab::{Lab, NEVER, PATIENCE};
use crate::{
    WebhookOptions,
    app::{App, WebhookSpec},
};

const SOON: Duration = Duration::from_millis(50);

/// Counts deliveries by their ids, and answers with the statuses it is given, then with 200.
#[derive(Clone)]
struct Receiver {
    address: SocketAddr,
    ids: Arc<Mutex<Vec<String>>>,
    statuses: Arc<Mutex<VecDeque<u16>>>,
}

impl Receiver {
    async fn start(lab: &Lab, statuses: &[u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let statuses = Arc::new(Mutex::new(statuses.iter().copied().collect()));
        let receiver = Self { address, ids: Arc::default(), statuses };
        let (serving, tasks, stop) = (receiver.clone(), lab.tasks.clone(), lab.stop.clone());
        lab.tasks.spawn(lab.stop.clone().run_until_cancelled_owned(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let serving = serving.clone();
                let talk = async move { drop(serving.talk(stream).await) };
                tasks.spawn(stop.clone().run_until_cancelled_owned(talk));
            }
        }));
        receiver
    }

    async fn talk(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut read = Vec::new();
        loop {
            let head = loop {
                if let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
                    break String::from_utf8_lossy(&read[..end]).to_lowercase();
                }
                if stream.read_buf(&mut read).await? == 0 {
                    return Ok(());
                }
            };
            let value =
                |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            let whole = head.len() + 4 + value("content-length: ").parse::<usize>().unwrap();
            while read.len() < whole {
                stream.read_buf(&mut read).await?;
            }
            read.drain(..whole);
            self.ids.lock().unwrap().push(value("webhook-id: ").to_owned());
            let status = self.statuses.lock().unwrap().pop_front().unwrap_or(200);
            stream.write_all(format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n").as_bytes()).await?;
        }
    }

    fn options(&self) -> WebhookOptions {
        WebhookOptions {
            allowed: vec![Allowed::parse("allowed", &self.address.to_string()).unwrap()],
            retry_delay: Duration::from_millis(10),
            ..WebhookOptions::default()
        }
    }

    async fn got(&self, count: usize) -> Vec<String> {
        wait_for(&format!("{count} deliveries"), PATIENCE, || {
            let ids = self.ids.lock().unwrap().clone();
            std::future::ready((ids.len() >= count).then_some(ids))
        })
        .await
    }
}

impl Lab {
    fn caller(&self) -> Principal {
        Principal { tenant: self.tenant, subject: "lab".into(), scopes: vec![Scope::Write] }
    }

    async fn webhook(&self, app: &App, session: SessionId, receiver: &Receiver) -> Webhook {
        let url = format!("http://{}/", receiver.address);
        let spec = WebhookSpec { session: session.to_string(), run: None, url, types: Vec::new() };
        app.create_webhook(&self.caller(), spec).await.unwrap().webhook
    }

    /// Commits a run and tells of it live, as a control plane does.
    async fn submit_loudly(&self, session: SessionId) {
        let before = self.store.read_events(self.tenant, session, 0, 100).await.unwrap().last_cursor;
        self.submit(session).await;
        let events = self.store.read_events(self.tenant, session, before, 100).await.unwrap().events;
        self.transport.publish_events(self.tenant, session, &events.into()).await;
    }
}

#[tokio::test]
async fn events_are_heard_live_and_attempts_come_in_time() {
    let lab = Lab::new().await;
    let receiver = Receiver::start(&lab, &[503, 500]).await;
    let app = lab.delivering_app(receiver.options());
    // Nothing is looked through again: what happens, happens because it was heard, or because its time came.
    lab.start(&app, NEVER);
    let session = lab.session("default").await;
    let webhook = lab.webhook(&app, session, &receiver).await;
    lab.submit_loudly(session).await;
    let tried = receiver.got(3).await;
    assert!(tried.iter().all(|id| *id == tried[0]), "{tried:?}");
    for count in 4..=8 {
        lab.submit_loudly(session).await;
        receiver.got(count).await;
    }
    let done = || async {
        let found = lab.store.get_webhook(lab.tenant, webhook.id).await.unwrap();
        found.cursor == webhook.cursor + 6 && found.attempts == 0
    };
    wait_for("the last report", PATIENCE, done).await;
    drop(app);
    lab.end().await;
}

#[tokio::test]
async fn what_nobody_told_is_found() {
    let lab = Lab::new().await;
    let receiver = Receiver::start(&lab, &[]).await;
    let app = lab.delivering_app(receiver.options());
    lab.start(&app, SOON);
    let session = lab.session("default").await;
    // Made by another control plane, which does not deliver.
    let webhook = lab.webhook(&lab.delivering_app(receiver.options()), session, &receiver).await;
    lab.submit(session).await;
    lab.submit(session).await;
    receiver.got(2).await;
    lab.store.enable_webhook(lab.tenant, webhook.id, false).await.unwrap();
    lab.submit(session).await;
    let other = lab.webhook(&app, session, &receiver).await;
    lab.submit(session).await;
    receiver.got(3).await;
    let stays = lab.store.get_webhook(lab.tenant, webhook.id).await.unwrap();
    assert_eq!((stays.state, stays.cursor), (WebhookState::Disabled, webhook.cursor + 2));
    assert_eq!(other.cursor, webhook.cursor + 3);
    drop(app);
    lab.end().await;
}

#[tokio::test]
async fn whoever_leads_delivers_and_nobody_else() {
    let lab = Lab::new().await;
    let receiver = Receiver::start(&lab, &[]).await;
    let (first, second) = (lab.delivering_app(receiver.options()), lab.delivering_app(receiver.options()));
    let stop_first = lab.start(&first, SOON);
    lab.wait_for_task("wake_sessions", |_| true).await;
    lab.start(&second, SOON);
    let session = lab.session("default").await;
    lab.webhook(&second, session, &receiver).await;
    for _ in 0..20 {
        lab.submit_loudly(session).await;
    }
    receiver.got(20).await;
    // A leader that stops lets go of nothing half-done, and the next one goes on.
    stop_first.cancel();
    for _ in 0..20 {
        lab.submit_loudly(session).await;
    }
    let ids = receiver.got(40).await;
    let mut once = ids.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!((ids.len(), once.len()), (40, 40), "everything once");
    drop((first, second));
    lab.end().await;
}
