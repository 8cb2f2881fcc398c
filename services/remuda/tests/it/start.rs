//! Startup: invalid settings, ports in use, unusable directories, and services that are not up yet.

use std::{fs, time::Duration};

use remuda_testkit::{free_port, nats_binaries, wait_for};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

use crate::{
    cluster::Services,
    harness::{Cli, CommandOutput, Dev, Process, Server, TIMEOUT, temporary_directory, variables},
};

#[tokio::test]
async fn unknown_settings_are_named_from_file_environment_and_flags() {
    let directory = temporary_directory();
    let file = directory.path().join("remuda.toml");
    fs::write(&file, "[worker]\nslotz = 3\n").unwrap();
    let file = file.to_str().unwrap();
    type Variables<'a> = &'a [(&'a str, &'a str)];
    let cases: [(&[&str], Variables<'_>, &str); 6] = [
        (&["--config", file], &[], "worker.slots"),
        (&[], &[("REMUDA_CONFIG", file)], "worker.slotz"),
        (&[], &[("REMUDA_WORKER__SLOTZ", "3")], "REMUDA_WORKER__SLOTS"),
        (&["--set", "worker.slotz=3"], &[], "worker.slotz"),
        (&["--set", "worker.slots=many"], &[], "worker.slots"),
        (&["--set", "worker.lease=1ns"], &[], "worker.lease"),
    ];
    for (arguments, environment, named) in cases {
        for command in ["dev", "worker"] {
            let all = [&[command, "--json"], arguments].concat();
            let refused = CommandOutput::run(&all, &variables(environment)).await;
            assert_eq!((refused.code, refused.error().0.as_str()), (2, "invalid_argument"), "{all:?}");
            assert!(refused.stderr.contains(named), "{all:?} {environment:?}: {}", refused.stderr);
        }
    }
    let missing = CommandOutput::run(&["dev", "--config", "/nonexistent.toml", "--json"], &[]).await;
    assert_eq!(missing.error().0, "invalid_argument");
    let unset = CommandOutput::run(&["worker", "--json"], &[]).await;
    assert_eq!(unset.error(), ("invalid_argument".to_owned(), "store.url".to_owned()));
    let sqlite =
        CommandOutput::run(&["worker", "--json"], &variables(&[("REMUDA_STORE__URL", "sqlite:x.db")])).await;
    assert_eq!(sqlite.error().1, "store.url", "{}", sqlite.stderr);
}

#[tokio::test]
async fn port_in_use_is_reported_before_anything_is_created() {
    let dev = Dev::start().await;
    let address = dev.server.endpoint().strip_prefix("http://").unwrap();
    let data = temporary_directory();
    let arguments = ["dev", "--listen", address, "--data-dir", data.path().to_str().unwrap(), "--json"];
    let refused = CommandOutput::run(&arguments, &[]).await;
    assert_eq!((refused.code, refused.error()), (3, ("unavailable".to_owned(), "listen".to_owned())));
    assert!(refused.stderr.contains("choose another address"), "{}", refused.stderr);
    assert_eq!(fs::read_dir(data.path()).unwrap().count(), 0, "files were created before the port was bound");
}

#[tokio::test]
async fn data_directory_is_exclusive_and_must_be_usable() {
    let dev = Dev::start().await;
    let serve = async |directory: &str| {
        CommandOutput::run(&["dev", "--listen", "127.0.0.1:0", "--data-dir", directory, "--json"], &[]).await
    };
    let used = serve(&dev.path("data")).await;
    assert_eq!((used.code, used.error()), (3, ("unavailable".to_owned(), "data_dir".to_owned())));
    assert!(used.stderr.contains("in use by another remuda"), "{}", used.stderr);
    // Below a file not even root can create a directory.
    let file = dev.path("file");
    fs::write(&file, "").unwrap();
    let unusable = serve(&format!("{file}/data")).await;
    assert_eq!((unusable.code, unusable.error().1.as_str()), (2, "data_dir"), "{}", unusable.stderr);
    assert_eq!(dev.cli.run(&["run", "--tool", "noop"]).await.code, 0, "the first server must keep working");
}

#[tokio::test]
async fn non_database_file_is_refused_and_left_unchanged() {
    let data = temporary_directory();
    fs::write(data.path().join("remuda.db"), "this is no database, it is a text file of some length")
        .unwrap();
    let directory = data.path().to_str().unwrap();
    let arguments = ["dev", "--listen", "127.0.0.1:0", "--data-dir", directory, "--json"];
    let refused = CommandOutput::run(&arguments, &[]).await;
    let (code, field) = refused.error();
    assert_eq!((code.as_str(), field.as_str()), ("storage_corrupt", "store.url"), "{}", refused.stderr);
    assert_ne!(refused.code, 0);
    assert!(refused.stderr.contains("docs/backup.md"), "{}", refused.stderr);
    assert!(!refused.stderr.contains("waiting for"), "it waited for a usable database: {}", refused.stderr);
    let kept = fs::read(data.path().join("remuda.db")).unwrap();
    assert!(kept.starts_with(b"this is no database"), "the file was changed");
}

/// Forwards a port to an address: simulates a server that starts late on a known port.
async fn forward(port: u16, to: String, tasks: TaskTracker) {
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    let connections = tasks.clone();
    tasks.spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let to = to.clone();
            connections.spawn(async move {
                let mut far = TcpStream::connect(to).await.unwrap();
                // Either side may close the connection.
                tokio::io::copy_bidirectional(&mut near, &mut far).await.ok();
            });
        }
    });
}

/// Returns the address in a URL, and the URL with a password and another port.
fn with_port(url: &str, port: u16) -> (String, String) {
    let (scheme, rest) = url.split_once("://").unwrap();
    let (authority, path) = rest.split_once('/').unwrap();
    let (user, address) = authority.split_once('@').unwrap();
    (address.to_owned(), format!("{scheme}://{user}:hunter2@127.0.0.1:{port}/{path}"))
}

#[tokio::test]
async fn servers_wait_for_postgresql_and_log_it() {
    let services = Services::start(&nats_binaries()[0]);
    services.migrate().await;
    let port = free_port().unwrap();
    let (address, url) = with_port(&services.database.url(), port);
    let all = [services.variables.clone(), variables(&[("REMUDA_STORE__URL", &url)])].concat();
    let arguments = ["control-plane", "--listen", "127.0.0.1:0", "--json"];
    let waiting = Process::start(&arguments, &all);
    waiting.wait_for_stderr("waiting for PostgreSQL").await;
    forward(port, address, TaskTracker::new()).await;
    let ready = || std::future::ready(!waiting.documents().is_empty());
    wait_for("the control plane to be ready", TIMEOUT, ready).await;
    assert!(!waiting.stderr().contains("hunter2"), "a password in the log:\n{}", waiting.stderr());

    // The wait is limited by `connect_timeout`.
    let (_, url) = with_port(&services.database.url(), free_port().unwrap());
    let impatient = variables(&[("REMUDA_STORE__URL", &url), ("REMUDA_STORE__CONNECT_TIMEOUT", "1s")]);
    let gave_up = CommandOutput::run(&arguments, &[services.variables.clone(), impatient].concat()).await;
    assert_eq!((gave_up.code, gave_up.error().0.as_str()), (3, "unavailable"), "{}", gave_up.stderr);
    assert!(!gave_up.stderr.contains("hunter2"), "a password in the log:\n{}", gave_up.stderr);
}

#[tokio::test]
async fn servers_wait_for_nats_and_log_it() {
    let mut services = Services::start(&nats_binaries()[0]);
    services.migrate().await;
    services.nats.kill().unwrap();
    let worker = Process::start(&["worker", "--json"], &services.variables);
    let arguments = ["control-plane", "--listen", "127.0.0.1:0", "--json"];
    let control_plane = Process::start(&arguments, &services.variables);
    worker.wait_for_stderr("waiting for NATS").await;
    control_plane.wait_for_stderr("waiting for NATS").await;
    services.nats.restart().unwrap();
    let ready =
        || std::future::ready(!worker.documents().is_empty() && !control_plane.documents().is_empty());
    wait_for("both servers to be ready", TIMEOUT, ready).await;

    services.nats.kill().unwrap();
    let impatient = variables(&[
        ("REMUDA_NATS__CONNECT_TIMEOUT", "1s"),
        ("REMUDA_NATS__SERVERS", &services.nats.url().replace("nats://", "nats://remuda:hunter2@")),
    ]);
    let gave_up = CommandOutput::run(&arguments, &[services.variables.clone(), impatient].concat()).await;
    assert_eq!((gave_up.code, gave_up.error().0.as_str()), (3, "unavailable"), "{}", gave_up.stderr);
    assert!(!gave_up.stderr.contains("hunter2"), "a password in the log:\n{}", gave_up.stderr);
}

#[tokio::test]
async fn waiting_for_a_service_can_be_interrupted() {
    let url = format!("postgres://nobody@127.0.0.1:{}/x", free_port().unwrap());
    let mut waiting = Process::start(&["worker", "--json"], &variables(&[("REMUDA_STORE__URL", &url)]));
    waiting.wait_for_stderr("waiting for PostgreSQL").await;
    let started = std::time::Instant::now();
    waiting.signal(nix::sys::signal::Signal::SIGTERM);
    waiting.wait_for_stderr("stopping").await;
    waiting.signal(nix::sys::signal::Signal::SIGTERM);
    waiting.exit_code().await;
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

#[tokio::test]
async fn require_keys_applies_on_loopback() {
    let data = temporary_directory();
    let directory = data.path().to_str().unwrap();
    let arguments = ["dev", "--listen", "127.0.0.1:0", "--data-dir", directory, "--require-keys"];
    let server = Server::start(&arguments, &[]).await;
    let cli = Cli::new(server.endpoint());
    assert_eq!(cli.run(&["run", "--tool", "noop"]).await.code, 5);
    let settings = variables(&[("REMUDA_DATA_DIR", directory)]);
    let created = CommandOutput::run(&["keys", "create", "--json"], &settings).await;
    assert_eq!(created.code, 0, "{}", created.stderr);
    let secret = created.documents()[0]["secret"].as_str().unwrap().to_owned();
    assert_eq!(cli.with_key(&secret).run(&["run", "--tool", "noop"]).await.code, 0);
}

#[tokio::test]
async fn required_hardening_without_bubblewrap_refuses_to_start_where_local_commands_are_allowed() {
    let directory = temporary_directory();
    let policy = directory.path().join("policy.toml");
    let data = directory.path().join("data");
    let start = async |backends: &str| {
        fs::write(&policy, format!("[default]\nbackends = [{backends}]\n")).unwrap();
        let mut arguments =
            vec!["dev", "--listen", "127.0.0.1:0", "--json", "--data-dir", data.to_str().unwrap()];
        let policy = format!("sandbox.policy_file={}", policy.display());
        arguments.extend(["--set", "sandbox.hardening=required", "--set", &policy]);
        // No directory of this path has bubblewrap.
        CommandOutput::run(&arguments, &variables(&[("PATH", "/nonexistent")])).await
    };
    for backends in ["'local'", "'docker', 'local'"] {
        let refused = start(backends).await;
        assert_eq!(
            (refused.code, refused.error()),
            (3, ("unavailable".to_owned(), "sandbox.hardening".to_owned()))
        );
        assert!(refused.stderr.contains("bubblewrap"), "{}", refused.stderr);
    }
}

#[tokio::test]
async fn start_reports_what_is_enforced_for_local_commands() {
    let dev = Dev::start_with(&["--set", "telemetry.log=info"]).await;
    dev.server.process.wait_for_stderr("local backend restrictions").await;
    dev.server.process.wait_for_stderr("no privileges").await;
}
