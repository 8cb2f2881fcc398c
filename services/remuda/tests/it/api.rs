//! Request builders, and checks on the events of a session.

use std::collections::HashMap;

use futures::StreamExt as _;
use remuda_client::{Client, Target, terminal_state};
use remuda_domain::RunState;
use remuda_proto::v1;
use serde_json::{Value, json};

use crate::harness::TIMEOUT;

pub(crate) fn call(tool: &str, arguments: &Value) -> v1::ToolCall {
    v1::ToolCall { tool: tool.to_owned(), arguments: arguments.to_string(), ..Default::default() }
}

pub(crate) fn bash(command: &str) -> v1::ToolCall {
    call("Bash", &json!({ "command": command }))
}

pub(crate) fn noop(sleep_ms: u64) -> v1::ToolCall {
    call("noop", &json!({ "sleep_ms": sleep_ms }))
}

/// A submit request that creates the session if it does not exist.
pub(crate) fn submission(session: &str, calls: Vec<v1::ToolCall>) -> v1::SubmitRunRequest {
    let tools = v1::ToolsInput { calls, ..Default::default() };
    v1::SubmitRunRequest {
        session: session.to_owned(),
        create_session: true,
        input: Some(v1::submit_run_request::Input::Tools(tools)),
        ..Default::default()
    }
}

/// Submits a run and returns its id.
pub(crate) async fn submit(client: &Client, session: &str, calls: Vec<v1::ToolCall>) -> String {
    client.submit(submission(session, calls)).await.unwrap().run.unwrap().id
}

/// Waits for the end of a run. On timeout the test fails with the server's explanation of the run.
pub(crate) async fn wait_for_end(client: &Client, run: &str) -> v1::Run {
    match tokio::time::timeout(TIMEOUT, client.wait_until_finished(run)).await {
        Ok(ended) => ended.unwrap(),
        Err(_) => panic!(
            "the run does not end: {:?}",
            client.explain_run(v1::ExplainRunRequest { run_id: run.to_owned() }).await
        ),
    }
}

pub(crate) fn state(run: &v1::Run) -> RunState {
    remuda_proto::convert::run_state("state", run.state).unwrap()
}

pub(crate) async fn session(client: &Client, session: &str) -> v1::Session {
    let request = v1::GetSessionRequest { session: session.to_owned() };
    client.get_session(request).await.unwrap().session.unwrap()
}

/// Returns all events of a session. Fails unless their cursors are 1, 2, 3 and so on.
pub(crate) async fn history(client: &Client, name: &str) -> Vec<v1::Event> {
    let last = session(client, name).await.last_cursor;
    let count = usize::try_from(last).unwrap();
    let events: Vec<v1::Event> = client
        .follow(Target::Session(name.to_owned()), 0)
        .take(count)
        .map(|event| event.unwrap())
        .collect()
        .await;
    for (expected, event) in (1..).zip(&events) {
        assert_eq!(event.cursor, expected, "a gap or a repeated event in {name}");
    }
    events
}

/// One run, reconstructed from the events.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ObservedRun {
    pub(crate) run: String,
    pub(crate) state: RunState,
    /// How many times a worker started it.
    pub(crate) starts: usize,
}

/// Checks that runs started in queue order, one at a time, and that each ended exactly once. Returns them in that order.
pub(crate) fn check_run_order(events: &[v1::Event]) -> Vec<ObservedRun> {
    let mut order: Vec<ObservedRun> = Vec::new();
    let mut indexes: HashMap<&str, usize> = HashMap::new();
    let mut ended: Vec<bool> = Vec::new();
    let mut running: Option<usize> = None;
    for event in events {
        let run = event.run_id.as_str();
        let context = || format!("{} of {run} at {}", event.r#type, event.cursor);
        if event.r#type == "run.queued" {
            let index = order.len();
            assert!(indexes.insert(run, index).is_none(), "{} twice", context());
            let data: Value = serde_json::from_str(&event.data).unwrap();
            assert_eq!(data["seq"], index + 1, "{}", context());
            order.push(ObservedRun { run: run.to_owned(), state: RunState::Queued, starts: 0 });
            ended.push(false);
            continue;
        }
        let Some(&index) = indexes.get(run) else {
            assert!(run.is_empty(), "{} before it was queued", context());
            continue;
        };
        if event.r#type == "run.started" {
            assert!(running.is_none_or(|other| other == index), "{} while another runs", context());
            assert!(ended[..index].iter().all(|ended| *ended), "{} before its turn", context());
            running = Some(index);
            order[index].starts += 1;
        }
        if let Some(state) = terminal_state(event) {
            assert!(!ended[index], "{} is a second end", context());
            // Only a run that never started may end out of order.
            assert!(running == Some(index) || order[index].starts == 0, "{} out of turn", context());
            if running == Some(index) {
                running = None;
            }
            ended[index] = true;
            order[index].state = state;
        }
    }
    assert!(ended.iter().all(|ended| *ended), "a run never ended: {order:?}");
    order
}
