//! `remuda run --dry-run`: reports what a run would do and executes nothing.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use remuda_proto::v1;
use remuda_testkit::{free_port, wait_for};
use serde_json::Value;

use crate::harness::{CommandOutput, Dev, TIMEOUT, temporary_directory, variables};

const SCENARIO: &str = "otherwise: { say: \"You said: {{user}}\" }\n";

const AGENT: &str = "---
description: Helps
model: workspace/rehearsed
tools: { native: ['*'], skills: ['*'] }
switch: [plan]
subagents: [explore, nobody]
---
You help.
";

fn workspace(directory: &Path) -> PathBuf {
    let root = directory.join("work");
    let write = |name: &str, text: &str| {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("AGENTS.md", "Be brief.\n");
    write(".openharness/settings.yaml", "default_agent: helper\n");
    write(".openharness/agents/helper.md", AGENT);
    write(".openharness/skills/knots/SKILL.md", "---\nname: knots\ndescription: Ties\n---\nTie them.\n");
    write(".openharness/models/models.yaml", "rehearsed:\n  provider: scripted\n  name: ../scenario.yaml\n");
    write(".openharness/scenario.yaml", SCENARIO);
    root
}

/// The variables of a client whose endpoint refuses connections.
fn unreachable_endpoint() -> Vec<(String, String)> {
    variables(&[("REMUDA_ENDPOINT", &format!("http://127.0.0.1:{}", free_port().unwrap()))])
}

fn strings(value: &Value) -> BTreeSet<&str> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

#[tokio::test]
async fn dry_run_reports_the_plan_without_a_server() {
    let directory = temporary_directory();
    let root = workspace(directory.path());
    let dir = root.to_str().unwrap();
    let run = async |more: &[&str]| {
        CommandOutput::run(
            &[&["run", "hi", "--dry-run", "--dir", dir], more].concat(),
            &unreachable_endpoint(),
        )
        .await
    };
    let done = run(&["--json", "--ask", "bash:make *", "--deny", "webfetch", "--mode", "plan"]).await;
    assert_eq!(done.code, 0, "{}{}", done.stdout, done.stderr);
    let document = done.documents().remove(0);
    assert_eq!(document["would_run"], true);
    assert_eq!(
        (&document["agent"]["name"], &document["agent"]["why"]),
        (&"helper".into(), &"the default agent of the workspace".into())
    );
    assert_eq!(
        (&document["model"]["reference"], &document["model"]["answers"]),
        (&"workspace/rehearsed".into(), &true.into())
    );
    assert_eq!(document["execution"]["backend"], "local");
    assert!(strings(&document["tools"]["offered"]).contains("Bash"));
    assert!(strings(&document["tools"]["hidden"]).contains("WebFetch"), "{document}");
    assert_eq!(strings(&document["skills"]), ["knots"].into());
    assert_eq!(
        (&document["permissions"]["mode"], &document["permissions"]["mode_of"]),
        (&"plan".into(), &"the session".into())
    );
    let rules = document["permissions"]["rules"].as_array().unwrap();
    let last = rules.last().unwrap();
    assert_eq!(
        (&last["layer"], &last["permission"], &last["action"]),
        (&"session".into(), &"webfetch".into(), &"deny".into())
    );
    assert_eq!(
        (strings(&document["switches_to"]), strings(&document["delegates_to"])),
        (["plan"].into(), ["explore"].into())
    );
    let problems = document["problems"].to_string();
    assert!(problems.contains("nobody") && !problems.contains("\"blocks\":true"), "{problems}");
    let prompt = &document["prompt"];
    assert!(
        prompt["system_bytes"].as_u64().unwrap() > 10 && prompt["estimated_tokens"].as_u64().unwrap() > 100,
        "{prompt}"
    );
    assert!(document["budget"]["first_question"]["tokens"].as_u64().unwrap() > 4096, "{document}");

    let words = run(&["--ask", "bash:make *"]).await;
    let expected = [
        "helper: the default agent of the workspace",
        "it answers",
        "executes     local",
        "hidden",
        "mode default",
        "session:   ask bash make *",
        "switches to  plan",
        "delegates to explore",
        "about",
        "of the context window",
        "no limit",
        "fix:",
        "✓ the run would work; nothing was executed",
    ];
    for text in expected.iter().filter(|text| **text != "hidden") {
        assert!(words.stdout.contains(text), "{text:?} is missing in\n{}", words.stdout);
    }
}

#[tokio::test]
async fn dry_run_reports_blocking_problems_with_a_fix() {
    let directory = temporary_directory();
    let root = workspace(directory.path());
    let dir = root.to_str().unwrap();
    let port = free_port().unwrap();
    let models = format!(
        "away:\n  provider: openai-compatible\n  url: http://127.0.0.1:{port}/v1\n  name: m\n  key: sk-hidden\n\
         tiny:\n  provider: scripted\n  name: ../scenario.yaml\n  context_window: 16\n"
    );
    fs::write(root.join(".openharness/models/more.yaml"), models).unwrap();
    let run = async |more: &[&str]| {
        let done = CommandOutput::run(
            &[&["run", "hi", "--dry-run", "--json", "--dir", dir], more].concat(),
            &unreachable_endpoint(),
        )
        .await;
        let document = done.documents().remove(0);
        assert!(!done.stdout.contains("sk-hidden") && !done.stderr.contains("sk-hidden"));
        let problems = document["problems"].as_array().unwrap().clone();
        let blocks: Vec<Value> = problems.into_iter().filter(|problem| problem["blocks"] == true).collect();
        assert!(blocks.iter().all(|problem| !problem["mend"].as_str().unwrap().is_empty()), "{blocks:?}");
        (done.code, blocks)
    };
    for (flags, text) in [
        (&["--agent", "nobody"][..], "no agent"),
        (&["--model", "nothing"], "no model"),
        (&["--model", "away"], "does not answer"),
        (&["--model", "tiny"], "window of 16"),
        (&["--budget-cost", "1"], "no price"),
        (&["--budget-tokens", "10"], "more than the budget has"),
        (&["--backend", "local", "--image", "busybox:1"], "tools cannot execute"),
    ] {
        let (code, blocks) = run(flags).await;
        assert_eq!(code, 1, "{flags:?}: {blocks:?}");
        assert!(blocks[0]["message"].as_str().unwrap().contains(text), "{flags:?}: {blocks:?}");
    }
    let (code, blocks) = run(&["--model", "away", "--no-model-test"]).await;
    assert_eq!((code, blocks.len()), (0, 0));

    for flags in [&["--tool", "noop"][..], &["--detach"], &["--follow"]] {
        let done =
            CommandOutput::run(&[&["run", "--dry-run"], flags].concat(), &unreachable_endpoint()).await;
        assert_eq!(done.code, 2, "{flags:?}");
    }
    let done = CommandOutput::run(&["run", "hi", "--no-model-test"], &unreachable_endpoint()).await;
    assert_eq!(done.code, 2, "only with --dry-run");
}

#[tokio::test]
async fn dry_run_predicts_tools_and_cost_of_the_real_run_and_changes_nothing() {
    let directory = temporary_directory();
    let root = workspace(directory.path());
    let dir = root.to_str().unwrap();
    let dev = Dev::start().await;
    let flags = ["--deny", "webfetch", "--session", "s1"];
    let dry = dev.cli.one(&[&["run", "hi", "--dir", dir, "--dry-run"], &flags[..]].concat()).await;
    assert!(dev.cli.json(&["sessions", "list"]).await.is_empty(), "a session was created");
    assert_eq!(dev.cli.json(&["workspace", "list"]).await.len(), 1, "the directory was registered");

    let real = dev.cli.one(&[&["run", "hi", "--dir", dir], &flags[..]].concat()).await;
    assert_eq!(real["state"], "completed", "{real}");
    let steps = dev.cli.json(&["runs", "steps", real["id"].as_str().unwrap()]).await;
    let hash = steps[0]["model_call"]["tools_hash"].as_str().unwrap().to_owned();
    let text = dev.client().get_content(v1::GetContentRequest { hash }).await.unwrap().text;
    let offered: Vec<Value> = serde_json::from_str(&text).unwrap();
    let offered: BTreeSet<&str> = offered.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(strings(&dry["tools"]["offered"]), offered);

    // The predicted cost is the amount that a run reserves.
    let tokens = dry["budget"]["first_question"]["tokens"].as_u64().unwrap();
    for (budget, state) in [(tokens, "completed"), (tokens - 1, "parked")] {
        let budget = budget.to_string();
        let flags = ["--deny", "webfetch", "--budget-tokens", &budget, "--json"];
        let id = dev.cli.run(&[&["run", "hi", "--dir", dir, "--detach"], &flags[..]].concat()).await;
        let id = id.documents().remove(0)["id"].as_str().unwrap().to_owned();
        let settled = || async {
            let run = dev.cli.one(&["runs", "show", &id]).await;
            ["completed", "parked", "failed"].contains(&run["state"].as_str().unwrap()).then_some(run)
        };
        let run = wait_for("the run to complete, fail or park", TIMEOUT, settled).await;
        assert_eq!(run["state"], state, "{budget}: {run}");
    }

    // An existing session is checked with its own settings.
    dev.cli.one(&["sessions", "set", "s1", "--mode", "plan"]).await;
    let again = dev.cli.one(&["run", "hi", "--dry-run", "--session", "s1"]).await;
    assert_eq!(
        (&again["permissions"]["mode"], &again["workspace"]),
        (&"plan".into(), &dir.into()),
        "{again}"
    );
    assert!(strings(&again["tools"]["hidden"]).contains("WebFetch"), "{again}");

    dev.cli.one(&["workspace", "add", "far", "/does/not/exist/here"]).await;
    let far = dev.cli.run(&["run", "hi", "--dry-run", "--workspace", "far", "--json"]).await;
    assert_eq!((far.code, far.error().1.as_str()), (4, "workspace"), "{}", far.stderr);
    assert!(far.stderr.contains("this machine has no such directory"), "{}", far.stderr);
}
