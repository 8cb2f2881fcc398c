//! `remuda run --dry-run`: what would happen, and that nothing does.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use remuda_proto::v1;
use remuda_testkit::{free_port, wait_for};
use serde_json::Value;

use crate::harness::{Dev, Done, PATIENCE, temporary_directory, variables};

const SCENARIO: &str = "otherwise: { say: \"You said: {{user}}\" }\n";

const AGENT: &str = "---
description: Helps
model: workspace/rehearsed
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

/// Where nobody listens.
fn nowhere() -> Vec<(String, String)> {
    variables(&[("REMUDA_ENDPOINT", &format!("http://127.0.0.1:{}", free_port().unwrap()))])
}

fn texts(value: &Value) -> BTreeSet<&str> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

#[tokio::test]
async fn it_says_what_would_happen_without_a_server() {
    let directory = temporary_directory();
    let root = workspace(directory.path());
    let dir = root.to_str().unwrap();
    let run = async |more: &[&str]| {
        Done::run(&[&["run", "hi", "--dry-run", "--dir", dir], more].concat(), &nowhere()).await
    };
    let done = run(&["--json", "--ask", "bash:make *", "--deny", "webfetch", "--mode", "plan"]).await;
    assert_eq!(done.code, 0, "{}{}", done.stdout, done.stderr);
    let document = done.documents().remove(0);
    assert_eq!(document["would_run"], true);
    assert_eq!(
        (&document["agent"]["name"], &document["agent"]["why"]),
        (&"helper".into(), &"it is the default agent here".into())
    );
    assert_eq!(
        (&document["model"]["reference"], &document["model"]["answers"]),
        (&"workspace/rehearsed".into(), &true.into())
    );
    assert_eq!(document["execution"]["backend"], "local");
    assert!(texts(&document["tools"]["offered"]).contains("Bash"));
    assert!(texts(&document["tools"]["hidden"]).contains("WebFetch"), "{document}");
    assert_eq!(texts(&document["skills"]), ["knots"].into());
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
        (texts(&document["switches_to"]), texts(&document["delegates_to"])),
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
    let told = [
        "helper: it is the default agent",
        "it answers",
        "executes     local",
        "hidden",
        "mode default",
        "session:   ask bash make *",
        "switches to  plan",
        "delegates to explore",
        "about",
        "of the window",
        "no limit",
        "mend:",
        "✓ it would run; nothing was executed",
    ];
    for text in told.iter().filter(|text| **text != "hidden") {
        assert!(words.stdout.contains(text), "{text:?} is missing in\n{}", words.stdout);
    }
}

#[tokio::test]
async fn what_keeps_a_run_from_working_is_told_with_how_to_mend_it() {
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
        let done =
            Done::run(&[&["run", "hi", "--dry-run", "--json", "--dir", dir], more].concat(), &nowhere())
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
        (&["--backend", "local", "--image", "busybox:1"], "nowhere to execute"),
    ] {
        let (code, blocks) = run(flags).await;
        assert_eq!(code, 1, "{flags:?}: {blocks:?}");
        assert!(blocks[0]["message"].as_str().unwrap().contains(text), "{flags:?}: {blocks:?}");
    }
    let (code, blocks) = run(&["--model", "away", "--no-model-test"]).await;
    assert_eq!((code, blocks.len()), (0, 0));

    for flags in [&["--tool", "noop"][..], &["--detach"], &["--follow"]] {
        let done = Done::run(&[&["run", "--dry-run"], flags].concat(), &nowhere()).await;
        assert_eq!(done.code, 2, "{flags:?}");
    }
    let done = Done::run(&["run", "hi", "--no-model-test"], &nowhere()).await;
    assert_eq!(done.code, 2, "only with --dry-run");
}

#[tokio::test]
async fn it_foretells_the_tools_of_the_real_run_and_does_nothing_itself() {
    let directory = temporary_directory();
    let root = workspace(directory.path());
    let dir = root.to_str().unwrap();
    let dev = Dev::start().await;
    let flags = ["--deny", "webfetch", "--session", "s1"];
    let dry = dev.cli.one(&[&["run", "hi", "--dir", dir, "--dry-run"], &flags[..]].concat()).await;
    assert!(dev.cli.json(&["sessions", "list"]).await.is_empty(), "no session was made");
    assert_eq!(dev.cli.json(&["workspace", "list"]).await.len(), 1, "nor was the directory registered");

    let real = dev.cli.one(&[&["run", "hi", "--dir", dir], &flags[..]].concat()).await;
    assert_eq!(real["state"], "completed", "{real}");
    let steps = dev.cli.json(&["runs", "steps", real["id"].as_str().unwrap()]).await;
    let hash = steps[0]["model_call"]["tools_hash"].as_str().unwrap().to_owned();
    let text = dev.client().get_content(v1::GetContentRequest { hash }).await.unwrap().text;
    let offered: Vec<Value> = serde_json::from_str(&text).unwrap();
    let offered: BTreeSet<&str> = offered.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(texts(&dry["tools"]["offered"]), offered);

    // What it says of the cost is what a run wants to have held.
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
        let run = wait_for("the run to come so far", PATIENCE, settled).await;
        assert_eq!(run["state"], state, "{budget}: {run}");
    }

    // A session that exists is looked at as it is.
    dev.cli.one(&["sessions", "set", "s1", "--mode", "plan"]).await;
    let again = dev.cli.one(&["run", "hi", "--dry-run", "--session", "s1"]).await;
    assert_eq!(
        (&again["permissions"]["mode"], &again["workspace"]),
        (&"plan".into(), &dir.into()),
        "{again}"
    );
    assert!(texts(&again["tools"]["hidden"]).contains("WebFetch"), "{again}");

    dev.cli.one(&["workspace", "add", "far", "/does/not/exist/here"]).await;
    let far = dev.cli.run(&["run", "hi", "--dry-run", "--workspace", "far", "--json"]).await;
    assert_eq!((far.code, far.error().1.as_str()), (4, "workspace"), "{}", far.stderr);
    assert!(far.stderr.contains("this machine has no such directory"), "{}", far.stderr);
}
