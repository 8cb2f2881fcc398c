//! Planner, builder and reviewer (`examples/team`): agent switches and delegation to sub-agents.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use remuda_domain::RunState;
use remuda_testkit::{nats_binaries, wait_for};

use crate::{
    agents::{copy_tree, transcript},
    api::{history, state, wait_for_end},
    cluster::Cluster,
    harness::{Cli, Dev, TIMEOUT, pids, temporary_directory, wait_until_gone},
};

const REQUEST: &str = "count.sh should be able to count lines, with -l.";

fn copy_team_example(directory: &Path) -> PathBuf {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/team");
    let copy = directory.join("team");
    copy_tree(&example, &copy);
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    copy
}

/// Runs the team on the request, checks the resulting program, and returns the transcript.
async fn run_team(cli: &Cli, team: &Path) -> Vec<String> {
    let done = cli.run(&["run", REQUEST, "--session", "team", "--dir", team.to_str().unwrap()]).await;
    assert_eq!(done.code, 0, "{}\n{}", done.stdout, done.stderr);
    assert!(done.stdout.contains("the comment the reviewer missed is there"), "{}", done.stdout);
    let program = fs::read_to_string(team.join("count.sh")).unwrap();
    assert!(program.contains("or with -l how many lines"), "{program}");
    let tested = std::process::Command::new("sh").arg("test.sh").current_dir(team).output().unwrap();
    assert!(String::from_utf8_lossy(&tested.stdout).contains("0 failed"), "{tested:?}");
    let transcript = transcript(cli, "team").await;
    // Session ids differ from run to run.
    transcript.into_iter().map(|line| line.split("task_id").next().unwrap_or_default().to_owned()).collect()
}

/// Checks the order of the events between the agents.
async fn check_events(cli: &Cli) {
    let client = cli.client();
    let events = history(&client, "team").await;
    let names: Vec<&str> = events.iter().map(|event| event.r#type.as_str()).collect();
    let position = |name: &str| {
        names.iter().position(|it| *it == name).unwrap_or_else(|| panic!("there is no {name} in {names:?}"))
    };
    let order = [
        "agent.switched",
        "subagent.started",
        "run.parked",
        "run.resumed",
        "subagent.ended",
        "run.completed",
    ];
    assert!(order.windows(2).all(|pair| position(pair[0]) < position(pair[1])), "{names:?}");
    let run = cli.json(&["runs", "list", "--session", "team"]).await.remove(0);
    assert_eq!(run["state"], "completed", "{run}");
}

#[tokio::test(flavor = "multi_thread")]
async fn team_example_works_on_one_slot_and_on_a_cluster() {
    let (first, second) = (temporary_directory(), temporary_directory());
    let dev = Dev::start_with(&["--set", "worker.slots=1"]).await;
    let embedded = run_team(&dev.cli, &copy_team_example(first.path())).await;
    check_events(&dev.cli).await;

    let mut cluster = Cluster::start(&nats_binaries().remove(0), 0).await;
    cluster.workers.push(cluster.services.serve(&["worker"], &[("REMUDA_WORKER__SLOTS", "1")]).await);
    let team = copy_team_example(second.path());
    cluster.register(&team).await;
    let split = run_team(&cluster.cli, &team).await;
    check_events(&cluster.cli).await;
    assert_eq!(split, embedded);
}

/// One worker with one slot on PostgreSQL and NATS suffices: a run that waits for children holds no slot.
#[tokio::test(flavor = "multi_thread")]
async fn one_worker_with_one_slot_completes_a_tree_of_depth_3_and_width_10() {
    let temp = temporary_directory();
    let last = "otherwise: { say: grown }\n";
    let root = delegation_workspace(temp.path(), 10, "policy: { max_concurrent_subagents: 10 }\n", last);
    let mut cluster = Cluster::start(&nats_binaries().remove(0), 0).await;
    cluster.workers.push(cluster.services.serve(&["worker"], &[("REMUDA_WORKER__SLOTS", "1")]).await);
    cluster.register(&root).await;
    let done = cluster.cli.run(&["run", "grow", "--session", "tree", "--dir", root.to_str().unwrap()]).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert_eq!(done.stdout.trim(), "done");
    let runs = cluster.cli.json(&["runs", "list", "--limit", "500"]).await;
    assert_eq!(runs.len(), 111);
    assert!(runs.iter().all(|run| run["state"] == "completed"), "{runs:?}");
}

/// A workspace in which a lead delegates to diggers and these to helpers, whose model plays the scenario `last`.
fn delegation_workspace(directory: &Path, width: usize, policy: &str, last: &str) -> PathBuf {
    let root = directory.join("team");
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let agent = |name: &str, more: &str| {
        write(
            &format!(".openharness/agents/{name}.md"),
            &format!("---\nmodel: workspace/{name}\n{more}\n---\nYou are {name}.\n"),
        );
        write(
            &format!(".openharness/models/{name}.yaml"),
            &format!("{name}: {{ provider: scripted, name: ../{name}.yaml }}\n"),
        );
    };
    agent("lead", &format!("subagents: [digger]\n{policy}"));
    agent("digger", &format!("mode: subagent\nsubagents: [helper]\n{policy}"));
    agent("helper", "mode: subagent\ntools: { native: [Bash] }");
    write(".openharness/settings.yaml", "default_agent: lead\n");
    let delegate = |to: &str| {
        let call = format!("{{ tool: SubAgent, arguments: {{ subagent_type: {to}, prompt: dig }} }}");
        let calls = vec![call; width].join(", ");
        format!("turns:\n  - {{ when: {{ turn: 1 }}, call: [{calls}] }}\notherwise: {{ say: done }}\n")
    };
    write(".openharness/lead.yaml", &delegate("digger"));
    write(".openharness/digger.yaml", &delegate("helper"));
    write(".openharness/helper.yaml", last);
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    root
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_the_root_run_ends_the_tree_and_its_processes() {
    let dev = Dev::start().await;
    cancel_tree(&dev.cli, None).await;
    // The same with two workers that share the runs of the tree.
    let cluster = Cluster::start(&nats_binaries().remove(0), 2).await;
    cancel_tree(&cluster.cli, Some(&cluster)).await;
}

async fn cancel_tree(cli: &Cli, cluster: Option<&Cluster>) {
    let temp = temporary_directory();
    let last = "turns:\n  - { when: { turn: 1 }, call: [{ tool: Bash, arguments: { command: \"sleep 600 & echo $! >> pids; wait\" } }] }\n";
    let root = delegation_workspace(temp.path(), 2, "", last);
    if let Some(cluster) = cluster {
        cluster.register(&root).await;
    }
    let submitted =
        cli.run(&["run", "dig", "--session", "dig", "--dir", root.to_str().unwrap(), "--detach"]).await;
    let run = submitted.stdout.trim().to_owned();
    let file = root.join("pids").to_str().unwrap().to_owned();
    // Each of the two diggers delegates twice: four commands.
    wait_for("the commands", TIMEOUT, || std::future::ready(pids(&file).len() == 4)).await;
    let cancelled = cli.run(&["cancel", &run]).await;
    assert_eq!(cancelled.code, 0, "{}", cancelled.stderr);
    let client = cli.client();
    assert_eq!(state(&wait_for_end(&client, &run).await), RunState::Cancelled);
    wait_until_gone(&pids(&file)).await;
    let runs = cli.json(&["runs", "list"]).await;
    assert_eq!(runs.len(), 7, "{runs:?}");
    for below in &runs {
        let id = below["id"].as_str().unwrap();
        assert_eq!(state(&wait_for_end(&client, id).await), RunState::Cancelled, "{below}");
    }
}
