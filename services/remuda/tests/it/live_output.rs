//! Command output is streamed while the command runs, exactly once, in every view.

use std::fs;

use futures::StreamExt as _;
use remuda_domain::event::EventBody;
use remuda_proto::v1::{self, event::Body, stream_service_client::StreamServiceClient};
use remuda_testkit::wait_for;
use serde_json::Value;

use crate::harness::{Dev, Process, TIMEOUT};

/// A command that waits for the gate file between its first and its last output.
fn gated_command(gate: &str) -> String {
    format!("command=echo first; echo oops >&2; until test -e '{gate}'; do sleep 0.02; done; printf last")
}

async fn wait_for_output(process: &Process, what: &str, seen: impl Fn() -> bool) {
    wait_for(what, TIMEOUT, || std::future::ready(seen())).await;
    assert!(!process.stdout().contains("last"), "{}", process.stdout());
}

/// Joins the output chunks of one stream, and checks that there is no gap.
pub(crate) fn tool_output(documents: &[Value], stream: &str) -> String {
    let mut text = String::new();
    for line in documents.iter().filter(|line| line["type"] == "tool.output" && line["stream"] == stream) {
        assert_eq!(line["offset"], text.len(), "{line}");
        text.push_str(line["text"].as_str().unwrap());
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn followed_run_shows_command_output_live_and_once() {
    let dev = Dev::start().await;
    let gate = dev.path("gate");
    let command = gated_command(&gate);
    let arguments = ["run", "--session", "s1", "--tool", "Bash", "--arg", command.as_str(), "--follow"];
    let mut follower = dev.cli.start(&arguments);
    wait_for_output(&follower, "the first line", || {
        follower.stdout() == "first\n" && follower.stderr().contains("oops\n")
    })
    .await;
    let mut watcher = dev.cli.start(&["watch", "s1", "--deltas"]);
    wait_for("the watcher", TIMEOUT, || std::future::ready(watcher.stdout().contains("Bash"))).await;
    fs::write(&gate, "").unwrap();
    assert_eq!(follower.exit_code().await, 0, "{}", follower.stderr());
    assert_eq!(follower.stdout(), "first\nlast\n", "output was repeated or lost");
    assert_eq!(follower.stderr().matches("oops").count(), 1, "{}", follower.stderr());
    // A late follower gets the output that it missed with the result.
    wait_for("the result", TIMEOUT, || std::future::ready(watcher.stdout().contains("last"))).await;
    watcher.kill();
    for text in ["first", "oops", "last"] {
        assert_eq!(
            watcher.stdout().lines().filter(|line| line.trim() == text).count(),
            1,
            "{}",
            watcher.stdout()
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn json_follow_streams_command_output_without_gaps() {
    let dev = Dev::start().await;
    let gate = dev.path("gate");
    let command = gated_command(&gate);
    let mut live = dev.cli.start(&["run", "--tool", "Bash", "--arg", &command, "--follow", "--json"]);
    let documents = || live.documents();
    wait_for_output(&live, "the first line", || tool_output(&documents(), "stdout") == "first\n").await;
    fs::write(&gate, "").unwrap();
    assert_eq!(live.exit_code().await, 0, "{}", live.stderr());
    let lines = live.documents();
    assert_eq!(
        (tool_output(&lines, "stdout"), tool_output(&lines, "stderr")),
        ("first\nlast".into(), "oops\n".into())
    );
    let run = lines.last().unwrap();
    for line in lines.iter().filter(|line| line["type"] == "tool.output") {
        assert_eq!((&line["run_id"], &line["call_id"]), (&run["id"], &run["outcomes"][0]["id"]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn typed_subscription_returns_bodies_instead_of_json() {
    let dev = Dev::start().await;
    dev.cli.one(&["run", "--session", "s1", "--tool", "Bash", "--arg", "command=echo hi"]).await;
    let endpoint = dev.server.endpoint().to_owned();
    let mut service = StreamServiceClient::connect(endpoint).await.unwrap();
    let mut subscribe = async |typed: bool| -> Vec<v1::Event> {
        let target = Some(v1::subscribe_request::Target::Session("s1".into()));
        let request = v1::SubscribeRequest { target, typed, ..Default::default() };
        let events = service.subscribe(request).await.unwrap().into_inner();
        events.take(6).map(|response| response.unwrap().event.unwrap()).collect().await
    };
    let (plain, typed) = (subscribe(false).await, subscribe(true).await);
    let names = |events: &[v1::Event]| events.iter().map(|event| event.r#type.clone()).collect::<Vec<_>>();
    assert_eq!(names(&plain), names(&typed));
    assert!(names(&plain).iter().all(|name| EventBody::NAMES.contains(&name.as_str())));
    assert!(plain.iter().all(|event| event.body.is_none()));
    assert!(typed.iter().all(|event| event.data.is_empty() && event.body.is_some()), "{typed:?}");
    let queued = typed.iter().find_map(|event| match &event.body {
        Some(Body::RunQueued(queued)) => Some(queued.clone()),
        _ => None,
    });
    let expected = v1::RunQueued { seq: 1, kind: "tools".into(), pending: 1, ..Default::default() };
    assert_eq!(queued, Some(expected));
    let Some(Body::ToolCompleted(outcome)) = &typed[4].body else { panic!("{:?}", typed[4]) };
    assert!(outcome.output.contains("hi\\n"), "{outcome:?}");
}
