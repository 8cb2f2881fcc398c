//! Events delivered to real receivers.

use std::collections::{BTreeMap, HashSet};

use remuda_testkit::{free_port, nats_binaries, wait_for};
use serde_json::Value;

use crate::{
    api::{history, noop, submit},
    cluster::Services,
    harness::{Cli, Dev, PATIENCE},
    receiver::{Receiver, Reply},
};

const OK: Reply = Reply::Status("200 OK");
const BROKEN: Reply = Reply::Status("500 Internal Server Error");

/// A server that may deliver to these receivers, and does not wait for long.
struct Hooks {
    dev: Dev,
    settings: Vec<String>,
}

impl Hooks {
    async fn start(places: &[String], more: &[&str]) -> Self {
        let mut settings = vec![
            format!("webhooks.allowed={}", places.join(",")),
            "webhooks.retry_delay=20ms".to_owned(),
            "reconciler.interval=200ms".to_owned(),
        ];
        settings.extend(more.iter().map(|&setting| setting.to_owned()));
        let dev = Dev::start_with(&flags(&settings)).await;
        Self { dev, settings }
    }

    /// Ends this life with SIGKILL and begins the next, with one setting changed.
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

    /// Makes a session and a webhook for it.
    async fn webhook(&self, session: &str, receiver: &str, more: &[&str]) -> Value {
        self.cli().run(&["sessions", "create", session]).await;
        let create = ["webhooks", "create", receiver, "--session", session];
        self.cli().one(&[&create[..], more].concat()).await
    }

    async fn show(&self, webhook: &Value) -> Value {
        self.cli().one(&["webhooks", "show", id(webhook)]).await
    }

    async fn until(&self, what: &str, webhook: &Value, is_so: impl Fn(&Value) -> bool) -> Value {
        wait_for(what, PATIENCE, || async { Some(self.show(webhook).await).filter(|it| is_so(it)) }).await
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

/// A small run tells of itself with so many events.
const PER_RUN: usize = 5;
const RUN: [&str; PER_RUN] = ["run.queued", "run.started", "tool.started", "tool.completed", "run.completed"];

#[tokio::test]
async fn events_are_delivered_in_order_and_signed() {
    let receiver = Receiver::start(OK).await;
    let hooks = Hooks::start(&[receiver.place()], &[]).await;
    let webhook = hooks.webhook("s1", &receiver.url(), &[]).await;
    let secret = webhook["secret"].as_str().unwrap();
    for _ in 0..3 {
        hooks.run("s1").await;
    }
    let got = receiver.got(3 * PER_RUN).await;
    let told = history(&hooks.dev.client(), "s1").await;
    let cursors: Vec<i64> = got.iter().filter_map(|it| it.json()["cursor"].as_i64()).collect();
    let expected: Vec<i64> = told.iter().map(|event| event.cursor).skip(1).collect();
    assert_eq!(cursors, expected, "everything after session.created, once and in order");
    for (delivery, event) in got.iter().zip(&told[1..]) {
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
    assert_eq!(receiver.most_at_once(), 1);
    let after = hooks.until("the last cursor", &webhook, |it| it["cursor"] == told.len()).await;
    assert_eq!((&after["state"], &after["attempts"]), (&"active".into(), &0.into()));
    // The secret was shown once, and is nowhere else.
    let listed = hooks.cli().run(&["webhooks", "list", "--session", "s1", "--json"]).await.stdout;
    assert!(listed.contains(id(&webhook)) && !listed.contains("secret"), "{listed}");
    assert!(after.get("secret").is_none());
    let log = hooks.dev.server.process.stderr();
    assert!(!log.contains(secret.strip_prefix("whsec_").unwrap()), "{log}");
}

#[tokio::test]
async fn a_webhook_of_a_run_tells_of_it_from_beginning_to_end() {
    let receiver = Receiver::start(OK).await;
    let hooks = Hooks::start(&[receiver.place()], &[]).await;
    hooks.run("s1").await;
    let run = hooks.run("s1").await;
    hooks.run("s1").await;
    let create = ["webhooks", "create", &receiver.url(), "--run", &run];
    let whole = hooks.cli().one(&create).await;
    hooks.until("the end", &whole, |it| it["state"] == "ended").await;
    assert_eq!(receiver.kinds(), RUN);
    assert!(receiver.deliveries().iter().all(|it| it.json()["run_id"] == run.as_str()));
    // A filter, and an end that it does not let through.
    let some = hooks.cli().one(&[&create[..], &["--type", "tool.*", "--type", "run.queued"]].concat()).await;
    hooks.until("the end", &some, |it| it["state"] == "ended").await;
    assert_eq!(receiver.kinds()[PER_RUN..], ["run.queued", "tool.started", "tool.completed"]);
    // The same event goes to another webhook under another id.
    let deliveries = receiver.deliveries();
    assert_eq!(deliveries[0].json(), deliveries[PER_RUN].json());
    assert_ne!(deliveries[0].header("webhook-id"), deliveries[PER_RUN].header("webhook-id"));
    // One that is over is disturbed by nothing.
    hooks.run("s1").await;
    assert_eq!(hooks.show(&whole).await["state"], "ended");
    assert_eq!(receiver.deliveries().len(), PER_RUN + 3);
}

#[tokio::test]
async fn a_receiver_that_is_away_gets_everything_when_it_is_back() {
    let port = free_port().unwrap();
    let place = format!("127.0.0.1:{port}");
    let hooks = Hooks::start(std::slice::from_ref(&place), &["webhooks.max_attempts=100"]).await;
    let webhook = hooks.webhook("s1", &format!("http://{place}/hook"), &[]).await;
    hooks.run("s1").await;
    let failing = hooks.until("failures", &webhook, |it| it["attempts"].as_u64() >= Some(3)).await;
    assert!(failing["last_failure"]["message"].as_str().unwrap().contains("cannot reach"), "{failing}");
    assert!(failing["next_attempt_at"].is_string() && failing.get("delivered_at").is_none());
    // A long pause is still a pause after a restart.
    let hooks = hooks.restart("webhooks.retry_delay=1s").await;
    let kept = hooks.show(&webhook).await;
    assert!(kept["attempts"].as_u64() >= failing["attempts"].as_u64(), "{kept}");
    assert_eq!(kept["cursor"], webhook["cursor"]);
    let receiver = Receiver::start_on(port, OK).await;
    receiver.got(PER_RUN).await;
    assert_eq!(receiver.kinds(), RUN);
    let after = hooks.until("success", &webhook, |it| it["attempts"] == 0).await;
    assert!(after.get("last_failure").is_none() && after["delivered_at"].is_string(), "{after}");
    let secret = webhook["secret"].as_str().unwrap();
    assert!(receiver.deliveries().iter().all(|it| it.is_signed_with(secret)));
}

#[tokio::test]
async fn what_is_given_up_can_be_delivered_again() {
    let receiver = Receiver::start(BROKEN).await;
    let hooks = Hooks::start(&[receiver.place()], &["webhooks.max_attempts=2"]).await;
    let webhook = hooks.webhook("s1", &receiver.url(), &["--type", "run.*"]).await;
    hooks.run("s1").await;
    hooks.until("dead letters", &webhook, |it| it["dead_letters"] == 3).await;
    let letters = hooks.cli().json(&["webhooks", "dead-letters", id(&webhook)]).await;
    let kinds: Vec<&Value> = letters.iter().map(|letter| &letter["event_type"]).collect();
    assert_eq!(kinds, ["run.completed", "run.started", "run.queued"], "newest first");
    assert_eq!((&letters[0]["attempts"], &letters[0]["failure"]["status"]), (&2.into(), &500.into()));
    let tried = receiver.deliveries();
    assert_eq!(tried.len(), 6, "{:?}", receiver.kinds());
    let missing = remuda_domain::DeliveryId::new().to_string();
    let refused = hooks.cli().run(&["webhooks", "redeliver", id(&webhook), &missing, "--json"]).await;
    assert_eq!((refused.code, refused.error().0.as_str()), (4, "dead_letter_not_found"));
    // In vain at first.
    let one = ["webhooks", "redeliver", id(&webhook), id(&letters[1])];
    assert_eq!(hooks.cli().one(&one).await["count"], 1);
    receiver.got(8).await;
    wait_for("the letter to be dead again", PATIENCE, || async {
        let letters = hooks.cli().json(&["webhooks", "dead-letters", id(&webhook)]).await;
        letters.iter().all(|letter| letter.get("next_attempt_at").is_none() && letter["attempts"] == 2)
    })
    .await;
    receiver.answer(OK);
    hooks.cli().one(&one).await;
    hooks.until("redelivery", &webhook, |it| it["dead_letters"] == 2).await;
    assert_eq!(hooks.cli().one(&["webhooks", "redeliver", id(&webhook), "--all"]).await["count"], 2);
    hooks.until("redelivery", &webhook, |it| it["dead_letters"] == 0).await;
    assert_eq!(receiver.kinds()[8..], ["run.started", "run.queued", "run.completed"]);
    // The same event, the same id, however often it is tried.
    let mut ids: BTreeMap<String, HashSet<String>> = BTreeMap::new();
    for delivery in receiver.deliveries() {
        ids.entry(delivery.kind()).or_default().insert(delivery.header("webhook-id").to_owned());
    }
    assert!(ids.len() == 3 && ids.values().all(|ids| ids.len() == 1), "{ids:?}");
    assert!(ids["run.started"].contains(id(&letters[1])));
}

#[tokio::test]
async fn private_places_are_refused_when_made_and_when_delivered() {
    let receiver = Receiver::start(OK).await;
    let hooks = Hooks::start(&[receiver.place()], &["webhooks.max_attempts=2"]).await;
    hooks.cli().one(&["sessions", "create", "s1"]).await;
    for url in [
        "http://127.0.0.1:1/",
        "https://[::1]/",
        "http://169.254.169.254/latest/meta-data",
        "http://localhost:1",
    ] {
        let refused = hooks.cli().run(&["webhooks", "create", url, "--session", "s1", "--json"]).await;
        assert_eq!(
            (refused.code, refused.error()),
            (5, ("address_not_allowed".into(), "url".into())),
            "{url}"
        );
    }
    for url in ["", "x", "file:///etc/passwd", "http://me@127.0.0.1/"] {
        let refused = hooks.cli().run(&["webhooks", "create", url, "--session", "s1", "--json"]).await;
        assert_eq!(refused.code, 2, "{url}: {}", refused.stderr);
    }
    // What was allowed yesterday is not today.
    let webhook = hooks.webhook("s1", &receiver.url(), &["--type", "run.queued"]).await;
    let hooks = hooks.restart("webhooks.allowed=10.0.0.0/8").await;
    hooks.run("s1").await;
    let dead = hooks.until("a dead letter", &webhook, |it| it["dead_letters"] == 1).await;
    assert!(dead["last_failure"]["message"].as_str().unwrap().contains("not allowed here"), "{dead}");
    assert!(receiver.deliveries().is_empty());
}

#[tokio::test]
async fn a_receiver_that_is_gone_for_good_is_left_alone() {
    let receiver = Receiver::start(Reply::Status("410 Gone")).await;
    let hooks = Hooks::start(&[receiver.place()], &[]).await;
    let webhook = hooks.webhook("s1", &receiver.url(), &[]).await;
    hooks.run("s1").await;
    let disabled = hooks.until("the end of it", &webhook, |it| it["state"] == "disabled").await;
    assert_eq!((&disabled["last_failure"]["status"], &disabled["cursor"]), (&410.into(), &webhook["cursor"]));
    hooks.run("s1").await;
    assert_eq!(receiver.deliveries().len(), 1);
    let refused = hooks.cli().run(&["webhooks", "redeliver", id(&webhook), "--all", "--json"]).await;
    assert_eq!((refused.code, refused.error().0.as_str()), (8, "webhook_disabled"));
    // It was a mistake: nothing is lost.
    receiver.answer(OK);
    assert_eq!(hooks.cli().one(&["webhooks", "enable", id(&webhook)]).await["state"], "active");
    receiver.got(1 + 2 * PER_RUN).await;
    assert_eq!(receiver.kinds()[1..], [RUN, RUN].concat());
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let elsewhere = Receiver::start(OK).await;
    let answer: &'static str = format!("302 Found\r\nlocation: {}", elsewhere.url()).leak();
    let receiver = Receiver::start(Reply::Status(answer)).await;
    let hooks = Hooks::start(&[receiver.place(), elsewhere.place()], &["webhooks.max_attempts=2"]).await;
    let webhook = hooks.webhook("s1", &receiver.url(), &["--type", "run.queued"]).await;
    hooks.run("s1").await;
    let dead = hooks.until("a dead letter", &webhook, |it| it["dead_letters"] == 1).await;
    assert_eq!(dead["last_failure"]["status"], 302);
    assert_eq!((receiver.deliveries().len(), elsewhere.deliveries().len()), (2, 0));
}

#[tokio::test]
async fn a_slow_receiver_holds_up_nobody() {
    let (slow, quick) = (Receiver::start(Reply::Silence).await, Receiver::start(OK).await);
    let places = [slow.place(), quick.place()];
    // Longer than the test waits: only a receiver of its own can be quick.
    let hooks = Hooks::start(&places, &["webhooks.timeout=60s"]).await;
    hooks.webhook("s1", &slow.url(), &[]).await;
    hooks.webhook("s1", &quick.url(), &[]).await;
    hooks.webhook("s2", &quick.url(), &[]).await;
    for session in ["s1", "s2", "s1", "s2"] {
        hooks.run(session).await;
    }
    quick.got(4 * PER_RUN).await;
    slow.got(1).await;
    assert_eq!(
        (slow.deliveries().len(), slow.most_at_once()),
        (1, 1),
        "one at a time, and the first still lasts"
    );
}

#[tokio::test]
async fn a_silent_receiver_is_given_up_in_time() {
    let receiver = Receiver::start(Reply::Silence).await;
    let hooks =
        Hooks::start(&[receiver.place()], &["webhooks.timeout=100ms", "webhooks.max_attempts=2"]).await;
    let webhook = hooks.webhook("s1", &receiver.url(), &["--type", "run.queued"]).await;
    hooks.run("s1").await;
    let dead = hooks.until("a dead letter", &webhook, |it| it["dead_letters"] == 1).await;
    assert!(dead["last_failure"]["message"].as_str().unwrap().contains("no answer within"), "{dead}");
    let tested = hooks.cli().run(&["webhooks", "test", id(&webhook), "--json"]).await;
    assert_eq!((tested.code, &tested.documents()[0]["accepted"]), (1, &false.into()));
}

#[tokio::test]
async fn webhooks_can_be_tested_rotated_and_deleted() {
    let receiver = Receiver::start(OK).await;
    let hooks = Hooks::start(&[receiver.place()], &[]).await;
    let webhook = hooks.webhook("s1", &receiver.url(), &["--type", "run.queued"]).await;
    let first = webhook["secret"].as_str().unwrap();
    let tested = hooks.cli().one(&["webhooks", "test", id(&webhook)]).await;
    assert_eq!((&tested["accepted"], &tested["status"]), (&true.into(), &200.into()));
    let test = receiver.deliveries().remove(0);
    assert_eq!(
        (test.kind().as_str(), test.header("webhook-id")),
        ("webhook.test", tested["delivery_id"].as_str().unwrap())
    );
    assert!(test.is_signed_with(first));
    let rotated = hooks.cli().one(&["webhooks", "rotate", id(&webhook)]).await;
    let second = rotated["secret"].as_str().unwrap();
    assert!(first != second && rotated["previous_secret_until"].is_string());
    hooks.run("s1").await;
    let delivery = receiver.got(2).await.remove(1);
    assert!(delivery.is_signed_with(first) && delivery.is_signed_with(second));
    assert_eq!(hooks.cli().run(&["webhooks", "delete", id(&webhook)]).await.code, 0);
    for command in [&["webhooks", "show", id(&webhook)][..], &["webhooks", "test", id(&webhook)]] {
        let gone = hooks.cli().run(&[command, &["--json"]].concat()).await;
        assert_eq!((gone.code, gone.error().0.as_str()), (4, "webhook_not_found"));
    }
    for _ in 0..16 {
        hooks.webhook("s1", &receiver.url(), &["--type", "run.failed"]).await;
    }
    let create = ["webhooks", "create", &receiver.url(), "--session", "s1", "--json"];
    let full = hooks.cli().run(&create).await;
    assert_eq!((full.code, full.error().0.as_str()), (8, "webhook_limit"));
    let wrong = hooks.cli().run(&[&create[..], &["--type", "nonsense"]].concat()).await;
    assert_eq!((wrong.code, wrong.error()), (2, ("invalid_argument".into(), "types[0]".into())));
    assert_eq!(hooks.cli().json(&["webhooks", "list", "--all"]).await.len(), 16);
}

#[tokio::test]
async fn one_of_two_control_planes_delivers_and_the_other_takes_over() {
    let receiver = Receiver::start(OK).await;
    let services = Services::start(&nats_binaries()[0]);
    services.migrate().await;
    let (_, key) = services.create_key("acme", &["write"]).await;
    let allowed = [("REMUDA_WEBHOOKS__ALLOWED", &*receiver.place())];
    // The first one leads.
    let mut leader = services.control_plane(&allowed).await;
    wait_for("a leader", PATIENCE, || {
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
    receiver.got(10 * PER_RUN).await;
    leader.process.kill();
    for _ in 0..10 {
        submit(&client, "s1", vec![noop(0)]).await;
    }
    let got = receiver.got(20 * PER_RUN).await;
    let mut cursors: Vec<i64> = got.iter().filter_map(|it| it.json()["cursor"].as_i64()).collect();
    assert_eq!(receiver.most_at_once(), 1);
    // The last delivery before the crash may have come twice.
    cursors.dedup();
    let expected: Vec<i64> = history(&client, "s1").await.iter().map(|event| event.cursor).skip(1).collect();
    assert_eq!(cursors, expected);
}
