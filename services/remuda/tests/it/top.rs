//! `remuda top` on a terminal, as text and as JSON, and which runs of other tenants it shows.

use nix::sys::signal::Signal;
use remuda_client::Client;
use remuda_domain::RunState;
use remuda_testkit::{free_port, nats_binaries, wait_for};
use serde_json::Value;

use crate::{
    api::{bash, noop, state, submit},
    cluster::Cluster,
    harness::{Cli, Dev, TIMEOUT, temporary_directory},
    http_client::HttpClient,
    pty::{COLUMNS, ROWS, TerminalProcess},
};

async fn wait_for_state(client: &Client, run: &str) -> RunState {
    state(&crate::api::wait_for_end(client, run).await)
}

/// Returns the first line that contains `with`, its whitespace collapsed.
fn line_with(text: &str, with: &str) -> String {
    let found = text.lines().find(|line| line.contains(with)).unwrap_or_default();
    found.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn top_shows_the_fleet_and_cancels_runs_interactively() {
    let (directory, port) = (temporary_directory(), free_port().unwrap());
    let listen = format!("127.0.0.1:{port}");
    let dev = Dev::start_in(directory, &["--slots", "2", "--listen", &listen]).await;
    let client = dev.client();
    let slow = submit(&client, "slow", vec![bash("sleep 300")]).await;
    submit(&client, "slow", vec![noop(0)]).await;
    submit(&client, "slower", vec![bash("sleep 300")]).await;
    wait_for("both slots to be used", TIMEOUT, || async {
        dev.cli.one(&["explain", &slow]).await["reason"] == "executing"
            && dev.cli.one(&["queue", "stats"]).await["running_sessions"] == 2
    })
    .await;
    submit(&client, "starved", vec![noop(0)]).await;

    let endpoint = dev.server.endpoint().to_owned();
    let mut top = TerminalProcess::start(&["top", "--interval", "300ms"], &[("REMUDA_ENDPOINT", &endpoint)]);
    top.wait_for_screen("both runs", |text| line_with(text, "starved").contains("all slots busy")).await;
    top.wait_for_screen("what runs", |text| {
        let (slowest, waiting) = text.split_once("LONGEST WAITING").unwrap_or_default();
        line_with(slowest, "slower").contains("1 Bash")
            && line_with(slowest, "slow ").contains("1 Bash")
            && waiting.contains("starved")
            && line_with(text, "default").ends_with("2/2")
    })
    .await;
    let text = top.text();
    assert!(text.starts_with(&format!("remuda top  {endpoint}  embedded")), "{text}");
    assert!(line_with(&text, "remuda top").ends_with("live"), "{text}");
    assert!(line_with(&text, "default").ends_with("████████ 2/2"), "{text}");
    assert!(text.contains("behind 1 run"), "{text}");
    assert!(text.lines().count() <= usize::from(ROWS), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= usize::from(COLUMNS)), "{text}");

    // The slowest run is selected: Enter shows its step and why it has not finished.
    top.press("\r");
    top.wait_for_screen("an explanation", |text| {
        text.contains(&slow) && text.contains("executes the run: step 1, Bash")
    })
    .await;
    assert!(top.text().contains("steps"), "{}", top.text());
    top.press("q");
    top.wait_for_screen("the lists again", |text| !text.contains("executes the run")).await;

    // `n` keeps the run, `y` cancels it.
    top.press("c");
    top.wait_for_screen("the question", |text| text.contains(&format!("cancel {slow}?  y/n"))).await;
    top.press("n");
    top.wait_for_screen("no question", |text| !text.contains("y/n")).await;
    assert_eq!(dev.cli.one(&["runs", "show", &slow]).await["state"], "running");
    top.press("c");
    top.wait_for_screen("the question again", |text| text.contains("y/n")).await;
    top.press("y");
    assert_eq!(wait_for_state(&client, &slow).await, RunState::Cancelled);
    top.wait_for_screen("the next run in the free slot", |text| {
        !text.contains("starved") && !line_with(text, "slow ").contains("Bash")
    })
    .await;
    top.press("/nothing\r");
    top.wait_for_screen("nothing", |text| !text.contains("slower")).await;
    top.press("\u{1b}");
    top.wait_for_screen("everything", |text| text.contains("slower")).await;

    // While the server is down, the last known state stays on the screen.
    let Dev { server, directory, .. } = dev;
    let mut server = server;
    server.process.kill();
    top.wait_for_screen("that the server is gone", |text| {
        text.contains("reconnecting") && text.contains("slower")
    })
    .await;
    drop(server);
    let dev = Dev::start_in(directory, &["--slots", "2", "--listen", &listen]).await;
    top.wait_for_screen("that it is back", |text| line_with(text, "remuda top").ends_with("live")).await;
    top.press("q");
    assert_eq!(top.exit_code().await, 0);
    top.wait_until_restored().await;
    drop(dev);
}

#[tokio::test]
async fn terminal_is_restored_after_a_signal() {
    let dev = Dev::start().await;
    for (color, signal) in [("", Some(Signal::SIGTERM)), ("1", Some(Signal::SIGHUP)), ("1", None)] {
        let variables = [("REMUDA_ENDPOINT", dev.server.endpoint()), ("NO_COLOR", color)];
        let mut top = TerminalProcess::start(&["top"], &variables);
        top.wait_for_screen("a frame", |text| text.contains("LONGEST WAITING  none")).await;
        assert!(!top.is_restored(), "`remuda top` must hold the terminal");
        match signal {
            Some(signal) => top.signal(signal),
            None => top.press("\u{3}"),
        }
        assert_eq!(top.exit_code().await, 0);
        top.wait_until_restored().await;
        let colours = top.raw().contains("[38;5;");
        assert_eq!(colours, color.is_empty(), "NO_COLOR={color}: {:?}", top.raw());
    }
}

#[tokio::test]
async fn top_prints_text_or_json_without_a_terminal() {
    let dev = Dev::start_with(&["--slots", "1"]).await;
    let client = dev.client();
    for _ in 0..3 {
        let run = submit(&client, "done", vec![noop(0)]).await;
        wait_for_state(&client, &run).await;
    }
    let first = submit(&client, "line", vec![bash("sleep 300")]).await;
    let second = submit(&client, "line", vec![noop(0)]).await;
    let once = || async { dev.cli.one(&["top", "--once"]).await };
    let seen = wait_for("the worker to report the run, and all runs to be counted", TIMEOUT, || async {
        let seen = once().await;
        let runs = seen["running"].as_array().is_some_and(|running| running.len() == 1);
        let counts = seen["counts"]["submitted"] == 5 && seen["counts"]["completed"] == 3;
        let executes = seen["running"][0]["step"]["name"] == "Bash" && seen["pools"][0]["busy"] == 1;
        (runs && counts && executes && seen["pools"][0]["queued_runs"] == 1).then_some(seen)
    })
    .await;
    assert_eq!((&seen["mode"], &seen["at_least"]), (&"embedded".into(), &false.into()));
    let pool = &seen["pools"][0];
    assert_eq!(
        (&pool["pool"], &pool["running_sessions"], &pool["queued_runs"]),
        (&"default".into(), &1.into(), &1.into())
    );
    assert_eq!((&pool["slots"], &pool["busy"], &pool["workers"]), (&1.into(), &1.into(), &1.into()));
    assert_eq!(seen["workers"][0]["state"], "active");
    let (running, waiting) = (&seen["running"][0], &seen["waiting"][0]);
    assert_eq!((&running["run_id"], &running["session_name"]), (&first.as_str().into(), &"line".into()));
    assert_eq!((&running["reason"], &running["step"]["name"]), (&"executing".into(), &"Bash".into()));
    assert_eq!(
        (&waiting["run_id"], &waiting["reason"]),
        (&second.as_str().into(), &"behind_other_runs".into())
    );
    assert_eq!((&seen["counts"]["submitted"], &seen["counts"]["completed"]), (&5.into(), &3.into()));

    let text = dev.cli.run(&["top"]).await;
    assert_eq!((text.code, text.stderr.as_str()), (0, ""));
    assert!(!text.stdout.contains('\u{1b}') && !text.stdout.contains("quit"), "{}", text.stdout);
    assert!(line_with(&text.stdout, "behind 1 run").starts_with("line"), "{}", text.stdout);

    // The HTTP API returns the same overview.
    let web = HttpClient::new(dev.server.endpoint());
    assert_eq!(web.get("/overview").await.body["running"][0]["run_id"], first.as_str());
    assert_eq!(web.get("/overview?limit=0").await.status, 400);

    // One document per refresh, with rates from the second refresh on.
    let mut stream = dev.cli.start(&["top", "--json", "--interval", "300ms"]);
    let rates = || {
        std::future::ready(
            stream.documents().iter().any(|it| it["rates"]["submitted_per_second"].is_number()),
        )
    };
    wait_for("rates", TIMEOUT, rates).await;
    assert!(stream.documents()[0].get("rates").is_none());
    stream.signal(Signal::SIGINT);
    assert_eq!(stream.exit_code().await, 0);
}

#[tokio::test]
async fn explain_estimates_from_past_runs() {
    let dev = Dev::start_with(&["--slots", "1"]).await;
    let client = dev.client();
    for _ in 0..3 {
        let run = submit(&client, "line", vec![noop(0)]).await;
        wait_for_state(&client, &run).await;
    }
    let gate = dev.path("gate");
    let wait = format!("while [ ! -e {gate} ]; do sleep 0.02; done");
    let first = submit(&client, "line", vec![bash(&wait)]).await;
    let second = submit(&client, "line", vec![noop(0)]).await;
    let elsewhere = submit(&client, "elsewhere", vec![noop(0)]).await;
    wait_for("the first to be executed", TIMEOUT, || async {
        dev.cli.one(&["explain", &first]).await["step"]["name"] == "Bash"
    })
    .await;
    let explained = dev.cli.one(&["explain", &first]).await;
    let (reason, estimate) = (&explained["reason"], &explained["estimate"]);
    assert_eq!((reason, &estimate["of"]), (&"executing".into(), &"end".into()));
    assert!(estimate["basis"].as_str().unwrap().contains("the last 3 of this session took"), "{explained}");
    assert!(estimate["at_latest"].is_string() && explained["since"].is_string(), "{explained}");
    let explained = dev.cli.one(&["explain", &second]).await;
    assert_eq!(
        (&explained["reason"], &explained["estimate"]["of"]),
        (&"behind_other_runs".into(), &"start".into())
    );
    assert!(explained["message"].as_str().unwrap().contains(&format!("{first}, is running")), "{explained}");
    let explained = wait_for("the worker to report that it is busy", TIMEOUT, || async {
        let explained = dev.cli.one(&["explain", &elsewhere]).await;
        // The position in the pool's queue is cached for one second.
        let place = &explained["place"];
        (place["free_slots"] == 0 && place["ahead"] == 0).then_some(explained)
    })
    .await;
    assert_eq!(
        (&explained["reason"], &explained["place"]["ahead"]),
        (&"waiting_for_worker".into(), &0.into())
    );
    assert_eq!(explained["place"]["slots"], 1);
    assert!(
        explained["estimate"]["basis"].as_str().unwrap().contains("of yours in this pool"),
        "{explained}"
    );
    let text = dev.cli.run(&["explain", &elsewhere]).await.stdout;
    assert!(
        line_with(&text, "in pool").ends_with("0 runnable sessions before it in default, 0 of 1 slots free"),
        "{text}"
    );
    assert!(line_with(&text, "starts ").contains("(median)"), "{text}");
    std::fs::write(&gate, "").unwrap();
    for run in [&first, &second, &elsewhere] {
        assert_eq!(wait_for_state(&client, run).await, RunState::Completed);
    }
    assert!(dev.cli.one(&["explain", &first]).await.get("estimate").is_none());
}

#[tokio::test]
async fn top_shows_runs_of_the_named_tenant_only() {
    let cluster = Cluster::start(&nats_binaries()[0], 1).await;
    let owner = cluster.client();
    let runs = [
        submit(&owner, "secret", vec![bash("sleep 300")]).await,
        submit(&owner, "secret", vec![noop(0)]).await,
    ];
    cluster.services.create_key("rival", &["write"]).await;
    let anonymous = Cli::new(cluster.control_plane.endpoint());
    let (operator, once) = (&cluster.operator, ["top", "--once", "--tenant", "rival"]);
    let seen = wait_for("the fleet to show the run", TIMEOUT, || async {
        let seen = operator.one(&once).await;
        let pool = &seen["pools"][0];
        (pool["busy"] == 1 && pool["running_sessions"] == 1).then_some(seen)
    })
    .await;
    for seen in [seen, operator.one(&["top", "--once"]).await] {
        assert_eq!((&seen["running"], &seen["waiting"]), (&Value::Array(vec![]), &Value::Array(vec![])));
        assert_eq!(seen["pools"][0]["running_sessions"], 1, "operators see how busy the fleet is");
        let text = seen.to_string();
        assert!(!text.contains("secret") && !runs.iter().any(|run| text.contains(run.as_str())), "{text}");
    }
    let seen = operator.one(&["top", "--once", "--tenant", "acme"]).await;
    assert_eq!(seen["running"][0]["run_id"], runs[0].as_str());
    let unknown = operator.run(&["top", "--once", "--tenant", "nobody", "--json"]).await;
    assert_eq!(unknown.error(), ("tenant_not_found".to_owned(), "tenant".to_owned()));
    let (_, reader) = cluster.services.create_key("acme", &["write", "admin"]).await;
    let refused = anonymous.with_key(&reader).run(&["top", "--once", "--json"]).await;
    assert_eq!(refused.error().0, "permission_denied");
    assert_eq!(anonymous.run(&["top", "--once", "--json"]).await.error().0, "unauthenticated");
}
