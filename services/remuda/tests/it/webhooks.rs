//! Webhooks that deliver events to real receivers.

use std::collections::{BTreeMap, HashSet};

use remuda_testkit::{free_port, nats_binaries, wait_for};
use serde_json::Value;

use crate::{
    api::{history, noop, submit},
    cluster::Services,
    harness::{Cli, Dev, TIMEOUT},
    webhook_receiver::{Reply, WebhookReceiver},
};

const OK: Reply = Reply::Status("200 OK");
const BROKEN: Reply = Reply::Status("500 Internal Server Error");

/// A server that may deliver to the given addresses, with short retry delays.
struct WebhookFixture {
    dev: Dev,
    settings: Vec<String>,
}

impl WebhookFixture {
    async fn start(addresses: &[String], more: &[&str]) -> Self {
        let mut settings = vec![
            format!("webhooks.allowed={}", addresses.join(",")),
            "webhooks.retry_delay=20ms".to_owned(),
            "reconciler.interval=200ms".to_owned(),
        ];
        settings.extend(more.iter().map(|&setting| setting.to_owned()));
        let dev = Dev::start_with(&flags(&settings)).await;
        Self { dev, settings }
    }

    /// Kills the server with SIGKILL and starts it again with one setting changed.
    async fn restart(self, changed: &str) -> Self {
        let Self { mut dev, mut settings } = self;
        dev.server.process.kill();
        let Dev { server, directory, .. } = dev;
        drop(server);
        settings.push(changed.to_owned());
        let dev = Dev::start_in(directory, &flags(&settings)).await;
        Self { dev, settings }
    }

    fn cli(&self) -> &Cli {
        &self.dev.cli
    }

    /// Creates a session and a webhook for it.
    async fn webhook(&self, session: &str, receiver: &str, more: &[&str]) -> Value {
        self.cli().run(&["sessions", "create", session]).await;
        let create = ["webhooks", "create", receiver, "--session", session];
        self.cli().one(&[&create[..], more].concat()).await
    }

    async fn show(&self, webhook: &Value) -> Value {
        self.cli().one(&["webhooks", "show", id(webhook)]).await
    }

    async fn wait_until(&self, what: &str, webhook: &Value, condition: impl Fn(&Value) -> bool) -> Value {
        wait_for(what, TIMEOUT, || async { Some(self.show(webhook).await).filter(|it| condition(it)) }).await
    }

    async fn run(&self, session: &str) -> String {
        let run = self.cli().one(&["run", "--session", session, "--tool", "noop"]).await;
        id(&run).to_owned()
    }
}

fn flags(settings: &[String]) -> Vec<&str> {
    settings.iter().flat_map(|setting| ["--set", setting]).collect()
}

fn id(document: &Value) -> &str {
    document["id"].as_str().unwrap()
}

/// The number of events of a run with one call.
const PER_RUN: usize = 5;
const RUN: [&str; PER_RUN] = ["run.queued", "run.started", "tool.started", "tool.completed", "run.completed"];

#[tokio::test]
async fn webhook_events_are_delivered_in_order_and_signed() {
    let receiver = WebhookReceiver::start(OK).await;
    let fixture = WebhookFixture::start(&[receiver.address()], &[]).await;
    let webhook = fixture.webhook("s1", &receiver.url(), &[]).await;
    let secret = webhook["secret"].as_str().unwrap();
    for _ in 0..3 {
        fixture.run("s1").await;
    }
    let got = receiver.wait_for_deliveries(3 * PER_RUN).await;
    let events = history(&fixture.dev.client(), "s1").await;
    let cursors: Vec<i64> = got.iter().filter_map(|it| it.json()["cursor"].as_i64()).collect();
    let expected: Vec<i64> = events.iter().map(|event| event.cursor).skip(1).collect();
    assert_eq!(cursors, expected, "everything after session.created, once and in order");
    for (delivery, event) in got.iter().zip(&events[1..]) {
        assert!(delivery.is_signed_with(secret), "{delivery:?}");
        assert_eq!(delivery.header("content-type"), "application/json");
        let json = delivery.json();
        assert_eq!((&json["id"], &json["type"]), (&event.id.as_str().into(), &event.r#type.as_str().into()));
        assert_eq!(json["session_id"], event.session_id.as_str());
        assert_eq!(json["run_id"], event.run_id.as_str());
        assert!(json["at"].is_string(), "{json}");
        let age =
            chrono::Utc::now().timestamp() - delivery.header("webhook-timestamp").parse::<i64>().unwrap();
        assert!((0..120).contains(&age), "{age}");
    }
    let ids: HashSet<&str> = got.iter().map(|it| it.header("webhook-id")).collect();
    assert_eq!(ids.len(), got.len());
    assert_eq!(receiver.max_concurrent(), 1);
    let after = fixture.wait_until("the last cursor", &webhook, |it| it["cursor"] == events.len()).await;
    assert_eq!((&after["state"], &after["attempts"]), (&"active".into(), &0.into()));
    // The secret is shown only on creation.
    let listed = fixture.cli().run(&["webhooks", "list", "--session", "s1", "--json"]).await.stdout;
    assert!(listed.contains(id(&webhook)) && !listed.contains("secret"), "{listed}");
    assert!(after.get("secret").is_none());
    let log = fixture.dev.server.process.stderr();
    assert!(!log.contains(secret.strip_prefix("whsec_").unwrap()), "{log}");
}

#[tokio::test]
async fn run_webhook_delivers_all_events_of_the_run_and_ends() {
    let receiver = WebhookReceiver::start(OK).await;
    let fixture = WebhookFixture::start(&[receiver.address()], &[]).await;
    fixture.run("s1").await;
    let run = fixture.run("s1").await;
    fixture.run("s1").await;
    let create = ["webhooks", "create", &receiver.url(), "--run", &run];
    let whole = fixture.cli().one(&create).await;
    fixture.wait_until("the end", &whole, |it| it["state"] == "ended").await;
    assert_eq!(receiver.kinds(), RUN);
    assert!(receiver.deliveries().iter().all(|it| it.json()["run_id"] == run.as_str()));
    // A filter that excludes the last event of the run.
    let some =
        fixture.cli().one(&[&create[..], &["--type", "tool.*", "--type", "run.queued"]].concat()).await;
    fixture.wait_until("the end", &some, |it| it["state"] == "ended").await;
    assert_eq!(receiver.kinds()[PER_RUN..], ["run.queued", "tool.started", "tool.completed"]);
    // Deliveries of one event to two webhooks have different ids.
    let deliveries = receiver.deliveries();
    assert_eq!(deliveries[0].json(), deliveries[PER_RUN].json());
    assert_ne!(deliveries[0].header("webhook-id"), deliveries[PER_RUN].header("webhook-id"));
    // An ended webhook delivers nothing more.
    fixture.run("s1").await;
    assert_eq!(fixture.show(&whole).await["state"], "ended");
    assert_eq!(receiver.deliveries().len(), PER_RUN + 3);
}

#[tokio::test]
async fn unreachable_receiver_gets_every_event_when_it_returns() {
    let port = free_port().unwrap();
    let address = format!("127.0.0.1:{port}");
    let fixture = WebhookFixture::start(std::slice::from_ref(&address), &["webhooks.max_attempts=100"]).await;
    let webhook = fixture.webhook("s1", &format!("http://{address}/hook"), &[]).await;
    fixture.run("s1").await;
    let failing = fixture.wait_until("failures", &webhook, |it| it["attempts"].as_u64() >= Some(3)).await;
    assert!(failing["last_failure"]["message"].as_str().unwrap().contains("cannot reach"), "{failing}");
    assert!(failing["next_attempt_at"].is_string() && failing.get("delivered_at").is_none());
    // The retry state survives a restart.
    let fixture = fixture.restart("webhooks.retry_delay=1s").await;
    let kept = fixture.show(&webhook).await;
    assert!(kept["attempts"].as_u64() >= failing["attempts"].as_u64(), "{kept}");
    assert_eq!(kept["cursor"], webhook["cursor"]);
    let receiver = WebhookReceiver::start_on(port, OK).await;
    receiver.wait_for_deliveries(PER_RUN).await;
    assert_eq!(receiver.kinds(), RUN);
    let after = fixture.wait_until("success", &webhook, |it| it["attempts"] == 0).await;
    assert!(after.get("last_failure").is_none() && after["delivered_at"].is_string(), "{after}");
    let secret = webhook["secret"].as_str().unwrap();
    assert!(receiver.deliveries().iter().all(|it| it.is_signed_with(secret)));
}

#[tokio::test]
async fn dead_letters_can_be_redelivered() {
    let receiver = WebhookReceiver::start(BROKEN).await;
    let fixture = WebhookFixture::start(&[receiver.address()], &["webhooks.max_attempts=2"]).await;
    let webhook = fixture.webhook("s1", &receiver.url(), &["--type", "run.*"]).await;
    fixture.run("s1").await;
    fixture.wait_until("dead letters", &webhook, |it| it["dead_letters"] == 3).await;
    let letters = fixture.cli().json(&["webhooks", "dead-letters", id(&webhook)]).await;
    let kinds: Vec<&Value> = letters.iter().map(|letter| &letter["event_type"]).collect();
    assert_eq!(kinds, ["run.completed", "run.started", "run.queued"], "newest first");
    assert_eq!((&letters[0]["attempts"], &letters[0]["failure"]["status"]), (&2.into(), &500.into()));
    let tried = receiver.deliveries();
    assert_eq!(tried.len(), 6, "{:?}", receiver.kinds());
    let missing = remuda_domain::DeliveryId::new().to_string();
    let refused = fixture.cli().run(&["webhooks", "redeliver", id(&webhook), &missing, "--json"]).await;
    assert_eq!((refused.code, refused.error().0.as_str()), (4, "dead_letter_not_found"));
    // The receiver still fails.
    let one = ["webhooks", "redeliver", id(&webhook), id(&letters[1])];
    assert_eq!(fixture.cli().one(&one).await["count"], 1);
    receiver.wait_for_deliveries(8).await;
    wait_for("the event to be a dead letter again", TIMEOUT, || async {
        let letters = fixture.cli().json(&["webhooks", "dead-letters", id(&webhook)]).await;
        letters.iter().all(|letter| letter.get("next_attempt_at").is_none() && letter["attempts"] == 2)
    })
    .await;
    receiver.set_reply(OK);
    fixture.cli().one(&one).await;
    fixture.wait_until("redelivery", &webhook, |it| it["dead_letters"] == 2).await;
    assert_eq!(fixture.cli().one(&["webhooks", "redeliver", id(&webhook), "--all"]).await["count"], 2);
    fixture.wait_until("redelivery", &webhook, |it| it["dead_letters"] == 0).await;
    assert_eq!(receiver.kinds()[8..], ["run.started", "run.queued", "run.completed"]);
    // Every attempt to deliver an event has the same id.
    let mut ids: BTreeMap<String, HashSet<String>> = BTreeMap::new();
    for delivery in receiver.deliveries() {
        ids.entry(delivery.kind()).or_default().insert(delivery.header("webhook-id").to_owned());
    }
    assert!(ids.len() == 3 && ids.values().all(|ids| ids.len() == 1), "{ids:?}");
    assert!(ids["run.started"].contains(id(&letters[1])));
}

#[tokio::test]
async fn private_addresses_are_refused_on_create_and_on_delivery() {
    let receiver = WebhookReceiver::start(OK).await;
    let fixture = WebhookFixture::start(&[receiver.address()], &["webhooks.max_attempts=2"]).await;
    fixture.cli().one(&["sessions", "create", "s1"]).await;
    for url in [
        "http://127.0.0.1:1/",
        "https://[::1]/",
        "http://169.254.169.254/latest/meta-data",
        "http://localhost:1",
    ] {
        let refused = fixture.cli().run(&["webhooks", "create", url, "--session", "s1", "--json"]).await;
        assert_eq!(
            (refused.code, refused.error()),
            (5, ("address_not_allowed".into(), "url".into())),
            "{url}"
        );
    }
    for url in ["", "x", "file:///etc/passwd", "http://me@127.0.0.1/"] {
        let refused = fixture.cli().run(&["webhooks", "create", url, "--session", "s1", "--json"]).await;
        assert_eq!(refused.code, 2, "{url}: {}", refused.stderr);
    }
    // The address is no longer allowed after the restart.
    let webhook = fixture.webhook("s1", &receiver.url(), &["--type", "run.queued"]).await;
    let fixture = fixture.restart("webhooks.allowed=10.0.0.0/8").await;
    fixture.run("s1").await;
    let dead = fixture.wait_until("a dead letter", &webhook, |it| it["dead_letters"] == 1).await;
    assert!(dead["last_failure"]["message"].as_str().unwrap().contains("not allowed here"), "{dead}");
    assert!(receiver.deliveries().is_empty());
}

#[tokio::test]
async fn webhook_is_disabled_after_410_gone_until_enabled() {
    let receiver = WebhookReceiver::start(Reply::Status("410 Gone")).await;
    let fixture = WebhookFixture::start(&[receiver.address()], &[]).await;
    let webhook = fixture.webhook("s1", &receiver.url(), &[]).await;
    fixture.run("s1").await;
    let disabled =
        fixture.wait_until("the webhook to be disabled", &webhook, |it| it["state"] == "disabled").await;
    assert_eq!((&disabled["last_failure"]["status"], &disabled["cursor"]), (&410.into(), &webhook["cursor"]));
    fixture.run("s1").await;
    assert_eq!(receiver.deliveries().len(), 1);
    let refused = fixture.cli().run(&["webhooks", "redeliver", id(&webhook), "--all", "--json"]).await;
    assert_eq!((refused.code, refused.error().0.as_str()), (8, "webhook_disabled"));
    // After it is enabled again, no event is missing.
    receiver.set_reply(OK);
    assert_eq!(fixture.cli().one(&["webhooks", "enable", id(&webhook)]).await["state"], "active");
    receiver.wait_for_deliveries(1 + 2 * PER_RUN).await;
    assert_eq!(receiver.kinds()[1..], [RUN, RUN].concat());
}

#[tokio::test]
async fn webhook_redirects_are_not_followed() {
    let elsewhere = WebhookReceiver::start(OK).await;
    let answer: &'static str = format!("302 Found\r\nlocation: {}", elsewhere.url()).leak();
    let receiver = WebhookReceiver::start(Reply::Status(answer)).await;
    let fixture =
        WebhookFixture::start(&[receiver.address(), elsewhere.address()], &["webhooks.max_attempts=2"]).await;
    let webhook = fixture.webhook("s1", &receiver.url(), &["--type", "run.queued"]).await;
    fixture.run("s1").await;
    let dead = fixture.wait_until("a dead letter", &webhook, |it| it["dead_letters"] == 1).await;
    assert_eq!(dead["last_failure"]["status"], 302);
    assert_eq!((receiver.deliveries().len(), elsewhere.deliveries().len()), (2, 0));
}

#[tokio::test]
async fn slow_receiver_does_not_delay_other_webhooks() {
    let (slow, quick) = (WebhookReceiver::start(Reply::Silence).await, WebhookReceiver::start(OK).await);
    let addresses = [slow.address(), quick.address()];
    // Longer than the test waits: the other webhook must not wait for this one.
    let fixture = WebhookFixture::start(&addresses, &["webhooks.timeout=60s"]).await;
    fixture.webhook("s1", &slow.url(), &[]).await;
    fixture.webhook("s1", &quick.url(), &[]).await;
    fixture.webhook("s2", &quick.url(), &[]).await;
    for session in ["s1", "s2", "s1", "s2"] {
        fixture.run(session).await;
    }
    quick.wait_for_deliveries(4 * PER_RUN).await;
    slow.wait_for_deliveries(1).await;
    assert_eq!(
        (slow.deliveries().len(), slow.max_concurrent()),
        (1, 1),
        "deliveries to one webhook must be sequential"
    );
}

#[tokio::test]
async fn silent_receiver_times_out_into_a_dead_letter() {
    let receiver = WebhookReceiver::start(Reply::Silence).await;
    let fixture =
        WebhookFixture::start(&[receiver.address()], &["webhooks.timeout=100ms", "webhooks.max_attempts=2"])
            .await;
    let webhook = fixture.webhook("s1", &receiver.url(), &["--type", "run.queued"]).await;
    fixture.run("s1").await;
    let dead = fixture.wait_until("a dead letter", &webhook, |it| it["dead_letters"] == 1).await;
    assert!(dead["last_failure"]["message"].as_str().unwrap().contains("no answer within"), "{dead}");
    let tested = fixture.cli().run(&["webhooks", "test", id(&webhook), "--json"]).await;
    assert_eq!((tested.code, &tested.documents()[0]["accepted"]), (1, &false.into()));
}

#[tokio::test]
async fn webhooks_can_be_tested_rotated_and_deleted() {
    let receiver = WebhookReceiver::start(OK).await;
    let fixture = WebhookFixture::start(&[receiver.address()], &[]).await;
    let webhook = fixture.webhook("s1", &receiver.url(), &["--type", "run.queued"]).await;
    let first = webhook["secret"].as_str().unwrap();
    let tested = fixture.cli().one(&["webhooks", "test", id(&webhook)]).await;
    assert_eq!((&tested["accepted"], &tested["status"]), (&true.into(), &200.into()));
    let test = receiver.deliveries().remove(0);
    assert_eq!(
        (test.kind().as_str(), test.header("webhook-id")),
        ("webhook.test", tested["delivery_id"].as_str().unwrap())
    );
    assert!(test.is_signed_with(first));
    let rotated = fixture.cli().one(&["webhooks", "rotate", id(&webhook)]).await;
    let second = rotated["secret"].as_str().unwrap();
    assert!(first != second && rotated["previous_secret_until"].is_string());
    fixture.run("s1").await;
    let delivery = receiver.wait_for_deliveries(2).await.remove(1);
    assert!(delivery.is_signed_with(first) && delivery.is_signed_with(second));
    assert_eq!(fixture.cli().run(&["webhooks", "delete", id(&webhook)]).await.code, 0);
    for command in [&["webhooks", "show", id(&webhook)][..], &["webhooks", "test", id(&webhook)]] {
        let gone = fixture.cli().run(&[command, &["--json"]].concat()).await;
        assert_eq!((gone.code, gone.error().0.as_str()), (4, "webhook_not_found"));
    }
    for _ in 0..16 {
        fixture.webhook("s1", &receiver.url(), &["--type", "run.failed"]).await;
    }
    let create = ["webhooks", "create", &receiver.url(), "--session", "s1", "--json"];
    let full = fixture.cli().run(&create).await;
    assert_eq!((full.code, full.error().0.as_str()), (8, "webhook_limit"));
    let wrong = fixture.cli().run(&[&create[..], &["--type", "nonsense"]].concat()).await;
    assert_eq!((wrong.code, wrong.error()), (2, ("invalid_argument".into(), "types[0]".into())));
    assert_eq!(fixture.cli().json(&["webhooks", "list", "--all"]).await.len(), 16);
}

#[tokio::test]
async fn second_control_plane_takes_over_webhook_delivery() {
    let receiver = WebhookReceiver::start(OK).await;
    let services = Services::start(&nats_binaries()[0]);
    services.migrate().await;
    let (_, key) = services.create_key("acme", &["write"]).await;
    let allowed = [("REMUDA_WEBHOOKS__ALLOWED", &*receiver.address())];
    // The first control plane becomes the leader.
    let mut leader = services.control_plane(&allowed).await;
    wait_for("a leader", TIMEOUT, || {
        std::future::ready(leader.process.stderr().contains("runs the background tasks"))
    })
    .await;
    let other = services.control_plane(&allowed).await;
    let _worker = services.worker().await;
    let cli = Cli::new(other.endpoint()).with_key(&key);
    let client = cli.client();
    cli.one(&["sessions", "create", "s1"]).await;
    cli.one(&["webhooks", "create", &receiver.url(), "--session", "s1"]).await;
    for _ in 0..10 {
        submit(&client, "s1", vec![noop(0)]).await;
    }
    receiver.wait_for_deliveries(10 * PER_RUN).await;
    leader.process.kill();
    for _ in 0..10 {
        submit(&client, "s1", vec![noop(0)]).await;
    }
    // The last delivery before the crash may be repeated, so the number of deliveries does not show that all events came.
    let all = || {
        let deliveries = receiver.deliveries();
        let mut cursors: Vec<i64> = deliveries.iter().filter_map(|it| it.json()["cursor"].as_i64()).collect();
        cursors.dedup();
        std::future::ready((cursors.len() >= 20 * PER_RUN).then_some(cursors))
    };
    let cursors = wait_for("every event", TIMEOUT, all).await;
    assert_eq!(receiver.max_concurrent(), 1);
    let expected: Vec<i64> = history(&client, "s1").await.iter().map(|event| event.cursor).skip(1).collect();
    assert_eq!(cursors, expected);
}
