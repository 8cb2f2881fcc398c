//! Attacks by commands of the local backend on their worker and its machine.
//!
//! The worker is this test in a process of its own, with a secret in its environment: once as this user, and once
//! as a user without privileges if this is root.

use std::{
    collections::BTreeSet,
    fs::Permissions,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            fs::PermissionsExt as _,
            net::{SocketAddr, UnixListener},
            process::CommandExt as _,
        },
    },
};

use nix::{libc, unistd::geteuid};
use remuda_domain::execution::ExecutionPolicy;
use remuda_sandbox::{
    Backend, Command, ExecStatus, FeatureState, Hardening, LocalBackend, LocalOptions, local::conceal_process,
};
use tempfile::TempDir;

use crate::fixture::{self, LONG, SandboxFixture};

/// Marks a process as the worker of an attack.
const WORKER: &str = "REMUDA_ATTACKED_WORKER";
const NOBODY: u32 = 65534;

/// Attempts that must fail wherever the backend reports that the worker is protected.
const ON_WORKER: [&str; 8] =
    ["environ", "any environ", "memory", "directory", "ptrace", "pidfd_getfd", "signal", "capabilities"];

/// Whether this process is the worker. If not, runs the test in workers.
fn is_worker(test: &str) -> bool {
    if std::env::var_os(WORKER).is_some() {
        conceal_process().unwrap();
        return true;
    }
    let users = if geteuid().is_root() { vec![0, NOBODY] } else { vec![geteuid().as_raw()] };
    for user in users {
        let mut worker = std::process::Command::new("/proc/self/exe");
        worker.args(["--exact", &format!("attacks::{test}"), "--nocapture"]).current_dir("/");
        worker.env(WORKER, "worker-secret").env("TMPDIR", "/tmp");
        if user != geteuid().as_raw() {
            worker.uid(user).gid(user);
        }
        let ended = worker.output().unwrap();
        let output = String::from_utf8_lossy(&ended.stdout) + String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success() && output.contains("1 passed"), "as user {user}: {output}");
    }
    false
}

/// What another tenant and the host have.
struct Victims {
    outside: TempDir,
    abstract_name: String,
    _sockets: [UnixListener; 2],
}

impl Victims {
    fn new() -> Self {
        let outside = tempfile::tempdir_in("/var/tmp").unwrap();
        std::fs::set_permissions(outside.path(), Permissions::from_mode(0o777)).unwrap();
        std::fs::write(outside.path().join("theirs"), "tenant-secret").unwrap();
        let path = outside.path().join("socket");
        let socket = UnixListener::bind(&path).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        let abstract_name = outside.path().to_string_lossy().into_owned();
        let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        let abstract_socket = UnixListener::bind_addr(&address).unwrap();
        Self { outside, abstract_name, _sockets: [socket, abstract_socket] }
    }

    /// Runs all attempts. Returns those that succeeded.
    async fn attack(&self, fixture: &SandboxFixture) -> BTreeSet<String> {
        let mut argv = vec!["perl".to_owned(), "-e".to_owned(), include_str!("attack.pl").to_owned()];
        argv.push(std::process::id().to_string());
        argv.push(self.outside.path().to_str().unwrap().to_owned());
        argv.push(self.abstract_name.clone());
        argv.extend([libc::SYS_ptrace, libc::SYS_pidfd_open, libc::SYS_pidfd_getfd].map(|it| it.to_string()));
        let result = fixture.exec(Command::argv(argv, LONG)).await.unwrap();
        assert_eq!(result.status, ExecStatus::Exited(0), "{}", result.stderr.text);
        result.stdout.text.lines().map(str::to_owned).collect()
    }
}

fn options(hardening: Hardening, bubblewrap: bool, landlock: bool) -> LocalOptions {
    let options = LocalOptions { hardening, landlock, ..LocalOptions::default() };
    LocalOptions { bubblewrap: options.bubblewrap.clone().filter(|_| bubblewrap), ..options }
}

async fn state(backend: &LocalBackend, name: &str) -> FeatureState {
    backend.describe().await.into_iter().find(|feature| feature.name == name).unwrap().state
}

#[tokio::test]
async fn required_hardening_hides_everything_but_the_workspace_and_a_minimal_system() {
    if !is_worker("required_hardening_hides_everything_but_the_workspace_and_a_minimal_system") {
        return;
    }
    let backend = LocalBackend::new(options(Hardening::Required, true, true));
    let victims = Victims::new();
    for network in ["none", "outside"] {
        let policy = ExecutionPolicy { network: network.to_owned(), ..ExecutionPolicy::default() };
        let fixture = SandboxFixture::with(&backend, policy).await;
        assert_eq!(victims.attack(&fixture).await, BTreeSet::new(), "network {network}");
        let listed = fixture.shell("cd /; echo *; ls -d /home /root /run /srv /sys /boot 2>/dev/null").await;
        let mut top: BTreeSet<&str> = listed.stdout.text.split_whitespace().collect();
        for known in
            ["bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "tmp", "usr", "var"]
        {
            top.remove(known);
        }
        assert_eq!(top, BTreeSet::new());
        // The worker survives all signals.
        fixture.shell(&format!("kill -9 {} -1; kill -9 1", std::process::id())).await;
        assert_eq!(fixture.shell("echo well > file; cat file").await.stdout.text, "well\n");
    }
}

#[tokio::test]
async fn commands_without_hardening_cannot_read_trace_or_signal_the_worker() {
    if !is_worker("commands_without_hardening_cannot_read_trace_or_signal_the_worker") {
        return;
    }
    let victims = Victims::new();
    for (bubblewrap, landlock) in [(false, true), (true, false), (false, false)] {
        let backend = LocalBackend::new(options(Hardening::None, bubblewrap, landlock));
        let fixture = SandboxFixture::new(&backend).await;
        let succeeded = victims.attack(&fixture).await;
        let protected = state(&backend, "worker protection").await == FeatureState::Enforced;
        for attempt in ON_WORKER.into_iter().filter(|attempt| protected || *attempt != "signal") {
            assert!(!succeeded.contains(attempt), "{bubblewrap} {landlock} {attempt}");
        }
        // Bubblewrap is installed for tests, and needs no particular kernel.
        assert!(protected || !bubblewrap);
        // It is not confined, and says so.
        assert!(succeeded.contains("read") && succeeded.contains("write") && succeeded.contains("socket"));
        assert_eq!(state(&backend, "confinement").await, FeatureState::Off);
        let script = "echo inside > file && mv file other && cat other && (sleep 100 & kill $!) && id -u";
        let own = format!("inside\n{}\n", geteuid());
        assert_eq!(fixture.shell(script).await.stdout.text, own);
    }
}

#[tokio::test]
async fn landlock_alone_hides_files_and_admits_that_sockets_are_open() {
    if !is_worker("landlock_alone_hides_files_and_admits_that_sockets_are_open") {
        return;
    }
    let backend = LocalBackend::new(options(Hardening::Auto, false, true));
    let victims = Victims::new();
    let succeeded = victims.attack(&SandboxFixture::new(&backend).await).await;
    match state(&backend, "confinement").await {
        FeatureState::Partial => {
            let protected = state(&backend, "worker protection").await == FeatureState::Enforced;
            for attempt in ["shadow", "read", "list", "write", "sysctl"].into_iter().chain(ON_WORKER) {
                assert!(!succeeded.contains(attempt) || (attempt == "signal" && !protected), "{attempt}");
            }
        }
        state => assert_eq!(state, FeatureState::Unavailable, "the kernel has no Landlock"),
    }
}

/// A worker that runs as root need not run commands as root.
#[tokio::test]
async fn commands_of_root_run_as_the_owner_of_their_workspace() {
    if !geteuid().is_root() || !is_worker("commands_of_root_run_as_the_owner_of_their_workspace") {
        return;
    }
    let victims = Victims::new();
    let methods = [
        (Hardening::None, false, false),
        (Hardening::None, false, true),
        (Hardening::None, true, false),
        (Hardening::Auto, false, true),
        (Hardening::Required, true, true),
    ];
    for (hardening, bubblewrap, landlock) in methods {
        let backend = LocalBackend::new(options(hardening, bubblewrap, landlock));
        for reachable in [true, false] {
            let outside = TempDir::new().unwrap();
            let workspace = outside.path().join("workspace");
            std::fs::create_dir(&workspace).unwrap();
            std::os::unix::fs::chown(&workspace, Some(1234), Some(4321)).unwrap();
            let mode = if reachable { 0o755 } else { 0o700 };
            std::fs::set_permissions(outside.path(), Permissions::from_mode(mode)).unwrap();
            let request = fixture::request(&workspace, ExecutionPolicy::default());
            let fixture = SandboxFixture::over(backend.acquire(&request).await.unwrap(), outside);
            let script = format!(
                "cd {} && echo x > file && mkdir d && rm $(mktemp) && id -u && id -g && id -G",
                workspace.display()
            );
            let result = fixture.shell(&script).await;
            let switched = reachable || hardening == Hardening::Required;
            let expected = if switched { "1234\n4321\n4321\n" } else { "0\n0\n0\n" };
            let place = format!("{hardening:?} {bubblewrap} {landlock} {reachable}: {}", result.stderr.text);
            assert_eq!(result.stdout.text, expected, "{place}");
            let succeeded = victims.attack(&fixture).await;
            for attempt in ["environ", "any environ", "memory", "ptrace", "pidfd_getfd"] {
                assert!(!succeeded.contains(attempt), "{place} {attempt}");
            }
            if switched {
                for attempt in ["signal", "shadow", "sysctl", "capabilities"] {
                    assert!(!succeeded.contains(attempt), "{place} {attempt}");
                }
            }
        }
    }
}
