//! Execution backends: containers, no execution at all, and what a tenant's policy allows.

use std::{collections::HashSet, fs, process::Command, time::Duration};

use remuda_domain::{SandboxId, WorkerId};
use remuda_testkit::{BusyboxImage, wait_for};
use serde_json::Value;

use crate::{
    harness::{Cli, CommandOutput, Dev, TIMEOUT},
    live_output::tool_output,
};

/// How long containers of a killed worker may survive.
const GONE_WITHIN: Duration = Duration::from_secs(30);

struct DockerFixture {
    host: String,
    image: BusyboxImage,
}

impl DockerFixture {
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

    /// The containers created from this test's image.
    fn containers(&self) -> HashSet<String> {
        let filter = format!("ancestor={}", self.image.name);
        self.docker(&["ps", "--all", "--quiet", "--filter", &filter]).lines().map(str::to_owned).collect()
    }

    async fn dev(&self, more: &[&str]) -> Dev {
        let host = format!("docker.host={}", self.host);
        let dev = Dev::start_with(&[&["--set", host.as_str()], more].concat()).await;
        // The containers run as another user, who must be able to reach the workspace.
        let path = dev.directory.path();
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        dev
    }
}

/// Runs one command of a session in a container and returns the run.
async fn run_in_container(cli: &Cli, engine: &DockerFixture, session: &str, command: &str) -> Value {
    let command = format!("command={command}");
    let arguments = ["run", "--backend", "docker", "--image", engine.image(), "--session", session];
    cli.one(&[&arguments[..], &["--tool", "Bash", "--arg", &command]].concat()).await
}

fn output(run: &Value) -> &Value {
    &run["outcomes"][0]["output"]
}

#[tokio::test(flavor = "multi_thread")]
async fn session_executes_in_its_own_container() {
    let engine = DockerFixture::new("own");
    let dev = engine.dev(&[]).await;
    let cli = &dev.cli;
    let first = run_in_container(
        cli,
        &engine,
        "s1",
        "id -u; cat /proc/1/comm; echo from inside > f; touch /x || echo no",
    )
    .await;
    assert_eq!(first["state"], "completed", "{first}");
    let stdout = output(&first)["stdout"].as_str().unwrap();
    assert!(
        stdout.contains("remuda-supervis") && stdout.ends_with("no\n") && !stdout.starts_with("0\n"),
        "{stdout}"
    );
    let site = &first["outcomes"][0]["place"];
    assert_eq!((&site["backend"], &site["image"]), (&Value::from("docker"), &Value::from(engine.image())));
    assert!(site["digest"].as_str().unwrap().contains("sha256:"), "{site}");

    // The file tools see the same files under the same paths.
    let read =
        cli.one(&["run", "--session", "s1", "--tool", "Read", "--arg", "file_path=/workspace/f"]).await;
    assert!(output(&read)["content"].as_str().unwrap().contains("from inside"), "{read}");
    let again = run_in_container(cli, &engine, "s1", "cat f").await;
    assert_eq!(again["outcomes"][0]["place"]["sandbox_id"], site["sandbox_id"]);
    assert_eq!(engine.containers().len(), 1);
    let listed = cli.one(&["sandboxes", "list"]).await;
    assert_eq!((&listed["id"], &listed["state"]), (&site["sandbox_id"], &Value::from("active")));
    assert_eq!(listed["worker_alive"], true);

    // Each run reports its sandbox once, at the latest before its first result.
    let events = follow(cli, first["id"].as_str().unwrap()).await;
    let ready: Vec<&Value> = events.iter().filter(|event| event["type"] == "sandbox.ready").collect();
    assert_eq!((ready.len(), &ready[0]["data"]), (1, site), "{events:?}");
    let position = |name: &str| events.iter().position(|event| event["type"] == name).unwrap();
    assert!(position("tool.started") < position("sandbox.ready"));
    assert!(position("sandbox.ready") < position("tool.completed"));

    // The backend is fixed for the session.
    let elsewhere =
        cli.run(&["run", "--session", "s1", "--backend", "local", "--tool", "noop", "--json"]).await;
    assert_eq!((elsewhere.code, elsewhere.error().0.as_str()), (8, "already_exists"));
    drop(dev);
    wait_for("the container to be removed with its worker", GONE_WITHIN, async || {
        engine.containers().is_empty()
    })
    .await;
}

/// The sandbox and the output of a command in a container are reported while the command runs.
#[tokio::test(flavor = "multi_thread")]
async fn container_output_is_streamed_live() {
    let engine = DockerFixture::new("live");
    let dev = engine.dev(&[]).await;
    let command = "command=echo first; until test -e go; do sleep 0.05; done; printf last";
    let arguments = ["run", "--backend", "docker", "--image", engine.image(), "--session", "s1"];
    let bash = ["--tool", "Bash", "--arg", command, "--follow", "--json"];
    let mut live = dev.cli.start(&[&arguments[..], &bash].concat());
    wait_for("the sandbox and the first output", TIMEOUT, || {
        let lines = live.documents();
        let is_ready = lines.iter().any(|line| line["type"] == "sandbox.ready");
        std::future::ready(is_ready && tool_output(&lines, "stdout") == "first\n")
    })
    .await;
    assert!(!live.stdout().contains("tool.completed"));
    fs::write(dev.directory.path().join("data/workspaces/default/go"), "").unwrap();
    assert_eq!(live.exit_code().await, 0, "{}", live.stderr());
    assert_eq!(tool_output(&live.documents(), "stdout"), "first\nlast");
}

/// Returns all events of a run that has ended.
async fn follow(cli: &Cli, run: &str) -> Vec<Value> {
    cli.json(&["watch", run]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn impossible_execution_settings_are_refused_before_the_first_call() {
    let engine = DockerFixture::new("refused");
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
        // The command line itself refuses a value that looks like a flag.
        if !flags.contains(&"--privileged") {
            let (found, message) = refused.error();
            assert_eq!(found, code, "{flags:?}: {message}");
            assert!(message.contains(field), "{flags:?}: {message}");
        }
        assert_ne!(refused.code, 0);
    }
}

#[tokio::test]
async fn session_without_backend_has_no_tools() {
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
async fn tenant_policy_applies_to_session_creation_and_execution() {
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

    // A tightened policy applies to existing sessions too.
    allow("[tenants.default]\nbackends = ['none']\n");
    let Dev { server, directory, .. } = dev;
    drop(server);
    let dev = Dev::start_in(directory, &["--set", &file]).await;
    let ended = dev.cli.run(&bash).await;
    assert_eq!(ended.documents()[0]["failure"]["code"], "tools_disabled", "{}", ended.stdout);
}

/// After SIGKILL, none of ten busy containers is left, and a foreign container is untouched.
#[tokio::test(flavor = "multi_thread")]
async fn killed_worker_leaves_no_container() {
    let engine = DockerFixture::new("killed");
    let foreign = engine.docker(&["run", "--detach", "--network", "none", engine.image(), "sleep", "600"]);
    let foreign = ForeignContainer(&engine, foreign.trim().chars().take(12).collect());
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
    // All must run: a container that is being created when its worker dies is left for the next worker to reap.
    wait_for("ten busy containers", TIMEOUT, async || {
        let busy = fs::read_dir(&workspace).map(|entries| {
            entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("busy-")).count()
        });
        busy.is_ok_and(|busy| busy == 10) && engine.containers().len() == 11
    })
    .await;
    dev.server.process.kill();
    let only_foreign = async || engine.containers() == HashSet::from([foreign.1.clone()]);
    wait_for("all containers of the worker to be removed", GONE_WITHIN, only_foreign).await;
    assert_eq!(engine.docker(&["inspect", "--format", "{{.State.Running}}", &foreign.1]).trim(), "true");
}

/// The fallback: containers that did not end by themselves are found by their labels, and only by these.
#[tokio::test(flavor = "multi_thread")]
async fn resources_of_a_lost_worker_are_reaped_by_label() {
    let engine = DockerFixture::new("reaped");
    let mut dev = engine.dev(&[]).await;
    run_in_container(&dev.cli, &engine, "s1", "true").await;
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
        ForeignContainer(&engine, id.trim().chars().take(12).collect())
    };
    // Never started, so it cannot end by itself.
    let (left, foreign) = (made(&installation), made("somebody-else"));
    wait_for("the container of a lost worker to be removed", GONE_WITHIN, async || {
        !engine.containers().contains(&left.1)
    })
    .await;
    assert_eq!(engine.containers(), HashSet::from([own, foreign.1.clone()]));

    // `sandboxes reap` without any worker: what is left is the volume with the supervisor.
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
    // The lease of the dead worker must expire first.
    wait_for("the volume to be reaped", TIMEOUT, async || {
        let reaped = CommandOutput::run(&reap, &[]).await;
        assert_eq!(reaped.code, 0, "{}", reaped.stderr);
        volumes().is_empty()
    })
    .await;
    assert_eq!(engine.containers(), HashSet::from([foreign.1.clone()]));
}

/// A container that Remuda does not own, removed when this is dropped.
struct ForeignContainer<'a>(&'a DockerFixture, String);

impl Drop for ForeignContainer<'_> {
    fn drop(&mut self) {
        self.0.docker(&["rm", "--force", &self.1]);
    }
}
