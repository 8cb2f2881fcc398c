//! A hostile client of NATS, with the administrator's credentials but without a key of the installation: it starts nothing, ends nothing, invents nothing, and
//! hides nothing from readers.

use std::time::Duration;

use async_nats::{Client as Nats, HeaderMap, Message, Subscriber};
use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _};
use remuda_client::{FollowItem, Target};
use remuda_domain::{EventId, MessageId, RunId, RunState, ToolCallId};
use remuda_proto::v1;
use remuda_testkit::{nats_binaries, wait_for};
use remuda_transport::{BusRole, GrantBatch};
use serde_json::{Value, json};
use sqlx::Connection as _;

use crate::{
    api::{bash, history, noop, state, submission, submit, wait_for_end},
    cluster::Cluster,
    harness::{TIMEOUT, temporary_directory},
};

/// What the server logs about a message that is not proven.
const REJECTED: &str = "message on the bus is not proven";

#[tokio::test]
async fn tool_on_the_worker_cannot_read_live_output_from_the_bus() {
    let cluster = Cluster::start(&nats_binaries()[0], 1).await;
    let refused = async_nats::connect(cluster.services.nats.url()).await;
    assert!(refused.is_err(), "NATS must not accept a client without credentials");
    // Not even with the credentials of the worker.
    let stolen = cluster.services.nats_client(BusRole::Worker).await;
    let mut seen = Vec::new();
    for subject in ["remuda.>", "remuda.events.>", "remuda.deltas.>", "_INBOX.>"] {
        seen.push(stolen.subscribe(subject).await.unwrap());
    }
    stolen.flush().await.unwrap();
    let client = cluster.client();
    let run = submit(&client, "s", vec![bash("echo secret")]).await;
    assert_eq!(state(&wait_for_end(&client, &run).await), RunState::Completed);
    // Everything that was delivered arrives before the response to a flush.
    stolen.flush().await.unwrap();
    for mut messages in seen {
        assert!(messages.next().now_or_never().flatten().is_none());
    }
}

/// A cluster with one worker, and a client of its NATS that sees everything.
struct Attacked {
    nats: Nats,
    messages: Subscriber,
    cluster: Cluster,
}

impl Attacked {
    async fn start() -> Self {
        let cluster = Cluster::start(&nats_binaries()[0], 1).await;
        let nats = cluster.services.nats_client(BusRole::Admin).await;
        let messages = nats.subscribe("remuda.>").await.unwrap();
        nats.flush().await.unwrap();
        Self { nats, messages, cluster }
    }

    /// The next message of a kind.
    async fn next(&mut self, kind: &str) -> Message {
        let prefix = format!("remuda.{kind}");
        let found = async {
            loop {
                let message = self.messages.next().await.unwrap();
                if message.subject.starts_with(&prefix) {
                    return message;
                }
            }
        };
        tokio::time::timeout(TIMEOUT, found).await.unwrap_or_else(|_| panic!("no message of {kind}"))
    }

    async fn publish(&self, subject: &str, headers: Option<HeaderMap>, payload: impl Into<Bytes>) {
        let (subject, payload) = (subject.to_owned(), payload.into());
        match headers {
            Some(headers) => self.nats.publish_with_headers(subject, headers, payload).await.unwrap(),
            None => self.nats.publish(subject, payload).await.unwrap(),
        }
        self.nats.flush().await.unwrap();
    }

    /// Submits runs until one is granted directly, and returns the captured batch.
    async fn captured_grant(&mut self) -> (Message, GrantBatch) {
        let client = self.cluster.client();
        for number in 0.. {
            let run = submit(&client, &format!("captured-{number}"), vec![noop(0)]).await;
            assert_eq!(state(&wait_for_end(&client, &run).await), RunState::Completed);
            let captured = tokio::time::timeout(Duration::from_millis(300), self.next("grants.")).await;
            if let Ok(message) = captured {
                let batch = GrantBatch::decode(message.payload.clone()).unwrap();
                return (message, batch);
            }
        }
        unreachable!("the loop has no end")
    }

    /// The newest stamp of the worker's offers: a grant with it is fresh.
    async fn stamp(&mut self) -> u64 {
        let offer: Value = serde_json::from_slice(&self.next("offers").await.payload).unwrap();
        offer["stamp"].as_u64().unwrap()
    }

    /// Waits until runs in new sessions have ended: the worker has also received what was sent before.
    async fn runs_end_as_usual(&self, name: &str) {
        let client = self.cluster.client();
        for number in 0..5 {
            let run = submit(&client, &format!("{name}-{number}"), vec![noop(0)]).await;
            assert_eq!(state(&wait_for_end(&client, &run).await), RunState::Completed);
        }
    }
}

/// A captured grant, with a call that writes a file and in other ways not what the store granted.
fn altered_grant(batch: &GrantBatch, stamp: u64, file: &str, invent: bool) -> GrantBatch {
    let mut batch = GrantBatch { stamp, sent: batch.sent + 1, ..batch.clone() };
    let record = &mut batch.grants[0];
    let mut body: Value = serde_json::from_slice(record.body.as_ref().unwrap()).unwrap();
    body["workspace_root"] = json!("/");
    body["run"]["id"] = json!(RunId::new());
    body["run"]["input"] = json!({ "kind": "tools", "calls": [{
        "id": ToolCallId::new(), "tool": "Write", "arguments": { "file_path": file, "content": "forged" },
    }] });
    if invent {
        record.session = remuda_domain::SessionId::new();
        (body["run"]["session"], body["fence"]["session"]) = (json!(record.session), json!(record.session));
    }
    record.body = Some(serde_json::to_vec(&body).unwrap().into());
    batch
}

#[tokio::test(flavor = "multi_thread")]
async fn replayed_altered_and_invented_grants_are_not_executed() {
    let mut attacked = Attacked::start().await;
    let directory = temporary_directory();
    let file = directory.path().join("forged");
    let (message, batch) = attacked.captured_grant().await;
    let session = batch.grants[0].session.to_string();
    let before = history(&attacked.cluster.client(), &session).await.len();
    for invent in [false, true] {
        let stamp = attacked.stamp().await;
        let forged = altered_grant(&batch, stamp, file.to_str().unwrap(), invent);
        for headers in [None, message.headers.clone()] {
            attacked.publish(&message.subject, headers, forged.encode()).await;
        }
        // As version 0.1.0 sent it.
        let grants = forged.grants.iter().map(|grant| grant.body.as_deref().unwrap());
        let grants: Vec<Value> = grants.map(|body| serde_json::from_slice(body).unwrap()).collect();
        let json = json!({ "from": forged.from, "stamp": stamp, "sent": forged.sent, "grants": grants });
        attacked.publish(&message.subject, None, json.to_string()).await;
    }
    for _ in 0..3 {
        attacked.publish(&message.subject, message.headers.clone(), message.payload.clone()).await;
    }
    attacked.cluster.workers[0].process.wait_for_stderr(REJECTED).await;
    attacked.runs_end_as_usual("after").await;
    assert!(!file.try_exists().unwrap(), "a forged grant was executed");
    assert_eq!(
        history(&attacked.cluster.client(), &session).await.len(),
        before,
        "a grant was executed twice"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_end_does_not_answer_a_waiting_client() {
    let mut attacked = Attacked::start().await;
    let client = attacked.cluster.client();
    let waiting = async {
        let request = v1::SubmitRunRequest {
            wait: TIMEOUT.try_into().ok(),
            ..submission("waiting", vec![bash("sleep 2; echo real")])
        };
        client.submit(request).await.unwrap().run.unwrap()
    };
    let attack = async {
        // The run's events name it, whether it was granted or not.
        let run = loop {
            let events: Value = serde_json::from_slice(&attacked.next("events.").await.payload).unwrap();
            if let Some(run) = events.as_array().unwrap().iter().find_map(|event| event["run"].as_str()) {
                break run.to_owned();
            }
        };
        let found = attacked.cluster.client().wait_run(&run, Duration::ZERO).await.unwrap().run.unwrap();
        let Some(v1::run::Input::Tools(tools)) = found.input else { panic!("a tools run") };
        let call = tools.calls[0].id.clone();
        let now = chrono::Utc::now();
        let outcome = json!({ "id": call, "tool": "Bash", "status": "completed", "output": "forged", "duration_ms": 1 });
        let notice = json!([{ "run": run, "completed": {
            "started_at": now, "finished_at": now, "outcomes": [outcome],
        } }]);
        // Ends go to the control plane's own subject, which the store knows.
        let plane = awaited_by(&attacked, &run).await;
        for _ in 0..5 {
            attacked.publish(&format!("remuda.ends.{plane}"), None, notice.to_string()).await;
        }
        attacked.cluster.control_plane.process.wait_for_stderr(REJECTED).await;
        run
    };
    let (answered, run) = tokio::join!(waiting, attack);
    assert_eq!((answered.id.as_str(), state(&answered)), (run.as_str(), RunState::Completed));
    assert!(answered.outcomes[0].output.contains("real"), "{answered:?}");
    let stored = attacked.cluster.client().wait_run(&run, Duration::ZERO).await.unwrap().run.unwrap();
    assert_eq!(answered, stored);
}

/// The control plane whose client waits for the run.
async fn awaited_by(attacked: &Attacked, run: &str) -> String {
    let id: RunId = run.parse().unwrap();
    let url = attacked.cluster.services.database.url();
    let mut connection = sqlx::PgConnection::connect(&url).await.unwrap();
    let plane: uuid::Uuid = sqlx::query_scalar("SELECT awaited_by FROM runs WHERE id = $1")
        .bind(id.as_uuid())
        .fetch_one(&mut connection)
        .await
        .unwrap();
    remuda_domain::ControlPlaneId::from_uuid(plane).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_events_and_deltas_neither_reach_a_reader_nor_displace_real_ones() {
    let mut attacked = Attacked::start().await;
    let client = attacked.cluster.client();
    submit(&client, "read", vec![noop(0)]).await;
    let mut items = client.follow_with_deltas(Target::Session("read".to_owned()), 0);
    // The reader is live once it has the first events.
    let first = items.next().await.unwrap().unwrap();
    assert!(matches!(first, FollowItem::Event(_)));
    let run =
        submit(&client, "read", vec![bash("for i in 1 2 3 4; do echo real $i; sleep 0.3; done"), noop(0)])
            .await;
    let attack = async {
        loop {
            let message = attacked.next("events.").await;
            let mut events: Value = serde_json::from_slice(&message.payload).unwrap();
            for event in events.as_array_mut().unwrap() {
                event["cursor"] = json!(event["cursor"].as_i64().unwrap() + 1);
                event["id"] = json!(EventId::new());
                event["type"] = json!("run.failed");
                event["data"] = json!({ "failure": { "code": "internal", "message": "forged" } });
            }
            for headers in [None, message.headers.clone()] {
                attacked.publish(&message.subject, headers, events.to_string()).await;
            }
            // The real one again, too.
            attacked.publish(&message.subject, message.headers.clone(), message.payload.clone()).await;
            let deltas = message.subject.replace("remuda.events", "remuda.deltas");
            let forged = json!([{
                "run": run, "message": MessageId::new(), "kind": "text", "offset": 0, "text": "forged"
            }]);
            attacked.publish(&deltas, message.headers.clone(), forged.to_string()).await;
        }
    };
    let read = async {
        let (mut events, mut deltas) = (Vec::new(), Vec::new());
        loop {
            match items.next().await.unwrap().unwrap() {
                FollowItem::Event(event) => {
                    let ended = event.r#type == "run.completed" && event.run_id == run;
                    events.push(event);
                    if ended {
                        return (events, deltas);
                    }
                }
                FollowItem::Delta(delta) => deltas.push(format!("{delta:?}")),
            }
        }
    };
    let (events, deltas) = tokio::select! {
        read = read => read,
        () = attack => unreachable!("it has no end"),
    };
    assert!(deltas.iter().any(|delta| delta.contains("real")), "{deltas:?}");
    assert!(!deltas.iter().any(|delta| delta.contains("forged")), "{deltas:?}");
    let FollowItem::Event(first) = first else { unreachable!("checked above") };
    let received: Vec<v1::Event> = [vec![first], events].concat();
    assert_eq!(received, history(&client, "read").await, "the reader got exactly what is stored");
    attacked.cluster.stream.process.wait_for_stderr(REJECTED).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_signals_and_notices_change_nothing() {
    let mut attacked = Attacked::start().await;
    let client = attacked.cluster.client();
    let worker = attacked.cluster.workers[0].worker_id().await;
    let run = submit(&client, "signalled", vec![bash("sleep 2; echo done")]).await;
    let session = attacked.next("events.").await.subject.split('.').nth(3).unwrap().to_owned();
    let control = format!("remuda.control.{worker}");
    let cancel = json!({ "signal": "cancel", "session": session, "run": run });
    let drain = json!({ "signal": "drain" });
    let question = uuid::Uuid::now_v7();
    let change =
        json!({ "filter": "off", "lasts": { "secs": 600, "nanos": 0 }, "only": "all", "by": "forged" });
    let notice = json!({ "notice": "change_log", "question": question, "from": "forged", "change": change });
    let started = || async {
        let found = attacked.cluster.client().wait_run(&run, Duration::ZERO).await.unwrap();
        found.run.unwrap().started_at.is_some()
    };
    wait_for("the run to start", TIMEOUT, started).await;
    for signal in [&cancel, &drain] {
        attacked.publish(&control, None, signal.to_string()).await;
    }
    attacked.publish("remuda.notices", None, notice.to_string()).await;
    attacked.cluster.workers[0].process.wait_for_stderr(REJECTED).await;
    assert_eq!(state(&wait_for_end(&client, &run).await), RunState::Completed, "a forged cancel was obeyed");
    attacked.runs_end_as_usual("undrained").await;
    for report in attacked.cluster.operator.json(&["log-filter"]).await {
        assert_ne!(report["filter"], "off", "{report}");
    }
    // The real signals work.
    let run = submit(&client, "cancelled", vec![bash("sleep 60")]).await;
    assert_eq!(attacked.cluster.cli.run(&["cancel", &run]).await.code, 0);
    assert_eq!(state(&wait_for_end(&client, &run).await), RunState::Cancelled);
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_tokens_and_offers_are_harmless() {
    let mut attacked = Attacked::start().await;
    let client = attacked.cluster.client();
    let run = submit(&client, "real", vec![noop(0)]).await;
    let subject = attacked.next("events.").await.subject.to_string();
    let ids: Vec<&str> = subject.split('.').skip(2).collect();
    wait_for_end(&client, &run).await;
    let before = history(&client, "real").await.len();
    let (tenant, session) = (ids[0], ids[1]);
    let strangers = [remuda_domain::TenantId::new().to_string(), remuda_domain::SessionId::new().to_string()];
    for token in [
        format!("{tenant}.{session}"),
        format!("{}.{session}", strangers[0]),
        format!("{tenant}.{}", strangers[1]),
        "x.y".to_owned(),
        format!("{tenant}.{session}.more"),
    ] {
        attacked.publish(&format!("remuda.ready.default.{token}"), None, Bytes::new()).await;
    }
    let offer: Value = serde_json::from_slice(&attacked.next("offers").await.payload).unwrap();
    for _ in 0..100 {
        let mut forged = offer.clone();
        forged["worker"] = json!(remuda_domain::WorkerId::new());
        forged["room"] = json!(1000);
        forged["stamp"] = json!(u64::MAX);
        attacked.publish("remuda.offers", None, forged.to_string()).await;
    }
    attacked.cluster.control_plane.process.wait_for_stderr(REJECTED).await;
    attacked.runs_end_as_usual("tokens").await;
    assert_eq!(history(&client, "real").await.len(), before);
    // No forged offer displaced the real worker: it is granted sessions still.
    attacked.captured_grant().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_that_do_not_sign_work_with_those_that_require_it() {
    let nats = &nats_binaries()[0];
    let mut cluster = Cluster::start(nats, 1).await;
    // As an earlier version: it neither signs nor checks.
    let old = cluster.services.control_plane(&[("REMUDA_NATS__SIGNING", "off")]).await;
    let cli = crate::harness::Cli::new(old.endpoint()).with_key(cluster.cli.key());
    let client = cli.client();
    let run_all = async |name: &str| {
        for number in 0..10 {
            let request = v1::SubmitRunRequest {
                wait: TIMEOUT.try_into().ok(),
                ..submission(&format!("{name}-{}", number % 3), vec![noop(0)])
            };
            let run = client.submit(request).await.unwrap().run.unwrap();
            assert_eq!(state(&run), RunState::Completed);
        }
        assert!(!history(&client, &format!("{name}-0")).await.is_empty());
        let run = submit(&client, name, vec![bash("sleep 60")]).await;
        assert_eq!(cli.run(&["cancel", &run]).await.code, 0);
        assert_eq!(state(&wait_for_end(&client, &run).await), RunState::Cancelled);
    };
    run_all("old-control-plane").await;
    cluster.workers.clear();
    let _old_worker = cluster.services.serve(&["worker"], &[("REMUDA_NATS__SIGNING", "off")]).await;
    run_all("old-worker").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_rotate_while_runs_execute() {
    let cluster = Cluster::start(&nats_binaries()[0], 1).await;
    let client = cluster.client();
    let keys = async || {
        let listed = cluster.services.run(&["bus", "keys", "--json"]).await;
        assert_eq!(listed.code, 0, "{}", listed.stderr);
        listed.documents().iter().map(|key| key["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let first = keys().await;
    assert_eq!(first.len(), 1);
    for (keep, accepted) in [("1h", 2), ("0s", 1)] {
        let rotated = cluster.services.run(&["bus", "rotate-key", "--keep", keep, "--json"]).await;
        assert_eq!(rotated.code, 0, "{}", rotated.stderr);
        let now = keys().await;
        assert_eq!(
            (now.len(), &now[0]),
            (accepted, &rotated.documents()[0]["id"].as_str().unwrap().to_owned())
        );
        for number in 0..10 {
            let request = v1::SubmitRunRequest {
                wait: TIMEOUT.try_into().ok(),
                ..submission(&format!("rotated-{}", number % 3), vec![noop(0)])
            };
            assert_eq!(state(&client.submit(request).await.unwrap().run.unwrap()), RunState::Completed);
        }
        // A process that starts now signs with the new key only.
        let stream = cluster.services.stream().await;
        assert!(stream.endpoint().starts_with("http"));
    }
}
