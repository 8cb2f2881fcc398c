//! Sessions that execute in containers, nowhere, or where their tenant may.

use std::{collections::HashSet, fs, process::Command, time::Duration};

use remuda_domain::{SandboxId, WorkerId};
use remuda_testkit::{BusyboxImage, wait_for};
use serde_json::Value;

use crate::{
    harness::{Cli, Dev, Done, PATIENCE},
    live_output::printed,
};

/// Within which nothing of a killed worker may be left.
const GONE_WITHIN: Duration = Duration::from_secs(30);

struct Engine {
    host: String,
    image: BusyboxImage,
}

impl Engine {
    fn new(test: &str) -> Self {
        let host = std::env::var("DOCKER_HOST").expect("DOCKER_HOST is not set: run `cargo xtask test`");
        let image = BusyboxImage::import(&host, &format!("{test}-{}", std::process::id())).unwrap();
        Self { host, image }
    }

    fn image(&self) -> &str {
        &self.image.name
    }

    fn docker(&self, arguments: &[&str]) -> String {
        let output = Command::new("docker").args(["--host", &self.host]).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// The containers that were made from this test's image.
    fn containers(&self) -> HashSet<String> {
        let filter = format!("ancestor={}", self.image.name);
        self.docker(&["ps", "--all", "--quiet", "--filter", &filter]).lines().map(str::to_owned).collect()
    }

    async fn dev(&self, more: &[&str]) -> Dev {
        let host = format!("docker.host={}", self.host);
        let dev = Dev::start_with(&[&["--set", host.as_str()], more].concat()).await;
        // The user of containers is not the one of this test: let it reach the workspace.
        let path = dev.directory.path();
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        dev
    }
}

/// Runs one command of a session in a container.
async fn boxed(cli: &Cli, engine: &Engine, session: &str, command: &str) -> Value {
    let command = format!("command={command}");
    let arguments = ["run", "--backend", "docker", "--image", engine.image(), "--session", session];
    cli.one(&[&arguments[..], &["--tool", "Bash", "--arg", &command]].concat()).await
}

fn output(run: &Value) -> &Value {
    &run["outcomes"][0]["output"]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_executes_in_a_container_of_its_own() {
    let engine = Engine::new("own");
    let dev = engine.dev(&[]).await;
    let cli = &dev.cli;
    let first =
        boxed(cli, &engine, "s1", "id -u; cat /proc/1/comm; echo from inside > f; touch /x || echo no").await;
    assert_eq!(first["state"], "completed", "{first}");
    let said = output(&first)["stdout"].as_str().unwrap();
    assert!(said.contains("remuda-supervis") && said.ends_with("no\n") && !said.starts_with("0\n"), "{said}");
    let place = &first["outcomes"][0]["place"];
    assert_eq!((&place["backend"], &place["image"]), (&Value::from("docker"), &Value::from(engine.image())));
    assert!(place["digest"].as_str().unwrap().contains("sha256:"), "{place}");

    // The file tools see the same files, and by the same names.
    let read =
        cli.one(&["run", "--session", "s1", "--tool", "Read", "--arg", "file_path=/workspace/f"]).await;
    assert!(output(&read)["content"].as_str().unwrap().contains("from inside"), "{read}");
    let again = boxed(cli, &engine, "s1", "cat f").await;
    assert_eq!(again["outcomes"][0]["place"]["sandbox_id"], place["sandbox_id"]);
    assert_eq!(engine.containers().len(), 1);
    let listed = cli.one(&["sandboxes", "list"]).await;
    assert_eq!((&listed["id"], &listed["state"]), (&place["sandbox_id"], &Value::from("active")));
    assert_eq!(listed["worker_alive"], true);

    // Each run says once where it is executed, with its first result at the latest.
    let events = follow(cli, first["id"].as_str().unwrap()).await;
    let ready: Vec<&Value> = events.iter().filter(|event| event["type"] == "sandbox.ready").collect();
    assert_eq!((ready.len(), &ready[0]["data"]), (1, place), "{events:?}");
    let position = |name: &str| events.iter().position(|event| event["type"] == name).unwrap();
    assert!(position("tool.started") < position("sandbox.ready"));
    assert!(position("sandbox.ready") < position("tool.completed"));

    // The choice is part of the session.
    let elsewhere =
        cli.run(&["run", "--session", "s1", "--backend", "local", "--tool", "noop", "--json"]).await;
    assert_eq!((elsewhere.code, elsewhere.error().0.as_str()), (8, "already_exists"));
    drop(dev);
    wait_for("the container to go with its worker", GONE_WITHIN, async || engine.containers().is_empty())
        .await;
}

/// What a command prints in a container is seen while it runs, and so is where it runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_is_watched_live() {
    let engine = Engine::new("live");
    let dev = engine.dev(&[]).await;
    let command = "command=echo first; until test -e go; do sleep 0.05; done; printf last";
    let arguments = ["run", "--backend", "docker", "--image", engine.image(), "--session", "s1"];
    let bash = ["--tool", "Bash", "--arg", command, "--follow", "--json"];
    let mut live = dev.cli.start(&[&arguments[..], &bash].concat());
    wait_for("the place and the first words", PATIENCE, || {
        let lines = live.documents();
        let is_placed = lines.iter().any(|line| line["type"] == "sandbox.ready");
        std::future::ready(is_placed && printed(&lines, "stdout") == "first\n")
    })
    .await;
    assert!(!live.stdout().contains("tool.completed"));
    fs::write(dev.directory.path().join("data/workspaces/default/go"), "").unwrap();
    assert_eq!(live.exit_code().await, 0, "{}", live.stderr());
    assert_eq!(printed(&live.documents(), "stdout"), "first\nlast");
}

/// All events of a run that has ended.
async fn follow(cli: &Cli, run: &str) -> Vec<Value> {
    cli.json(&["watch", run]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_is_refused_before_the_first_call() {
    let engine = Engine::new("refused");
    let dev = engine.dev(&[]).await;
    let cli = &dev.cli;
    let missing = cli
        .run(&[
            "run",
            "--backend",
            "docker",
            "--image",
            "nobody/has:this",
            "--tool",
            "Bash",
            "--arg",
            "command=id",
            "--json",
        ])
        .await;
    assert_eq!(missing.code, 1, "{}", missing.stderr);
    let run = &missing.documents()[0];
    assert_eq!(run["failure"]["code"], "image_not_found", "{run}");
    assert_eq!(run["outcomes"][0]["status"], "skipped");

    for (flags, code, field) in [
        (&["--backend", "docker"][..], "invalid_argument", "image"),
        (&["--backend", "docker", "--image", "--privileged"], "invalid_argument", "image"),
        (&["--backend", "local", "--image", "busybox"], "invalid_argument", "image"),
        (&["--backend", "docker", "--image", "a", "--network", "host"], "backend_not_allowed", "network"),
    ] {
        let refused = cli.run(&[&["sessions", "create", "--json"][..], flags].concat()).await;
        // A flag's value that looks like a flag never leaves the command line.
        if !flags.contains(&"--privileged") {
            let (found, message) = refused.error();
            assert_eq!(found, code, "{flags:?}: {message}");
            assert!(message.contains(field), "{flags:?}: {message}");
        }
        assert_ne!(refused.code, 0);
    }
}

#[tokio::test]
async fn a_session_that_only_talks_has_no_tools() {
    let dev = Dev::start().await;
    for tool in [&["--tool", "Bash", "--arg", "command=id"][..], &["--tool", "noop"]] {
        let arguments = [&["run", "--backend", "none", "--session", "chat", "--json"][..], tool].concat();
        let refused = dev.cli.run(&arguments).await;
        let run = &refused.documents()[0];
        assert_eq!((refused.code, &run["failure"]["code"]), (1, &Value::from("tools_disabled")), "{run}");
        assert_eq!(run["outcomes"][0]["status"], "skipped");
    }
}

#[tokio::test]
async fn a_tenants_rules_hold_when_a_session_is_made_and_when_it_executes() {
    let rules = tempfile::NamedTempFile::new().unwrap();
    let allow = |text: &str| fs::write(rules.path(), text).unwrap();
    allow("[tenants.default]\nbackends = ['local', 'docker']\nimages = ['team/*']\n");
    let file = format!("sandbox.policy_file={}", rules.path().display());
    let dev = Dev::start_with(&["--set", &file]).await;
    let create = ["sessions", "create", "--backend", "docker", "--json", "--image"];
    let refused = dev.cli.run(&[&create[..], &["busybox:1"]].concat()).await;
    assert_eq!((refused.code, refused.error().0.as_str()), (5, "image_not_allowed"), "{}", refused.stderr);
    assert_eq!(dev.cli.run(&[&create[..], &["team/tools:1"]].concat()).await.code, 0);
    let bash = ["run", "--session", "s1", "--tool", "Bash", "--arg", "command=echo hi", "--json"];
    assert_eq!(dev.cli.run(&bash).await.code, 0);

    // Tightened, also for what exists.
    allow("[tenants.default]\nbackends = ['none']\n");
    let Dev { server, directory, .. } = dev;
    drop(server);
    let dev = Dev::start_in(directory, &["--set", &file]).await;
    let ended = dev.cli.run(&bash).await;
    assert_eq!(ended.documents()[0]["failure"]["code"], "tools_disabled", "{}", ended.stdout);
}

/// The promise in numbers: ten busy containers, SIGKILL, none left, and a stranger's untouched.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_leaves_no_container() {
    let engine = Engine::new("killed");
    let stranger = engine.docker(&["run", "--detach", "--network", "none", engine.image(), "sleep", "600"]);
    let stranger = Stranger(&engine, stranger.trim().chars().take(12).collect());
    let mut dev = engine.dev(&[]).await;
    for number in 0..10 {
        let session = format!("s{number}");
        let arguments =
            ["run", "--detach", "--backend", "docker", "--image", engine.image(), "--session", &session];
        let command = format!("command=touch busy-{number}; sleep 300");
        let busy = ["--tool", "Bash", "--arg", &command];
        assert_eq!(dev.cli.run(&[&arguments[..], &busy].concat()).await.code, 0);
    }
    let workspace = dev.directory.path().join("data/workspaces/default");
    // Each in its own: one that is only half made when its worker dies is left to the next worker.
    wait_for("ten busy containers", PATIENCE, async || {
        let busy = fs::read_dir(&workspace).map(|entries| {
            entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("busy-")).count()
        });
        busy.is_ok_and(|busy| busy == 10) && engine.containers().len() == 11
    })
    .await;
    dev.server.process.kill();
    let only_the_stranger = async || engine.containers() == HashSet::from([stranger.1.clone()]);
    wait_for("all containers of the worker to go", GONE_WITHIN, only_the_stranger).await;
    assert_eq!(engine.docker(&["inspect", "--format", "{{.State.Running}}", &stranger.1]).trim(), "true");
}

/// The second line: what did not end by itself is found by its labels, and only by those.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_lost_worker_left_is_reaped() {
    let engine = Engine::new("reaped");
    let mut dev = engine.dev(&[]).await;
    boxed(&dev.cli, &engine, "s1", "true").await;
    let own = engine.containers().into_iter().next().unwrap();
    let label = "{{index .Config.Labels \"dev.remuda.installation\"}}";
    let installation = engine.docker(&["inspect", "--format", label, &own]).trim().to_owned();
    let made = |installation: &str| {
        let labels = [
            format!("dev.remuda.installation={installation}"),
            format!("dev.remuda.worker={}", WorkerId::new()),
            format!("dev.remuda.sandbox={}", SandboxId::new()),
        ];
        let labels: Vec<&str> = labels.iter().flat_map(|label| ["--label", label]).collect();
        let id = engine.docker(&[&["create"], &labels[..], &[engine.image(), "true"]].concat());
        Stranger(&engine, id.trim().chars().take(12).collect())
    };
    // Never started: nothing in it could have ended by itself.
    let (left, foreign) = (made(&installation), made("somebody-else"));
    wait_for("the container of a lost worker to go", GONE_WITHIN, async || {
        !engine.containers().contains(&left.1)
    })
    .await;
    assert_eq!(engine.containers(), HashSet::from([own, foreign.1.clone()]));

    // By hand, once there is no worker at all: what is left is the volume with the supervisor.
    dev.server.process.kill();
    let volumes = || {
        engine.docker(&[
            "volume",
            "ls",
            "--quiet",
            "--filter",
            &format!("label=dev.remuda.installation={installation}"),
        ])
    };
    assert_ne!(volumes(), "");
    let data = format!("data_dir={}", dev.directory.path().join("data").display());
    let host = format!("docker.host={}", engine.host);
    let reap = ["sandboxes", "reap", "--json", "--set", &data, "--set", &host];
    // The dead worker's lease has to end first.
    wait_for("the volume to be reaped", PATIENCE, async || {
        let reaped = Done::run(&reap, &[]).await;
        assert_eq!(reaped.code, 0, "{}", reaped.stderr);
        volumes().is_empty()
    })
    .await;
    assert_eq!(engine.containers(), HashSet::from([foreign.1.clone()]));
}

struct Stranger<'a>(&'a Engine, String);

impl Drop for Stranger<'_> {
    fn drop(&mut self) {
        self.0.docker(&["rm", "--force", &self.1]);
    }
}
