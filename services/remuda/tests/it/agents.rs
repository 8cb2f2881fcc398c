//! An agent that reads, edits and tests a small program (`examples/repair`): embedded and on a cluster, on the worker and in
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
    api::{history, state, wait_for_end},
    cluster::Cluster,
    harness::{Cli, Dev, temporary_directory},
};

const REQUEST: &str = "The tests fail. Please mend the program.";

/// Copies the example into `directory` and makes the copy readable for every user.
fn copy_repair_example(directory: &Path) -> PathBuf {
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

/// Returns the messages of a session as text lines, without ids and times.
pub(crate) async fn transcript(cli: &Cli, session: &str) -> Vec<String> {
    let messages = cli.json(&["sessions", "messages", session]).await;
    messages.iter().flat_map(message_lines).collect()
}

fn message_lines(message: &Value) -> Vec<String> {
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

/// Runs the agent on the broken program, checks that the program works, and returns the transcript.
async fn repair(cli: &Cli, project: &Path, session: &str, more: &[&str]) -> Vec<String> {
    let arguments = ["run", REQUEST, "--session", session, "--dir", project.to_str().unwrap()];
    let done = cli.run(&[&arguments, more].concat()).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(done.stdout.contains("All three checks pass now."), "{}", done.stdout);
    let program = fs::read_to_string(project.join("count.sh")).unwrap();
    assert!(program.contains("wc -w"), "{program}");
    let transcript = transcript(cli, session).await;
    assert_eq!(transcript.iter().filter(|line| line.contains(" calls ")).count(), 5, "{transcript:?}");
    assert!(transcript.iter().any(|line| line.contains("2 failed")), "{transcript:?}");
    assert!(transcript.iter().any(|line| line.contains("0 failed")), "{transcript:?}");
    transcript
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_repairs_a_program_on_the_worker_and_in_a_container() {
    let docker = std::env::var("DOCKER_HOST").expect("DOCKER_HOST is not set: run `cargo xtask test`");
    let image = BusyboxImage::import(&docker, &format!("agents-{}", std::process::id())).unwrap();
    let host = format!("docker.host={docker}");
    let dev = Dev::start_with(&["--set", &host]).await;
    let (first, second) = (temporary_directory(), temporary_directory());
    let local = repair(&dev.cli, &copy_repair_example(first.path()), "local", &[]).await;
    let flags = ["--backend", "docker", "--image", image.name.as_str()];
    let project = copy_repair_example(second.path());
    let in_container = repair(&dev.cli, &project, "boxed", &flags).await;
    assert_eq!(in_container, local);
    let backends: HashSet<String> = dev
        .cli
        .json(&["sessions", "messages", "boxed"])
        .await
        .iter()
        .flat_map(|message| message["parts"].as_array().unwrap().clone())
        .filter(|part| part["outcome"]["tool"] == "Bash")
        .map(|part| part["outcome"]["place"]["backend"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(backends, HashSet::from(["docker".to_owned()]));
    // The same session continues, and the agent sees that the program already works.
    let again = dev.cli.one(&["run", "And now?", "--session", "boxed"]).await;
    assert_eq!(again["answer"], "All checks pass already, there is nothing to mend.", "{again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_repairs_a_program_on_a_cluster() {
    let nats = nats_binaries().remove(0);
    let docker = std::env::var("DOCKER_HOST").expect("DOCKER_HOST is not set: run `cargo xtask test`");
    let image = BusyboxImage::import(&docker, &format!("cluster-{}", std::process::id())).unwrap();
    let mut cluster = Cluster::start(&nats, 0).await;
    cluster.workers.push(cluster.services.serve(&["worker"], &[("REMUDA_DOCKER__HOST", &docker)]).await);
    let (first, second) = (temporary_directory(), temporary_directory());
    let (local, boxed) = (copy_repair_example(first.path()), copy_repair_example(second.path()));
    cluster.register(&local).await;
    cluster.register(&boxed).await;
    let local = repair(&cluster.cli, &local, "local", &[]).await;
    let flags = ["--backend", "docker", "--image", image.name.as_str()];
    let in_container = repair(&cluster.cli, &boxed, "boxed", &flags).await;
    assert_eq!(in_container, local);
    // The text arrives as deltas through NATS and the stream service.
    let followed = cluster.cli.json(&["run", "And now?", "--session", "local", "--follow"]).await;
    let pieces = followed.iter().filter(|it| it["type"] == "message.delta" && it["kind"] == "text");
    let text: String = pieces.filter_map(|piece| piece["text"].as_str()).collect();
    assert!(!text.is_empty(), "{followed:?}");
}

/// Submits without waiting and returns the id of the run.
async fn submit(cli: &Cli, project: &Path, session: &str) -> String {
    let arguments = ["run", REQUEST, "--session", session, "--dir", project.to_str().unwrap(), "--detach"];
    let done = cli.run(&arguments).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    done.stdout.trim().to_owned()
}

/// Waits for the nth event of the run. Returns false if the run ended before.
async fn wait_for_event(client: &Client, run: &str, nth: usize) -> bool {
    let mut events = client.follow(Target::Run(run.to_owned()), 0);
    for _ in 0..nth {
        match events.next().await {
            Some(event) if terminal_state(event.as_ref().unwrap()).is_none() => {}
            _ => return false,
        }
    }
    true
}

/// Asserts that no completed model call and no ended tool call was started again.
fn assert_nothing_repeated(events: &[v1::Event]) {
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
async fn sigkill_at_every_event_repeats_nothing_and_yields_the_same_transcript() {
    let temp = temporary_directory();
    let mut dev = Dev::start().await;
    let whole = repair(&dev.cli, &copy_repair_example(&temp.path().join("whole")), "whole", &[]).await;
    let (mut kills, mut same) = (0, 0);
    for nth in 1.. {
        let session = format!("killed-{nth}");
        let project = copy_repair_example(&temp.path().join(&session));
        let run = submit(&dev.cli, &project, &session).await;
        if !wait_for_event(&dev.client(), &run, nth).await {
            break;
        }
        dev = dev.crash_and_restart().await;
        kills += 1;
        let client = dev.client();
        let ended = wait_for_end(&client, &run).await;
        assert_eq!(state(&ended), RunState::Completed, "killed at event {nth}: {:?}", ended.failure);
        assert_nothing_repeated(&history(&client, &session).await);
        let transcript = transcript(&dev.cli, &session).await;
        let interrupted = transcript.iter().any(|line| line.contains("\"interrupted\""));
        if !interrupted {
            assert_eq!(transcript, whole, "killed at event {nth}");
            same += 1;
        }
    }
    assert!(kills >= 20, "{kills} kills");
    assert!(same >= 10, "{same} of {kills} runs have the same transcript");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_worker_resumes_the_agent_run_of_a_killed_worker() {
    let nats = nats_binaries().remove(0);
    let mut cluster = Cluster::start(&nats, 2).await;
    let temp = temporary_directory();
    let project = copy_repair_example(temp.path());
    cluster.register(&project).await;
    let run = submit(&cluster.cli, &project, "s1").await;
    // In the middle: the first command has run and the second model call has started.
    assert!(wait_for_event(&cluster.client(), &run, 9).await);
    let owner = crate::api::session(&cluster.client(), "s1").await.worker_id;
    for worker in &mut cluster.workers {
        if worker.worker_id().await == owner {
            worker.process.signal(Signal::SIGKILL);
        }
    }
    let ended = wait_for_end(&cluster.client(), &run).await;
    assert_eq!((state(&ended), ended.attempt), (RunState::Completed, 2), "{:?}", ended.failure);
    assert_nothing_repeated(&history(&cluster.client(), "s1").await);
}

/// A scripted model that recognises the agent by its prompt and its tools, and calls one of them.
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
async fn agents_of_other_systems_run_unchanged() {
    let temp = temporary_directory();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/workspace/tests/fixtures");
    let prompt = fs::read_to_string(fixtures.join("opencode/prompts/build.txt")).unwrap();
    let models = temp.path().join("models");
    fs::create_dir_all(&models).unwrap();
    fs::write(models.join("mirror.yaml"), "mirror: { provider: scripted, name: ../mirror.txt }\n").unwrap();
    fs::write(temp.path().join("mirror.txt"), MIRROR.replace("{build}", prompt.lines().next().unwrap()))
        .unwrap();
    let directory = format!("platform.models_dir={}", models.display());
    let dev =
        Dev::start_with(&["--set", &directory, "--set", "platform.default_model=platform/mirror"]).await;
    for (system, agent) in [("opencode", "build"), ("codingcode", "code-searcher")] {
        let project = temp.path().join(system);
        copy_tree(&fixtures.join(system), &project);
        fs::write(project.join("hay.txt"), "hay\na needle\nhay\n").unwrap();
        let arguments = ["run", "Where is it?", "--agent", agent, "--dir", project.to_str().unwrap()];
        let run = dev.cli.one(&arguments).await;
        assert_eq!(run["state"], "completed", "{run}");
        let answer = run["answer"].as_str().unwrap();
        assert!(answer.starts_with("Found:"), "{system}: {answer}");
    }
    // A sub-agent cannot lead a run, and a disabled agent does not exist.
    for (system, agent, code) in
        [("opencode", "review", "agent_not_allowed"), ("codingcode", "plan", "agent_not_found")]
    {
        let project = temp.path().join(system);
        let arguments = ["run", "Hello?", "--agent", agent, "--dir", project.to_str().unwrap(), "--json"];
        let refused = dev.cli.run(&arguments).await;
        assert_eq!(refused.documents().last().unwrap()["failure"]["code"], code, "{}", refused.stdout);
    }
}
