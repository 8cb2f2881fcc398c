//! Webhook delivery: when events are delivered, and by which control plane.

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
use remuda_egress::AllowRule;
use remuda_testkit::wait_for;
use remuda_transport::Transport as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::fixture::{Fixture, NEVER, PATIENCE};
use crate::{
    WebhookOptions,
    app::{App, WebhookSpec},
};

const SOON: Duration = Duration::from_millis(50);

/// Records delivery ids, and responds with the given statuses, then with 200.
#[derive(Clone)]
struct Receiver {
    address: SocketAddr,
    ids: Arc<Mutex<Vec<String>>>,
    statuses: Arc<Mutex<VecDeque<u16>>>,
}

impl Receiver {
    async fn start(fixture: &Fixture, statuses: &[u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let statuses = Arc::new(Mutex::new(statuses.iter().copied().collect()));
        let receiver = Self { address, ids: Arc::default(), statuses };
        let (serving, tasks, stop) = (receiver.clone(), fixture.tasks.clone(), fixture.stop.clone());
        fixture.tasks.spawn(fixture.stop.clone().run_until_cancelled_owned(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let serving = serving.clone();
                let connection = async move { drop(serving.serve(stream).await) };
                tasks.spawn(stop.clone().run_until_cancelled_owned(connection));
            }
        }));
        receiver
    }

    async fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
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
            allowed: vec![AllowRule::parse("allowed", &self.address.to_string()).unwrap()],
            retry_delay: Duration::from_millis(10),
            ..WebhookOptions::default()
        }
    }

    async fn wait_for_deliveries(&self, count: usize) -> Vec<String> {
        wait_for(&format!("{count} deliveries"), PATIENCE, || {
            let ids = self.ids.lock().unwrap().clone();
            std::future::ready((ids.len() >= count).then_some(ids))
        })
        .await
    }
}

impl Fixture {
    fn caller(&self) -> Principal {
        Principal { tenant: self.tenant, subject: "lab".into(), scopes: vec![Scope::Write] }
    }

    async fn webhook(&self, app: &App, session: SessionId, receiver: &Receiver) -> Webhook {
        let url = format!("http://{}/", receiver.address);
        let spec = WebhookSpec { session: session.to_string(), run: None, url, types: Vec::new() };
        app.create_webhook(&self.caller(), spec).await.unwrap().webhook
    }

    /// Commits a run and publishes its events, as a control plane does.
    async fn submit_and_publish(&self, session: SessionId) {
        let before = self.store.read_events(self.tenant, session, 0, 100).await.unwrap().last_cursor;
        self.submit(session).await;
        let events = self.store.read_events(self.tenant, session, before, 100).await.unwrap().events;
        self.transport.publish_events(self.tenant, session, &events.into()).await;
    }
}

#[tokio::test]
async fn live_events_are_delivered_and_failed_attempts_retried_on_time() {
    let fixture = Fixture::new().await;
    let receiver = Receiver::start(&fixture, &[503, 500]).await;
    let app = fixture.delivering_app(receiver.options());
    // The interval never elapses: deliveries come from live events or from retry delays.
    fixture.start(&app, NEVER);
    let session = fixture.session("default").await;
    let webhook = fixture.webhook(&app, session, &receiver).await;
    fixture.submit_and_publish(session).await;
    let tried = receiver.wait_for_deliveries(3).await;
    assert!(tried.iter().all(|id| *id == tried[0]), "{tried:?}");
    for count in 4..=8 {
        fixture.submit_and_publish(session).await;
        receiver.wait_for_deliveries(count).await;
    }
    let done = || async {
        let found = fixture.store.get_webhook(fixture.tenant, webhook.id).await.unwrap();
        found.cursor == webhook.cursor + 6 && found.attempts == 0
    };
    wait_for("the last outcome", PATIENCE, done).await;
    drop(app);
    fixture.shut_down().await;
}

#[tokio::test]
async fn scan_finds_events_that_were_not_published() {
    let fixture = Fixture::new().await;
    let receiver = Receiver::start(&fixture, &[]).await;
    let app = fixture.delivering_app(receiver.options());
    fixture.start(&app, SOON);
    let session = fixture.session("default").await;
    // Created by another control plane, which does not deliver.
    let webhook = fixture.webhook(&fixture.delivering_app(receiver.options()), session, &receiver).await;
    fixture.submit(session).await;
    fixture.submit(session).await;
    receiver.wait_for_deliveries(2).await;
    fixture.store.enable_webhook(fixture.tenant, webhook.id, false).await.unwrap();
    fixture.submit(session).await;
    let other = fixture.webhook(&app, session, &receiver).await;
    fixture.submit(session).await;
    receiver.wait_for_deliveries(3).await;
    let stays = fixture.store.get_webhook(fixture.tenant, webhook.id).await.unwrap();
    assert_eq!((stays.state, stays.cursor), (WebhookState::Disabled, webhook.cursor + 2));
    assert_eq!(other.cursor, webhook.cursor + 3);
    drop(app);
    fixture.shut_down().await;
}

#[tokio::test]
async fn only_the_leader_delivers() {
    let fixture = Fixture::new().await;
    let receiver = Receiver::start(&fixture, &[]).await;
    let (first, second) =
        (fixture.delivering_app(receiver.options()), fixture.delivering_app(receiver.options()));
    let stop_first = fixture.start(&first, SOON);
    fixture.wait_for_task("wake_sessions", |_| true).await;
    fixture.start(&second, SOON);
    let session = fixture.session("default").await;
    fixture.webhook(&second, session, &receiver).await;
    for _ in 0..20 {
        fixture.submit_and_publish(session).await;
    }
    receiver.wait_for_deliveries(20).await;
    // A leader that stops finishes its deliveries, and the next one continues.
    stop_first.cancel();
    for _ in 0..20 {
        fixture.submit_and_publish(session).await;
    }
    let ids = receiver.wait_for_deliveries(40).await;
    let mut once = ids.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!((ids.len(), once.len()), (40, 40), "every event once");
    drop((first, second));
    fixture.shut_down().await;
}
