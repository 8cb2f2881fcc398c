//! Invalid requests: each is refused with its error code and the invalid field, on both stores.

use std::fmt::Debug;

use futures::StreamExt as _;
use remuda_client::{Client, Target};
use remuda_domain::{Code, Error, RunId, SessionId, ToolCallId, WorkerId, error::Result};
use remuda_proto::v1;
use remuda_testkit::nats_binaries;
use serde_json::{Value, json};

use crate::{
    api::{bash, call, noop, state, submission, submit, wait_for_end},
    cluster::Cluster,
    harness::Dev,
};

/// Checks one refusal: its code, its field, and that its message is short and printable.
pub(crate) fn refused<T: Debug>(what: &str, answer: Result<T>, (code, field): (Code, &str)) {
    let error: Error = answer.expect_err(what);
    let found = (error.code(), error.field().unwrap_or_default());
    assert_eq!(found, (code, field), "{what}: {error}");
    let text = error.message();
    assert!(!text.is_empty() && text.len() <= 1024, "{what}: {text}");
    assert!(!text.contains(char::is_control), "{what}: {text:?}");
}

pub(crate) const fn invalid(field: &str) -> (Code, &str) {
    (Code::InvalidArgument, field)
}

/// A valid request with one change.
fn with(change: impl FnOnce(&mut v1::SubmitRunRequest)) -> v1::SubmitRunRequest {
    let mut request = submission("s1", vec![noop(0)]);
    change(&mut request);
    request
}

fn with_call(change: impl FnOnce(&mut v1::ToolCall)) -> v1::SubmitRunRequest {
    let mut call = noop(0);
    change(&mut call);
    submission("s1", vec![call])
}

fn with_arguments(tool: &str, arguments: &Value) -> v1::SubmitRunRequest {
    submission("s1", vec![call(tool, arguments)])
}

fn with_text(arguments: &str) -> v1::SubmitRunRequest {
    with_call(|call| arguments.clone_into(&mut call.arguments))
}

fn filler(bytes: usize) -> Value {
    json!({ "echo": "x".repeat(bytes) })
}

async fn submits(client: &Client) {
    let megabytes = |count: usize| vec![call("noop", &filler(1_000_000)); count];
    let first = |name: &str| format!("tools.calls[0].{name}");
    let (arguments, timeout) = (first("arguments"), first("timeout"));
    let path = first("arguments.file_path");
    let deep = |levels: usize| format!("{{\"echo\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
    let id = SessionId::new().to_string();
    let session = |name: &str| with(|request| name.clone_into(&mut request.session));
    let key = |key: &str| with(|request| key.clone_into(&mut request.idempotency_key));
    let same = v1::ToolCall { id: ToolCallId::new().to_string(), ..noop(0) };
    let mut table = vec![
        ("no input", with(|request| request.input = None), invalid("input")),
        ("no calls", submission("s1", vec![]), invalid("tools.calls")),
        ("too many calls", submission("s1", vec![noop(0); 257]), (Code::TooLarge, "tools.calls")),
        ("more than 4 MiB", submission("s1", megabytes(5)), (Code::TooLarge, "tools.calls")),
        ("10 MiB of arguments", with_arguments("noop", &filler(10 << 20)), (Code::TooLarge, "tools.calls")),
        ("2 MiB of arguments", with_arguments("noop", &filler(2 << 20)), (Code::TooLarge, &arguments)),
        ("no JSON", with_text("{oops"), invalid(&arguments)),
        ("no object", with_text("[1]"), invalid(&arguments)),
        ("null", with_text("null"), invalid(&arguments)),
        ("half a surrogate pair", with_text(r#"{"echo":"\ud800"}"#), invalid(&arguments)),
        ("70 levels", with_text(&deep(70)), invalid(&arguments)),
        ("10,000 levels", with_text(&deep(10_000)), invalid(&arguments)),
        ("a tool without a name", with_arguments("", &json!({})), invalid("tools.calls[0].tool")),
        ("an unknown tool", with_arguments("Nope", &json!({})), (Code::UnknownTool, "tools.calls[0].tool")),
        (
            "a hostile tool",
            with_arguments("\u{1b}[2J\0\n", &json!({})),
            (Code::UnknownTool, "tools.calls[0].tool"),
        ),
        (
            "an unknown argument",
            with_arguments("noop", &json!({ "nope": 1 })),
            invalid("tools.calls[0].arguments.nope"),
        ),
        (
            "a missing argument",
            with_arguments("Bash", &json!({})),
            invalid("tools.calls[0].arguments.command"),
        ),
        (
            "a wrong type",
            with_arguments("noop", &json!({ "sleep_ms": "1" })),
            invalid("tools.calls[0].arguments.sleep_ms"),
        ),
        (
            "a negative sleep",
            with_arguments("noop", &json!({ "sleep_ms": -1 })),
            invalid("tools.calls[0].arguments.sleep_ms"),
        ),
        (
            "an empty command",
            with_arguments("Bash", &json!({ "command": " " })),
            invalid("tools.calls[0].arguments.command"),
        ),
        (
            "NUL in a command",
            with_arguments("Bash", &json!({ "command": "a\0b" })),
            invalid("tools.calls[0].arguments.command"),
        ),
        (
            "a long command",
            with_arguments("Bash", &json!({ "command": "x".repeat(200_000) })),
            (Code::TooLarge, "tools.calls[0].arguments.command"),
        ),
        ("an empty path", with_arguments("Read", &json!({ "file_path": "" })), invalid(&path)),
        (
            "NUL in a path",
            with_arguments("Write", &json!({ "file_path": "a\0b", "content": "" })),
            invalid(&path),
        ),
        ("a long path", with_arguments("Read", &json!({ "file_path": "x".repeat(5000) })), invalid(&path)),
        ("no session", session(""), invalid("session")),
        ("a control character", session("a\tb"), invalid("session")),
        ("a line break", session("x\r\nPUB evil 1\r\nz"), invalid("session")),
        ("NUL in a name", session("a\0b"), invalid("session")),
        ("spaces around", session(" a "), invalid("session")),
        ("text that reorders", session("a\u{202e}b"), invalid("session")),
        ("an invisible character", session("a\u{200b}b"), invalid("session")),
        ("a name of 5,000 characters", session(&"x".repeat(5000)), invalid("session")),
        ("half an id", session("ses_x"), invalid("session")),
        ("an id in capitals", session(&id.to_uppercase().replace("SES_", "ses_")), invalid("session")),
        ("an unknown id", session(&id), (Code::SessionNotFound, "session")),
        ("an unknown choice", with(|request| request.if_busy = 99), invalid("if_busy")),
        ("a bad call id", with_call(|call| call.id = "x".to_owned()), invalid("tools.calls[0].id")),
        ("the same call id twice", submission("s1", vec![same.clone(), same]), invalid("tools.calls[1].id")),
    ];
    for bad in ["a b", "a\n", "\u{e9}", &"k".repeat(129)] {
        table.push(("a bad idempotency key", key(bad), invalid("idempotency_key")));
    }
    for (seconds, nanos) in
        [(-1, 0), (0, 0), (0, -1), (i64::MAX, 0), (i64::MIN, 0), (86_401, 0), (1, -999_999_999)]
    {
        let bad = Some(prost_types::Duration { seconds, nanos });
        table.push(("a bad timeout", with(|request| request.timeout = bad), invalid("timeout")));
        table.push(("a bad call timeout", with_call(|call| call.timeout = bad), invalid(&timeout)));
    }
    for (what, request, expected) in table {
        refused(what, client.submit(request).await, expected);
    }
    let unknown = v1::SubmitRunRequest { create_session: false, ..submission("nobody", vec![noop(0)]) };
    refused("an unknown name", client.submit(unknown).await, (Code::SessionNotFound, "session"));
    let listed = client.list_sessions(v1::ListSessionsRequest::default()).await.unwrap().sessions;
    assert!(listed.is_empty(), "a refused request leaves nothing behind: {listed:?}");
}

async fn ids(client: &Client, operator: &Client) {
    let ses = SessionId::new().to_string();
    let upper = RunId::new().to_string().to_uppercase();
    let long = format!("run_{}", "0".repeat(5000));
    for bad in [
        "",
        "x",
        "run_",
        "run_x",
        &ses,
        &upper,
        &long,
        "'; DROP TABLE runs; --",
        "../../etc",
        "*",
        ">",
        "a\0b",
    ] {
        let run_id = || bad.to_owned();
        let expected = invalid("run_id");
        refused(bad, client.get_run(v1::GetRunRequest { run_id: run_id() }).await, expected);
        refused(bad, client.list_steps(v1::ListStepsRequest { run_id: run_id() }).await, expected);
        refused(bad, client.explain_run(v1::ExplainRunRequest { run_id: run_id() }).await, expected);
        let cancel = v1::CancelRunRequest { run_id: run_id(), ..Default::default() };
        refused(bad, client.cancel_run(cancel).await, expected);
        refused(bad, client.wait_run(bad, std::time::Duration::ZERO).await, expected);
    }
    let unknown = RunId::new().to_string();
    let expected = (Code::RunNotFound, "run_id");
    refused("get", client.get_run(v1::GetRunRequest { run_id: unknown.clone() }).await, expected);
    refused("wait", client.wait_run(&unknown, std::time::Duration::ZERO).await, expected);
    for (worker_id, code) in
        [(WorkerId::new().to_string(), Code::WorkerNotFound), ("wrk_".to_owned(), Code::InvalidArgument)]
    {
        let drained = operator.drain_worker(v1::DrainWorkerRequest { worker_id }).await;
        refused("drain", drained, (code, "worker_id"));
    }
}

async fn sessions(client: &Client) {
    let create = async |change: &dyn Fn(&mut v1::CreateSessionRequest)| {
        let mut request = v1::CreateSessionRequest::default();
        change(&mut request);
        client.create_session(request).await
    };
    refused("a name", create(&|request| request.name = "a\u{7}".into()).await, invalid("name"));
    refused("an id", create(&|request| request.name = "ses_1".into()).await, invalid("name"));
    refused("a title", create(&|request| request.title = "t".repeat(257)).await, invalid("title"));
    refused("NUL", create(&|request| request.title = "a\0".into()).await, invalid("title"));
    for pool in ["A", "a.b", "a b", "*", ">", &"p".repeat(65), "\0"] {
        refused("a pool", create(&|request| request.pool = pool.into()).await, invalid("pool"));
    }
    refused("an agent", create(&|request| request.agent = " a".into()).await, invalid("agent"));
    refused("a model", create(&|request| request.model = "workspace/".into()).await, invalid("model"));
    let unknown = (Code::WorkspaceNotFound, "workspace");
    refused("a workspace", create(&|request| request.workspace = "nope".into()).await, unknown);
    refused("a path", create(&|request| request.workspace = "../..\n".into()).await, invalid("workspace"));
    let unknown = (Code::SessionNotFound, "parent");
    let unknown_id = SessionId::new().to_string();
    refused("a parent's id", create(&|request| request.parent = unknown_id.clone()).await, unknown);
    refused("a parent's name", create(&|request| request.parent = "nobody".into()).await, unknown);
    refused("half a parent", create(&|request| request.parent = "ses_x".into()).await, invalid("parent"));
    let cancel = |session: &str, reason: String| {
        client.cancel_session(v1::CancelSessionRequest { session: session.to_owned(), tree: true, reason })
    };
    refused("cancel", cancel(&unknown_id, String::new()).await, (Code::SessionNotFound, "session"));
    refused("cancel", cancel("a\0b", String::new()).await, invalid("session"));
    refused("a long reason", cancel(&unknown_id, "r".repeat(513)).await, invalid("reason"));

    // Names that look like subjects, patterns, paths or SQL are stored as plain names.
    let odd = [
        ".",
        "..",
        "a..b",
        "*",
        ">",
        "a.>",
        "$JS.API",
        "-x",
        "'; DROP TABLE sessions; --",
        "../../etc",
        "日本語 🐎",
    ];
    for name in odd {
        let run = submit(client, name, vec![noop(0)]).await;
        assert_eq!(state(&wait_for_end(client, &run).await).as_str(), "completed", "{name}");
        assert_eq!(crate::api::session(client, name).await.name, name);
    }
    let page = client.list_sessions(v1::ListSessionsRequest { page_size: 500, ..Default::default() }).await;
    assert_eq!(page.unwrap().sessions.len(), odd.len());

    let update = v1::UpdateSessionRequest { session: ".".into(), ..Default::default() };
    refused("nothing to change", client.update_session(update).await, invalid("title"));
    let update = async |change: &dyn Fn(&mut v1::UpdateSessionRequest)| {
        let mut request = v1::UpdateSessionRequest { session: ".".into(), ..Default::default() };
        change(&mut request);
        client.update_session(request).await
    };
    refused("a long title", update(&|it| it.title = Some("t".repeat(257))).await, invalid("title"));
    refused("no agent", update(&|it| it.agent = Some(String::new())).await, invalid("agent"));
    refused("half a model", update(&|it| it.model = Some("platform/".into())).await, invalid("model"));
    let locked = (Code::SessionModelLocked, "model");
    refused("another model", update(&|it| it.model = Some("other".into())).await, locked);
}

async fn pages(client: &Client) {
    let other = RunId::new().to_string();
    for (page_size, page_token, field) in [
        (-1, "", "page_size"),
        (501, "", "page_size"),
        (i32::MIN, "", "page_size"),
        (0, "x", "page_token"),
        (0, "-1; DROP TABLE runs", "page_token"),
        (0, "\0", "page_token"),
        (0, &"9".repeat(5000), "page_token"),
    ] {
        let page_token = || page_token.to_owned();
        let request = v1::ListRunsRequest { page_size, page_token: page_token(), ..Default::default() };
        refused("runs", client.list_runs(request).await, invalid(field));
        let request = v1::ListSessionsRequest { page_size, page_token: page_token(), ..Default::default() };
        refused("sessions", client.list_sessions(request).await, invalid(field));
        let request = v1::ListMessagesRequest { session: ".".into(), page_size, page_token: page_token() };
        refused("messages", client.list_messages(request).await, invalid(field));
        let request = v1::ListQueueRequest { session: ".".into(), page_size, page_token: page_token() };
        refused("queue", client.list_queue(request).await, invalid(field));
    }
    let request = v1::ListWorkspacesRequest { page_size: 0, page_token: "\0".to_owned() };
    refused("workspaces", client.list_workspaces(request).await, invalid("page_token"));
    let foreign = v1::ListSessionsRequest { page_token: other, ..Default::default() };
    refused("a token of another list", client.list_sessions(foreign).await, invalid("page_token"));
    for states in [vec![0], vec![99], vec![-1]] {
        let request = v1::ListRunsRequest { states, ..Default::default() };
        refused("states", client.list_runs(request).await, invalid("states"));
    }
    let request = v1::ListSessionsRequest { status: 99, ..Default::default() };
    refused("status", client.list_sessions(request).await, invalid("status"));
}

async fn cursors(client: &Client) {
    let run = submit(client, "cursors", vec![bash("true")]).await;
    wait_for_end(client, &run).await;
    for target in [Target::Session("cursors".to_owned()), Target::Run(run.clone())] {
        for (cursor, expected) in [
            (-1, invalid("after_cursor")),
            (i64::MIN, invalid("after_cursor")),
            (7, (Code::CursorOutOfRange, "after_cursor")),
            (i64::MAX, (Code::CursorOutOfRange, "after_cursor")),
        ] {
            let answer = client.follow(target.clone(), cursor).next().await.unwrap();
            refused("a cursor", answer, expected);
        }
    }
    let unknown = client.follow(Target::Session("nobody".to_owned()), 0).next().await.unwrap();
    refused("an unknown session", unknown, (Code::SessionNotFound, "session"));
    let unknown = client.follow(Target::Run(RunId::new().to_string()), 0).next().await.unwrap();
    refused("an unknown run", unknown, (Code::RunNotFound, "run_id"));
    let bad = client.follow(Target::Run("x".to_owned()), 0).next().await.unwrap();
    refused("a bad run id", bad, invalid("run_id"));

    let long = v1::CancelRunRequest { run_id: run.clone(), reason: "r".repeat(513) };
    refused("a long reason", client.cancel_run(long).await, invalid("reason"));
    let nul = v1::CancelRunRequest { run_id: run, reason: "\0".into() };
    refused("NUL in a reason", client.cancel_run(nul).await, invalid("reason"));
}

/// Paths that lead out of the workspace are refused by the tool that uses them.
async fn paths(client: &Client) {
    for path in ["../../../etc/passwd", "/etc/passwd", "./../x", "/proc/self/environ", "/dev/zero"] {
        for arguments in [json!({ "file_path": path }), json!({ "file_path": path, "content": "x" })] {
            let tool = if arguments.get("content").is_some() { "Write" } else { "Read" };
            let run = submit(client, "paths", vec![call(tool, &arguments)]).await;
            let outcome = wait_for_end(client, &run).await.outcomes.remove(0);
            let code = outcome.failure.map(|failure| failure.code);
            assert_eq!(code.as_deref(), Some("path_not_allowed"), "{tool} {path}");
        }
    }
}

/// Text with NUL bytes, escape sequences and SQL is stored and returned unchanged.
async fn odd_text(client: &Client) {
    for echo in ["a\0b", "\u{1b}[2J", "\u{fffd}\u{202e}", "12345678901234567890123", "'; DROP TABLE runs; --"]
    {
        let run = submit(client, "text", vec![call("noop", &json!({ "echo": echo }))]).await;
        let outcome = wait_for_end(client, &run).await.outcomes.remove(0);
        assert_eq!(outcome.output, json!(echo).to_string(), "{echo:?}");
    }
    let printed = bash(r"printf 'a\0b\377\n'");
    let run = wait_for_end(client, &submit(client, "text", vec![printed]).await).await;
    assert_eq!(state(&run).as_str(), "completed");
}

/// `operator` may manage the fleet.
async fn everything(client: &Client, operator: &Client) {
    submits(client).await;
    ids(client, operator).await;
    sessions(client).await;
    pages(client).await;
    cursors(client).await;
    paths(client).await;
    odd_text(client).await;
}

#[tokio::test]
async fn bad_requests_are_refused_with_code_and_field_on_sqlite() {
    let dev = Dev::start().await;
    everything(&dev.client(), &dev.client()).await;
}

#[tokio::test]
async fn bad_requests_are_refused_with_code_and_field_on_postgresql() {
    let cluster = Cluster::start(&nats_binaries()[0], 1).await;
    everything(&cluster.client(), &cluster.operator.client()).await;
}
