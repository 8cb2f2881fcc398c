//! Budgets: from the flag to the run that parks and resumes.

use std::{fs, path::PathBuf};

use remuda_domain::{Code, RunId};
use remuda_proto::v1::{self, set_budget_request::Of};
use remuda_testkit::wait_for;
use tempfile::TempDir;

use crate::{
    api::{noop, submission},
    bad_input::{invalid, refused},
    harness::{CommandOutput, Dev, TIMEOUT, temporary_directory},
};

const SCENARIO: &str = r#"
otherwise: { say: "You said: {{user}}", usage: { input: 1000, output: 100 } }
"#;

/// One dollar per million input tokens, ten per million output tokens.
const MODELS: &str = "
priced:
  provider: scripted
  name: ../scenario.yaml
  price: { input: 1, output: 10 }
free:
  provider: scripted
  name: ../scenario.yaml
";

struct Fixture {
    dev: Dev,
    root: PathBuf,
    // Dropped after the server that uses it.
    _directory: TempDir,
}

impl Fixture {
    async fn new() -> Self {
        let directory = temporary_directory();
        let root = directory.path().join("work");
        let write = |name: &str, text: &str| {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(".openharness/settings.yaml", "default_agent: helper\n");
        write(
            ".openharness/agents/helper.md",
            "---\ndescription: Helps\ntools: { native: ['*'] }\n---\nYou help.\n",
        );
        write(".openharness/models/models.yaml", MODELS);
        write(".openharness/scenario.yaml", SCENARIO);
        Self { dev: Dev::start().await, root, _directory: directory }
    }

    async fn send_message(&self, more: &[&str]) -> CommandOutput {
        let dir = self.root.to_str().unwrap();
        self.dev.cli.run(&[&["run", "hello", "--dir", dir], more].concat()).await
    }

    async fn wait_until_parked(&self, run: &str) {
        let parked = || async { self.dev.cli.one(&["runs", "show", run]).await["park_reason"] == "budget" };
        wait_for("the run to wait for its budget", TIMEOUT, parked).await;
    }
}

#[tokio::test]
async fn run_over_budget_parks_and_resumes_when_the_budget_is_raised() {
    let fixture = Fixture::new().await;
    let started = fixture.send_message(&["--model", "priced", "--budget-tokens", "100", "--detach"]).await;
    assert_eq!(started.code, 0, "{}", started.stderr);
    let run = started.stdout.trim();
    fixture.wait_until_parked(run).await;
    let explained = fixture.dev.cli.one(&["explain", run]).await;
    let wait = &explained["waits"][0];
    assert_eq!((&wait["kind"], &wait["id"]), (&"budget".into(), &run.into()), "{explained}");
    assert_eq!(wait["budget"]["limit"]["tokens"], 100);
    let needed = wait["needed"]["tokens"].as_u64().unwrap();
    let hint = explained["hint"].as_str().unwrap();
    assert!(needed > 4096 && hint.ends_with(&format!(" --tokens {needed}")), "{explained}");
    assert!(explained["hint"].as_str().unwrap().starts_with("remuda budget set run_"), "{explained}");
    let words = fixture.dev.cli.run(&["explain", run]).await.stdout;
    assert!(words.contains("0 of 100 tokens") && words.contains("remuda budget set"), "{words}");

    let raised = fixture.dev.cli.one(&["budget", "set", run, "--tokens", "1M"]).await;
    assert_eq!(raised["resumed_run_ids"][0], run, "{raised}");
    assert_eq!(fixture.dev.cli.run(&["runs", "wait", run]).await.code, 0);
    let shown = fixture.dev.cli.one(&["budget", "show", run]).await;
    assert_eq!(shown["budget"]["limit"]["tokens"], 1_000_000, "{shown}");
    assert_eq!(shown["budget"]["spent"]["tokens"], 1100, "{shown}");
    assert_eq!(shown["budget"]["reserved"]["tokens"], 0, "{shown}");
    // 1000 tokens at one dollar and 100 at ten dollars per million.
    assert_eq!(shown["tree_spent"]["cost_micros"], 2000, "{shown}");
    let words = fixture.dev.cli.run(&["runs", "show", run]).await.stdout;
    assert!(words.contains("$0.002") && words.contains("1.1k of 1.0M tokens"), "{words}");
    let list = fixture.dev.cli.run(&["runs", "list"]).await.stdout;
    assert!(list.contains("COST") && list.contains("$0.002"), "{list}");
}

#[tokio::test]
async fn session_budget_applies_and_a_cost_budget_needs_a_price() {
    let fixture = Fixture::new().await;
    let unpriced = fixture.send_message(&["--model", "free", "--budget-cost", "1", "--json"]).await;
    assert_eq!(unpriced.code, 1, "{}", unpriced.stderr);
    assert_eq!(unpriced.documents().last().unwrap()["failure"]["code"], "model_unpriced");

    let create = ["sessions", "create", "s1", "--budget-cost", "0.000001"];
    let session = fixture.dev.cli.one(&create).await;
    assert_eq!(session["budget"]["limit"]["micros"], 1, "{session}");
    assert_eq!(
        fixture.dev.cli.run(&["run", "--tool", "noop", "--session", "s1"]).await.code,
        0,
        "tools cost nothing"
    );
    let shown = fixture.dev.cli.run(&["budget", "show", "s1"]).await.stdout;
    assert!(shown.contains("$0.00 of $0.000001") && shown.contains("nothing yet"), "{shown}");
    let more = fixture.dev.cli.one(&["budget", "set", "s1", "--tokens", "5k"]).await;
    assert_eq!(
        more["budget"]["limit"],
        serde_json::json!({ "tokens": 5000, "micros": 1 }),
        "the other one stays"
    );
    let none = fixture.dev.cli.one(&["budget", "set", "s1", "--tokens", "none"]).await;
    assert_eq!(none["budget"]["limit"], serde_json::json!({ "micros": 1 }));
}

#[tokio::test]
async fn sessions_tree_shows_child_sessions() {
    let dev = Dev::start().await;
    for (name, parent) in [("root", ""), ("left", "root"), ("right", "root"), ("leaf", "left")] {
        dev.cli
            .one(&["sessions", "create", name, "--parent", parent, "--agent", &format!("agent-{name}")])
            .await;
    }
    dev.cli.run(&["run", "--tool", "noop", "--session", "leaf"]).await;
    let tree = dev.cli.run(&["sessions", "tree", "root"]).await.stdout;
    let lines: Vec<&str> = tree.lines().collect();
    let expected = [
        "agent-root  root  no run yet",
        "├─ agent-left  left  no run yet",
        "│  └─ agent-leaf  leaf  completed",
        "└─ agent-right  right  no run yet",
    ];
    assert_eq!(lines, expected);
    let documents = dev.cli.json(&["sessions", "tree", "left"]).await;
    assert_eq!(documents.len(), 2);
    assert_eq!(
        (&documents[1]["newest_run"]["state"], &documents[1]["depth"]),
        (&"completed".into(), &2.into())
    );
    assert_eq!(dev.cli.run(&["sessions", "tree", "nothing"]).await.code, 4);
}

#[tokio::test]
async fn invalid_budgets_are_refused_with_the_field() {
    let dev = Dev::start().await;
    let client = dev.client();
    let limit = |tokens: Option<u64>, micros: Option<u64>| Some(v1::Limit { tokens, micros });
    for (what, limit, field) in [
        ("no tokens", limit(Some(0), None), "budget.tokens"),
        ("no money", limit(Some(1), Some(0)), "budget.cost"),
    ] {
        let request = v1::CreateSessionRequest { budget: limit, ..Default::default() };
        refused(what, client.create_session(request).await, invalid(field));
        let request = v1::SubmitRunRequest { budget: limit, ..submission("s1", vec![noop(0)]) };
        refused(what, client.submit(request).await, invalid(field));
    }
    let unknown = RunId::new().to_string();
    for (what, of, limit, expected) in [
        ("nothing to set it of", None, limit(Some(1), None), invalid("of")),
        ("no limit", Some(Of::RunId(unknown.clone())), None, invalid("limit")),
        ("a limit of nothing", Some(Of::RunId(unknown)), limit(Some(0), None), invalid("limit.tokens")),
        ("half an id", Some(Of::RunId("run_x".into())), limit(Some(1), None), invalid("run_id")),
        ("a bad name", Some(Of::Session("a\nb".into())), limit(Some(1), None), invalid("session")),
        (
            "no such session",
            Some(Of::Session("nope".into())),
            limit(Some(1), None),
            (Code::SessionNotFound, "session"),
        ),
    ] {
        refused(what, client.set_budget(v1::SetBudgetRequest { of, limit }).await, expected);
    }
    for flags in [
        &["--budget-cost", "0"][..],
        &["--budget-cost", "-1"],
        &["--budget-cost", "0.0000001"],
        &["--budget-cost", "much"],
        &["--budget-tokens", "0"],
        &["--budget-tokens", "1.5"],
        &["--budget-tokens", "99999999999999999999"],
    ] {
        let done = dev.cli.run(&[&["run", "--tool", "noop"], flags].concat()).await;
        assert_eq!(done.code, 2, "{flags:?}: {}", done.stderr);
    }
    assert_eq!(dev.cli.run(&["budget", "set", "s1"]).await.code, 2, "a limit is required");
    assert_eq!(dev.cli.run(&["budget", "show", "nothing"]).await.code, 4);
}
