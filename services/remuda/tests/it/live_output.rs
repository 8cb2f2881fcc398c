//! What commands print is seen while they run, in every view, once.

use std::fs;

use futures::StreamExt as _;
use remuda_domain::event::EventBody;
use remuda_proto::v1::{self, event::Body, stream_service_client::StreamServiceClient};
use remuda_testkit::wait_for;
use serde_json::Value;

use crate::harness::{Dev, PATIENCE, Process};

/// Waits at a gate between what it prints first and last.
fn gated(gate: &str) -> String {
    format!("command=echo first; echo oops >&2; until test -e '{gate}'; do sleep 0.02; done; printf last")
}

async fn shows(process: &Process, what: &str, seen: impl Fn() -> bool) {
    wait_for(what, PATIENCE, || std::future::ready(seen())).await;
    assert!(!process.stdout().contains("last"), "{}", process.stdout());
}

/// The texts of a stream, checked to be without a hole.
pub(crate) fn printed(documents: &[Value], stream: &str) -> String {
    let mut text = String::new();
    for line in documents.iter().filter(|line| line["type"] == "tool.output" && line["stream"] == stream) {
        assert_eq!(line["offset"], text.len(), "{line}");
        text.push_str(line["text"].as_str().unwrap());
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_followed_shows_what_its_command_prints() {
    let dev = Dev::start().await;
    let gate = dev.path("gate");
    let command = gated(&gate);
    let arguments = ["run", "--session", "s1", "--tool", "Bash", "--arg", command.as_str(), "--follow"];
    let mut person = dev.cli.start(&arguments);
    shows(&person, "the first line", || person.stdout() == "first\n" && person.stderr().contains("oops\n"))
        .await;
    let mut watcher = dev.cli.start(&["watch", "s1", "--deltas"]);
    wait_for("the watcher", PATIENCE, || std::future::ready(watcher.stdout().contains("Bash"))).await;
    fs::write(&gate, "").unwrap();
    assert_eq!(person.exit_code().await, 0, "{}", person.stderr());
    assert_eq!(person.stdout(), "first\nlast\n", "nothing comes twice");
    assert_eq!(person.stderr().matches("oops").count(), 1, "{}", person.stderr());
    // Whoever comes late is shown with the result what was missed.
    wait_for("the result", PATIENCE, || std::future::ready(watcher.stdout().contains("last"))).await;
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
async fn a_program_gets_it_as_lines_of_json() {
    let dev = Dev::start().await;
    let gate = dev.path("gate");
    let command = gated(&gate);
    let mut live = dev.cli.start(&["run", "--tool", "Bash", "--arg", &command, "--follow", "--json"]);
    let heard = || live.documents();
    shows(&live, "the first line", || printed(&heard(), "stdout") == "first\n").await;
    fs::write(&gate, "").unwrap();
    assert_eq!(live.exit_code().await, 0, "{}", live.stderr());
    let lines = live.documents();
    assert_eq!(
        (printed(&lines, "stdout"), printed(&lines, "stderr")),
        ("first\nlast".into(), "oops\n".into())
    );
    let run = lines.last().unwrap();
    for line in lines.iter().filter(|line| line["type"] == "tool.output") {
        assert_eq!((&line["run_id"], &line["call_id"]), (&run["id"], &run["outcomes"][0]["id"]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn typed_events_have_a_body_and_no_json() {
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
    let expected = v1::RunQueued { seq: 1, kind: "tools".into(), pending: 1 };
    assert_eq!(queued, Some(expected));
    let Some(Body::ToolCompleted(outcome)) = &typed[4].body else { panic!("{:?}", typed[4]) };
    assert!(outcome.output.contains("hi\\n"), "{outcome:?}");
}
