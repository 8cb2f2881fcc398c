//! Client commands against `remuda dev`.

use std::time::Duration;

use remuda_testkit::{free_port, wait_for};
use serde_json::Value;

use crate::harness::{Cli, Dev, TIMEOUT};

#[tokio::test]
async fn run_with_follow_shows_the_run_live() {
    let dev = Dev::start().await;
    let gate = dev.path("gate");
    let command = format!("command=echo hi; while [ ! -e {gate} ]; do sleep 0.02; done; echo bye");
    let arguments = ["run", "--tool", "Bash", "--arg", &command, "--session", "s1", "--follow"];
    let mut follower = dev.cli.start(&arguments);
    // The tool waits for the gate file, so this output is live.
    follower.wait_for_stderr("started").await;
    std::fs::write(&gate, "").unwrap();
    assert_eq!(follower.exit_code().await, 0);
    assert_eq!(follower.stdout(), "hi\nbye\n", "only the tool's output goes to stdout");
    assert!(follower.stderr().contains("completed"), "{}", follower.stderr());

    let json: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
    let lines = dev.cli.run(&json).await.documents();
    let (run, events) = lines.split_last().unwrap();
    let types: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(types, ["run.queued", "run.started", "tool.started", "tool.completed", "run.completed"]);
    assert_eq!(run["state"], "completed");
    assert_eq!(run["outcomes"][0]["output"]["stdout"], "hi\nbye\n");
}

#[tokio::test]
async fn exit_codes_reflect_the_outcome() {
    let dev = Dev::start().await;
    let (cli, fail) = (&dev.cli, ["run", "--tool", "noop", "--arg", "fail=on purpose"]);
    let slow = ["run", "--tool", "noop", "--arg", "sleep_ms:=60000"];
    assert_eq!(cli.run(&["run", "--tool", "noop"]).await.code, 0);
    // A non-zero exit code is a result of Bash, not a failed call.
    assert_eq!(cli.run(&["run", "--tool", "Bash", "--arg", "command=exit 3"]).await.code, 0);
    let failed = cli.run(&fail).await;
    assert_eq!(failed.code, 1);
    assert!(failed.stderr.contains("on purpose"), "{}", failed.stderr);
    assert_eq!(cli.run(&[&fail[..], &["--follow"]].concat()).await.code, 1);

    let timed_out = cli.run(&[&slow[..], &["--timeout", "100ms"]].concat()).await;
    assert_eq!(timed_out.code, 7, "{}", timed_out.stderr);

    let id = cli.run(&[&slow[..], &["--detach"]].concat()).await.stdout.trim().to_owned();
    let mut watch = cli.start(&["watch", &id]);
    let mut wait = cli.start(&["runs", "wait", &id]);
    assert_eq!(cli.run(&["cancel", &id, "--reason", "enough"]).await.code, 0);
    assert_eq!(watch.exit_code().await, 6);
    assert_eq!(wait.exit_code().await, 6);
    assert!(wait.stderr().contains("enough"), "{}", wait.stderr());

    let missing = "run_01h455vb4pex5vsknk084sn02q";
    for arguments in [&["runs", "show", missing][..], &["cancel", missing], &["watch", "nobody"]] {
        assert_eq!(cli.run(arguments).await.code, 4, "{arguments:?}");
    }
    for arguments in [
        &["run", "--tool", "Nope"][..],
        &["run"],
        &["run", "--arg", "a=b", "--tool", "noop"],
        &["run", "--tool", "noop", "--timeout", "48h"],
        &["run", "--tool", "noop", "--arg", "sleep_ms=x"],
        &["runs", "show", "x"],
        &["frobnicate"],
    ] {
        assert_eq!(cli.run(arguments).await.code, 2, "{arguments:?}");
    }

    let offline = Cli::new(&format!("http://127.0.0.1:{}", free_port().unwrap()));
    let unreachable = offline.run(&["run", "--tool", "noop"]).await;
    assert_eq!(unreachable.code, 3);
    assert!(unreachable.stderr.contains("is `remuda dev` running?"), "{}", unreachable.stderr);
    assert_eq!(offline.run(&["watch", "s1", "--json"]).await.error().0, "unavailable");
}

#[tokio::test]
async fn sessions_and_runs_can_be_listed_shown_and_changed() {
    let dev = Dev::start().await;
    let cli = &dev.cli;
    let created = cli.one(&["sessions", "create", "s1", "--title", "first"]).await;
    assert_eq!((&created["name"], &created["status"]), (&"s1".into(), &"open".into()));
    assert_eq!(cli.run(&["sessions", "create", "s1"]).await.code, 8);
    assert_eq!(cli.one(&["sessions", "update", "s1", "--title", "changed"]).await["title"], "changed");

    let write = ["--tool", "Write", "--arg", "file_path=a.txt", "--arg", "content=hello"];
    let read = ["--tool", "Read", "--arg", "file_path=a.txt"];
    let recorded = cli.one(&[&["run", "--session", "s1", "--record"], &write[..], &read[..]].concat()).await;
    assert_eq!(recorded["state"], "completed");
    let id = recorded["id"].as_str().unwrap();
    assert_eq!(cli.one(&["runs", "show", id]).await["id"], id);
    let steps = cli.json(&["runs", "steps", id]).await;
    let kinds: Vec<(&Value, &Value)> =
        steps.iter().map(|step| (&step["call"]["tool"], &step["outcome"]["status"])).collect();
    assert_eq!(kinds, [(&"Write".into(), &"completed".into()), (&"Read".into(), &"completed".into())]);

    let messages = cli.json(&["sessions", "messages", "s1"]).await;
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0]["run_id"], id);
    let parts: Vec<&Value> =
        messages[0]["parts"].as_array().unwrap().iter().map(|part| &part["type"]).collect();
    assert_eq!(parts, ["tool_use", "tool_use", "tool_result", "tool_result"]);

    for _ in 0..3 {
        cli.json(&["run", "--session", "s1", "--tool", "noop"]).await;
    }
    let listed = cli.json(&["runs", "list", "--session", "s1", "--state", "completed", "--all"]).await;
    let seqs: Vec<i64> = listed.iter().filter_map(|run| run["seq"].as_i64()).collect();
    assert_eq!(seqs, [4, 3, 2, 1], "newest first");
    assert_eq!(cli.json(&["runs", "list", "--limit", "2"]).await.len(), 2);
    assert!(cli.json(&["runs", "list", "--state", "failed"]).await.is_empty());

    assert_eq!(cli.one(&["sessions", "close", "s1"]).await["status"], "closed");
    assert_eq!(
        cli.run(&["run", "--session", "s1", "--tool", "noop", "--json"]).await.error().0,
        "session_closed"
    );
    assert_eq!(cli.json(&["sessions", "list", "--status", "closed"]).await.len(), 1);
    assert!(cli.json(&["sessions", "list", "--status", "open"]).await.is_empty());
    // The human-readable output without a terminal has no colour and no control characters.
    for arguments in
        [&["sessions", "list"][..], &["sessions", "messages", "s1"], &["runs", "list"], &["runs", "show", id]]
    {
        let shown = cli.run(arguments).await;
        assert_eq!(shown.code, 0);
        assert!(
            !shown.stdout.is_empty() && !shown.stdout.contains('\u{1b}'),
            "{arguments:?}: {}",
            shown.stdout
        );
    }
}

#[tokio::test]
async fn waiting_runs_are_listed_and_explained() {
    let dev = Dev::start_with(&["--slots", "1"]).await;
    let cli = &dev.cli;
    let slow = ["--tool", "noop", "--arg", "sleep_ms:=60000", "--detach"];
    let submit = async |session: &str| {
        let run = cli.one(&[&["run", "--session", session], &slow[..]].concat()).await;
        run["id"].as_str().unwrap().to_owned()
    };
    let first = submit("s1").await;
    let reason = async |run: &str| cli.one(&["explain", run]).await["reason"].as_str().unwrap().to_owned();
    wait_for("the first run to execute", TIMEOUT, || async { reason(&first).await == "executing" }).await;
    let (second, third, other) = (submit("s1").await, submit("s1").await, submit("s2").await);

    let explained = cli.one(&["explain", &third]).await;
    assert_eq!(explained["reason"], "behind_other_runs");
    assert_eq!(explained["position"], 2);
    // The free slots of a worker are those of its last heartbeat.
    let waiting = || async { cli.one(&["explain", &other]).await["hint"] == "add workers or slots, or wait" };
    wait_for("the explanation of a full fleet", TIMEOUT, waiting).await;

    let queue: Vec<Value> = cli.json(&["sessions", "queue", "s1"]).await;
    let ids: Vec<&str> = queue.iter().filter_map(|run| run["id"].as_str()).collect();
    assert_eq!(ids, [&first, &second, &third]);
    let shown = cli.one(&["sessions", "show", "s1"]).await;
    assert_eq!((&shown["pending_runs"], &shown["current_run_id"]), (&3.into(), &first.as_str().into()));

    let workers = cli.json(&["workers"]).await;
    assert_eq!(workers.len(), 1);
    assert_eq!((&workers[0]["state"], &workers[0]["slots"]), (&"active".into(), &1.into()));
    assert_eq!(workers[0]["id"], dev.server.worker_id().await.as_str());
    let counted = || async {
        let stats = cli.one(&["queue", "stats"]).await;
        (stats["queued_runs"] == 3 && stats["running_sessions"] == 1 && stats["runnable_sessions"] == 1)
            .then_some(stats)
    };
    let stats = wait_for("three queued runs, one running and one runnable session", TIMEOUT, counted).await;
    assert_eq!(stats["pool"], "default", "{stats}");

    cli.json(&["sessions", "close", "s1", "--cancel-runs"]).await;
    for run in [&first, &second, &third] {
        assert_eq!(cli.run(&["runs", "wait", run]).await.code, 6);
    }
    assert_eq!(reason(&first).await, "finished");
    wait_for("the other session to get the slot", TIMEOUT, || async { reason(&other).await == "executing" })
        .await;
    // A drained worker finishes its current runs and claims no others.
    let worker = workers[0]["id"].as_str().unwrap();
    assert_eq!(cli.one(&["workers", "drain", worker]).await["id"], worker);
    let late = submit("s3").await;
    // The run must stay queued, so there is no condition to wait for.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(cli.one(&["runs", "show", &late]).await["state"], "queued");
}

#[tokio::test]
async fn watch_replays_and_follows_without_gaps() {
    let dev = Dev::start().await;
    let cli = &dev.cli;
    cli.json(&["run", "--session", "s1", "--tool", "noop"]).await;
    let watch = cli.start(&["watch", "s1", "--json"]);
    let late = cli.start(&["watch", "s1", "--after", "4", "--json"]);
    cli.json(&["run", "--session", "s1", "--tool", "noop"]).await;
    let cursors = |process: &crate::harness::Process| -> Vec<i64> {
        process.documents().iter().filter_map(|event| event["cursor"].as_i64()).collect()
    };
    wait_for("all events", TIMEOUT, || {
        std::future::ready(cursors(&watch).len() == 11 && cursors(&late).len() == 7)
    })
    .await;
    assert_eq!(cursors(&watch), (1..=11).collect::<Vec<_>>());
    assert_eq!(cursors(&late), (5..=11).collect::<Vec<_>>());
}
