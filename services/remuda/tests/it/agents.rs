//! An agent that reads, edits and tests a small program (`examples/repair`): in one process and in many, on the worker and in
//! containers, and while its workers are killed.

use std::{
    collections::{HashMap, HashSet},
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use futures::StreamExt as _;
use nix::sys::signal::Signal;
use remuda_client::{Client, Target, terminal_state};
use remuda_domain::RunState;
use remuda_proto::v1;
use remuda_testkit::{BusyboxImage, nats_binaries};
use serde_json::Value;

use crate::{
    api::{finished, history, state},
    cluster::Cluster,
    harness::{Cli, Dev, temporary_directory},
};

const REQUEST: &str = "The tests fail. Please mend the program.";

/// A copy of the example that anyone may read.
fn repair_shop(directory: &Path) -> PathBuf {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/repair");
    let copy = directory.join("repair");
    copy_tree(&example, &copy);
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    copy
}

pub(crate) fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
        }
    }
}

/// What was said in a session, without ids and times.
pub(crate) async fn transcript(cli: &Cli, session: &str) -> Vec<String> {
    let messages = cli.json(&["sessions", "messages", session]).await;
    messages.iter().flat_map(lines).collect()
}

fn lines(message: &Value) -> Vec<String> {
    let role = message["role"].as_str().unwrap();
    let line = |part: &Value| match part["type"].as_str().unwrap() {
        "text" => format!("{role}: {}", part["text"]),
        "reasoning" => format!("{role} thinks: {}", part["reasoning"]["text"]),
        "tool_use" => format!("{role} calls {} {}", part["call"]["tool"], part["call"]["arguments"]),
        "tool_result" => {
            let outcome = &part["outcome"];
            format!("{} {} {}", outcome["tool"], outcome["status"], outcome["output"])
        }
        other => panic!("{other}"),
    };
    message["parts"].as_array().unwrap().iter().map(line).collect()
}

/// Has the program mended, as a user would, and checks that it was.
async fn mend(cli: &Cli, shop: &Path, session: &str, more: &[&str]) -> Vec<String> {
    let arguments = ["run", REQUEST, "--session", session, "--dir", shop.to_str().unwrap()];
    let done = cli.run(&[&arguments, more].concat()).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(done.stdout.contains("All three checks pass now."), "{}", done.stdout);
    let program = fs::read_to_string(shop.join("count.sh")).unwrap();
    assert!(program.contains("wc -w"), "{program}");
    let told = transcript(cli, session).await;
    assert_eq!(told.iter().filter(|line| line.contains(" calls ")).count(), 5, "{told:?}");
    assert!(told.iter().any(|line| line.contains("2 failed")), "{told:?}");
    assert!(told.iter().any(|line| line.contains("0 failed")), "{told:?}");
    told
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_mends_a_program_on_the_worker_and_in_a_container() {
    let docker = std::env::var("DOCKER_HOST").expect("DOCKER_HOST is not set: run `cargo xtask test`");
    let image = BusyboxImage::import(&docker, &format!("agents-{}", std::process::id())).unwrap();
    let host = format!("docker.host={docker}");
    let dev = Dev::start_with(&["--set", &host]).await;
    let (first, second) = (temporary_directory(), temporary_directory());
    let local = mend(&dev.cli, &repair_shop(first.path()), "local", &[]).await;
    let flags = ["--backend", "docker", "--image", image.name.as_str()];
    let shop = repair_shop(second.path());
    let boxed = mend(&dev.cli, &shop, "boxed", &flags).await;
    assert_eq!(boxed, local);
    let places: HashSet<String> = dev
        .cli
        .json(&["sessions", "messages", "boxed"])
        .await
        .iter()
        .flat_map(|message| message["parts"].as_array().unwrap().clone())
        .filter(|part| part["outcome"]["tool"] == "Bash")
        .map(|part| part["outcome"]["place"]["backend"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(places, HashSet::from(["docker".to_owned()]));
    // The session goes on: the program is whole now, and the agent sees it.
    let again = dev.cli.one(&["run", "And now?", "--session", "boxed"]).await;
    assert_eq!(again["answer"], "All checks pass already, there is nothing to mend.", "{again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_mends_a_program_on_a_cluster() {
    let nats = nats_binaries().remove(0);
    let docker = std::env::var("DOCKER_HOST").expect("DOCKER_HOST is not set: run `cargo xtask test`");
    let image = BusyboxImage::import(&docker, &format!("cluster-{}", std::process::id())).unwrap();
    let mut cluster = Cluster::start(&nats, 0).await;
    cluster.workers.push(cluster.services.serve(&["worker"], &[("REMUDA_DOCKER__HOST", &docker)]).await);
    let (first, second) = (temporary_directory(), temporary_directory());
    let local = mend(&cluster.cli, &repair_shop(first.path()), "local", &[]).await;
    let flags = ["--backend", "docker", "--image", image.name.as_str()];
    let boxed = mend(&cluster.cli, &repair_shop(second.path()), "boxed", &flags).await;
    assert_eq!(boxed, local);
    // What is said comes piece by piece, through NATS and the stream service.
    let followed = cluster.cli.json(&["run", "And now?", "--session", "local", "--follow"]).await;
    let pieces = followed.iter().filter(|it| it["type"] == "message.delta" && it["kind"] == "text");
    let said: String = pieces.filter_map(|piece| piece["text"].as_str()).collect();
    assert!(!said.is_empty(), "{followed:?}");
}

/// Submits without waiting; gives the run.
async fn submit(cli: &Cli, shop: &Path, session: &str) -> String {
    let arguments = ["run", REQUEST, "--session", session, "--dir", shop.to_str().unwrap(), "--detach"];
    let done = cli.run(&arguments).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    done.stdout.trim().to_owned()
}

/// Waits for the run's nth event. False if it ended before.
async fn reaches(client: &Client, run: &str, nth: usize) -> bool {
    let mut events = client.follow(Target::Run(run.to_owned()), 0);
    for _ in 0..nth {
        match events.next().await {
            Some(event) if terminal_state(event.as_ref().unwrap()).is_none() => {}
            _ => return false,
        }
    }
    true
}

/// What was finished stays finished: neither an answered question nor an ended call is ever begun again.
fn check_nothing_was_repeated(events: &[v1::Event]) {
    let mut over: HashMap<String, &str> = HashMap::new();
    for event in events {
        let data: Value = serde_json::from_str(&event.data).unwrap_or_default();
        let kind = event.r#type.as_str();
        let subject = match kind {
            "model.started" | "model.completed" => data["message"].as_str(),
            "tool.started" => data["call"].as_str(),
            "tool.completed" | "tool.failed" => data["id"].as_str(),
            _ => None,
        };
        let Some(subject) = subject.map(str::to_owned) else { continue };
        assert!(!over.contains_key(&subject), "{kind} of {subject} after {}", over[&subject]);
        if kind != "model.started" && kind != "tool.started" {
            over.insert(subject, kind);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sigkill_at_every_event_repeats_nothing_and_tells_the_same_story() {
    let place = temporary_directory();
    let mut dev = Dev::start().await;
    let whole = mend(&dev.cli, &repair_shop(&place.path().join("whole")), "whole", &[]).await;
    let (mut kills, mut same) = (0, 0);
    for nth in 1.. {
        let session = format!("killed-{nth}");
        let shop = repair_shop(&place.path().join(&session));
        let run = submit(&dev.cli, &shop, &session).await;
        if !reaches(&dev.client(), &run, nth).await {
            break;
        }
        dev = dev.crash_and_restart().await;
        kills += 1;
        let client = dev.client();
        let ended = finished(&client, &run).await;
        assert_eq!(state(&ended), RunState::Completed, "killed at event {nth}: {:?}", ended.failure);
        check_nothing_was_repeated(&history(&client, &session).await);
        let told = transcript(&dev.cli, &session).await;
        let interrupted = told.iter().any(|line| line.contains("\"interrupted\""));
        if !interrupted {
            assert_eq!(told, whole, "killed at event {nth}");
            same += 1;
        }
    }
    assert!(kills >= 20, "{kills} kills");
    assert!(same >= 10, "{same} of {kills} runs told the same story");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_worker_goes_on_where_a_killed_one_stood() {
    let nats = nats_binaries().remove(0);
    let mut cluster = Cluster::start(&nats, 2).await;
    let place = temporary_directory();
    let run = submit(&cluster.cli, &repair_shop(place.path()), "s1").await;
    // In the middle: the first command has run, the second question is asked.
    assert!(reaches(&cluster.client(), &run, 9).await);
    let owner = crate::api::session(&cluster.client(), "s1").await.worker_id;
    for worker in &mut cluster.workers {
        if worker.worker_id().await == owner {
            worker.process.signal(Signal::SIGKILL);
        }
    }
    let ended = finished(&cluster.client(), &run).await;
    assert_eq!((state(&ended), ended.attempt), (RunState::Completed, 2), "{:?}", ended.failure);
    check_nothing_was_repeated(&history(&cluster.client(), "s1").await);
}

/// Says which agent it is by its prompt and which tools it has, and uses one.
const MIRROR: &str = r#"
turns:
  - when: { turn: 1, system_contains: "You find code", tool_offered: Grep }
    call: [{ tool: Grep, arguments: { pattern: needle, output_mode: content } }]
  - when: { turn: 1, system_contains: "{build}", tool_offered: Bash }
    call: [{ tool: Bash, arguments: { command: "cat hay.txt" } }]
  - when: { turn: 1, system_contains: "You find code", tool_offered: Bash }
    say: It should only read.
  - when: { tool_result_contains: "a needle" }
    say: "Found: {{last_tool_result}}"
otherwise: { say: Somebody else. }
"#;

#[tokio::test]
async fn agents_of_other_systems_run_as_they_are() {
    let place = temporary_directory();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/workspace/tests/fixtures");
    let prompt = fs::read_to_string(fixtures.join("opencode/prompts/build.txt")).unwrap();
    let models = place.path().join("models");
    fs::create_dir_all(&models).unwrap();
    fs::write(models.join("mirror.yaml"), "mirror: { provider: scripted, name: ../mirror.txt }\n").unwrap();
    fs::write(place.path().join("mirror.txt"), MIRROR.replace("{build}", prompt.lines().next().unwrap()))
        .unwrap();
    let directory = format!("platform.models_dir={}", models.display());
    let dev =
        Dev::start_with(&["--set", &directory, "--set", "platform.default_model=platform/mirror"]).await;
    for (system, agent) in [("opencode", "build"), ("codingcode", "code-searcher")] {
        let project = place.path().join(system);
        copy_tree(&fixtures.join(system), &project);
        fs::write(project.join("hay.txt"), "hay\na needle\nhay\n").unwrap();
        let arguments = ["run", "Where is it?", "--agent", agent, "--dir", project.to_str().unwrap()];
        let run = dev.cli.one(&arguments).await;
        assert_eq!(run["state"], "completed", "{run}");
        let answer = run["answer"].as_str().unwrap();
        assert!(answer.starts_with("Found:"), "{system}: {answer}");
    }
    // One that only works for others cannot lead, and one that is disabled does not exist.
    for (system, agent, code) in
        [("opencode", "review", "agent_not_allowed"), ("codingcode", "plan", "agent_not_found")]
    {
        let project = place.path().join(system);
        let arguments = ["run", "Hello?", "--agent", agent, "--dir", project.to_str().unwrap(), "--json"];
        let refused = dev.cli.run(&arguments).await;
        assert_eq!(refused.documents().last().unwrap()["failure"]["code"], code, "{}", refused.stdout);
    }
}
