//! The `remuda` binary as child processes.
//!
//! Every process writes into its own files. It is killed when its handle is dropped (its guard then kills the tools), and
//! by the kernel when the test process dies. When a test fails, the end of its stderr is printed. A panic in a process
//! fails the test.

use std::{
    fs::{self, File},
    path::Path,
    process::Stdio,
    thread,
    time::Duration,
};

use nix::sys::signal::Signal;
use remuda_client::{Client, ClientOptions};
use remuda_testkit::{Child, wait_for};
use serde_json::Value;
use tempfile::TempDir;

/// Generous: the machine may be busy with other tests.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

type Variables = Vec<(String, String)>;

/// Names and values for the environment of a process.
pub(crate) fn variables(pairs: &[(&str, &str)]) -> Variables {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

pub(crate) fn temporary_directory() -> TempDir {
    tempfile::Builder::new().prefix("remuda-e2e-").tempdir().unwrap()
}

/// A running or ended `remuda`.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    files: TempDir,
}

impl Process {
    /// Starts `remuda` with these arguments and variables, without the environment of the test.
    pub(crate) fn start(arguments: &[&str], variables: &[(String, String)]) -> Self {
        let files = temporary_directory();
        let output = |name: &str| File::create(files.path().join(name)).unwrap();
        let (stdout, stderr) = (output("stdout"), output("stderr"));
        let child = Child::start(Path::new(env!("CARGO_BIN_EXE_remuda")), None, |command| {
            command.args(arguments).current_dir(files.path()).env_clear();
            command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
            command.env("HOME", files.path()).envs(variables.iter().cloned());
            command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        });
        Self { name: arguments.join(" "), child: child.unwrap(), files }
    }

    fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.files.path().join(name)).unwrap()).into_owned()
    }

    pub(crate) fn stdout(&self) -> String {
        self.read("stdout")
    }

    pub(crate) fn stderr(&self) -> String {
        self.read("stderr")
    }

    /// The complete lines of stdout so far, as JSON.
    pub(crate) fn documents(&self) -> Vec<Value> {
        documents(&self.stdout())
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        self.child.signal(signal).unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.ended().is_some()
    }

    /// Waits for the end and returns the exit code; -1 after a signal.
    pub(crate) async fn exit_code(&mut self) -> i32 {
        let what = format!("the end of `remuda {}`", self.name);
        let child = &mut self.child;
        let status = wait_for(&what, TIMEOUT, || std::future::ready(child.ended())).await;
        status.code().unwrap_or(-1)
    }

    /// Waits for the line that a server prints once it serves.
    async fn ready(&mut self) -> Value {
        let what = format!("`remuda {}` to be ready", self.name);
        wait_for(&what, TIMEOUT, || {
            let ready = self.documents().into_iter().find(|line| line.get("ready").is_some());
            assert!(ready.is_some() || self.child.ended().is_none(), "`remuda {}` did not start", self.name);
            std::future::ready(ready)
        })
        .await
    }

    /// Waits until stderr contains this text.
    pub(crate) async fn wait_for_stderr(&self, text: &str) {
        let what = format!("{text:?} in the stderr of `remuda {}`", self.name);
        wait_for(&what, TIMEOUT, || std::future::ready(self.stderr().contains(text))).await;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let killed = self.child.kill();
        let stderr = self.stderr();
        if thread::panicking() {
            let tail: Vec<&str> = stderr.lines().rev().take(60).collect();
            println!("--- end of the stderr of `remuda {}` ---", self.name);
            tail.iter().rev().for_each(|line| println!("{line}"));
            return;
        }
        assert!(!stderr.contains("panicked"), "`remuda {}` panicked:\n{stderr}", self.name);
        killed.unwrap();
    }
}

/// Every complete line of `text`, as JSON.
fn documents(text: &str) -> Vec<Value> {
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    complete
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// A server process that has reported to be ready.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) process: Process,
    ready: Value,
}

impl Server {
    pub(crate) async fn start(arguments: &[&str], variables: &[(String, String)]) -> Self {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
        let mut process = Process::start(&arguments, variables);
        let ready = process.ready().await;
        Self { process, ready }
    }

    pub(crate) fn endpoint(&self) -> &str {
        self.ready["endpoint"].as_str().expect("a server that listens")
    }

    /// The URL of its metrics, if it serves them.
    pub(crate) fn metrics(&self) -> Option<&str> {
        self.ready["metrics"].as_str()
    }

    /// The id of the worker in this process, read from its log.
    pub(crate) async fn worker_id(&self) -> String {
        wait_for("the worker to register", TIMEOUT, || {
            let id =
                self.process.stderr().split('"').find(|word| word.starts_with("wrk_")).map(str::to_owned);
            std::future::ready(id)
        })
        .await
    }
}

/// `remuda dev` with a data directory that outlives it.
#[derive(Debug)]
pub(crate) struct Dev {
    pub(crate) server: Server,
    pub(crate) cli: Cli,
    // Dropped after the server that uses it.
    pub(crate) directory: TempDir,
}

impl Dev {
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    pub(crate) async fn start_with(more: &[&str]) -> Self {
        Self::start_in(temporary_directory(), more).await
    }

    /// Starts on a directory that an earlier process may have used.
    pub(crate) async fn start_in(directory: TempDir, more: &[&str]) -> Self {
        let data = directory.path().join("data");
        let mut arguments = vec!["dev", "--data-dir", data.to_str().unwrap()];
        if !more.contains(&"--listen") {
            arguments.extend(["--listen", "127.0.0.1:0"]);
        }
        arguments.extend(more);
        let server = Server::start(&arguments, &[]).await;
        let cli = Cli::new(server.endpoint());
        Self { server, cli, directory }
    }

    /// Kills the server with SIGKILL and starts it again on the same data.
    pub(crate) async fn crash_and_restart(mut self) -> Self {
        self.server.process.kill();
        let Self { server, directory, .. } = self;
        drop(server);
        Self::start_in(directory, &[]).await
    }

    pub(crate) fn client(&self) -> Client {
        self.cli.client()
    }

    /// A path for tools to write to.
    pub(crate) fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }
}

/// Runs client commands against a server.
#[derive(Clone, Debug)]
pub(crate) struct Cli {
    variables: Variables,
}

impl Cli {
    pub(crate) fn new(endpoint: &str) -> Self {
        Self { variables: variables(&[("REMUDA_ENDPOINT", endpoint)]) }
    }

    pub(crate) fn with_key(&self, key: &str) -> Self {
        let mut cli = self.clone();
        cli.variables.push(("REMUDA_API_KEY".to_owned(), key.to_owned()));
        cli
    }

    /// The same client with a `TRACEPARENT`.
    pub(crate) fn with_traceparent(&self, traceparent: &str) -> Self {
        let mut cli = self.clone();
        cli.variables.push(("TRACEPARENT".to_owned(), traceparent.to_owned()));
        cli
    }

    /// Starts a command without waiting for it.
    pub(crate) fn start(&self, arguments: &[&str]) -> Process {
        Process::start(arguments, &self.variables)
    }

    pub(crate) async fn run(&self, arguments: &[&str]) -> CommandOutput {
        CommandOutput::collect(self.start(arguments)).await
    }

    /// Runs a command with `--json`, which must succeed, and returns its documents.
    pub(crate) async fn json(&self, arguments: &[&str]) -> Vec<Value> {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
        let done = self.run(&arguments).await;
        assert_eq!(done.code, 0, "{arguments:?}: {}", done.stderr);
        documents(&done.stdout)
    }

    /// Like [`Cli::json`], for a command that prints exactly one document.
    pub(crate) async fn one(&self, arguments: &[&str]) -> Value {
        let mut documents = self.json(arguments).await;
        assert_eq!(documents.len(), 1, "{arguments:?} printed {documents:?}");
        documents.remove(0)
    }

    /// The API key that it sends.
    pub(crate) fn key(&self) -> &str {
        let key = self.variables.iter().rev().find(|(name, _)| name == "REMUDA_API_KEY");
        &key.unwrap().1
    }

    pub(crate) fn endpoint(&self) -> &str {
        let endpoint = self.variables.iter().find(|(name, _)| name == "REMUDA_ENDPOINT");
        &endpoint.unwrap().1
    }

    /// A typed client for the same server, with the same key.
    pub(crate) fn client(&self) -> Client {
        let value = |name: &str| {
            self.variables.iter().rev().find(|(variable, _)| variable == name).map(|(_, value)| value.clone())
        };
        let options = ClientOptions {
            endpoint: value("REMUDA_ENDPOINT").unwrap(),
            api_key: value("REMUDA_API_KEY").map(Into::into),
            ..ClientOptions::default()
        };
        Client::connect(options).unwrap()
    }
}

/// The exit code and the output of a command that has ended.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl CommandOutput {
    pub(crate) async fn collect(mut process: Process) -> Self {
        let code = process.exit_code().await;
        Self { code, stdout: process.stdout(), stderr: process.stderr() }
    }

    /// Runs `remuda` without a server.
    pub(crate) async fn run(arguments: &[&str], variables: &[(String, String)]) -> Self {
        Self::collect(Process::start(arguments, variables)).await
    }

    pub(crate) fn documents(&self) -> Vec<Value> {
        documents(&self.stdout)
    }

    /// The error that `--json` reports on stderr: code and field.
    pub(crate) fn error(&self) -> (String, String) {
        let line = self.stderr.lines().find(|line| line.starts_with("{\"error\"")).unwrap_or_default();
        let error: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("no error in {self:?}"));
        let text = |name: &str| error["error"][name].as_str().unwrap_or_default().to_owned();
        (text("code"), text("field"))
    }
}

/// Whether a process exists and is no zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let state = status.rsplit(") ").next().and_then(|rest| rest.chars().next());
    !matches!(state, Some('Z' | 'X') | None)
}

/// Reads the process ids that tools append to a file.
pub(crate) fn pids(path: &str) -> Vec<u32> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

/// Waits until none of these processes is alive.
pub(crate) async fn wait_until_gone(pids: &[u32]) {
    let what = format!("processes {pids:?} to be gone");
    wait_for(&what, TIMEOUT, || std::future::ready(!pids.iter().any(|pid| is_alive(*pid)))).await;
}
