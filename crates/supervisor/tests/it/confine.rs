//! Confined commands: what they can and cannot access. A kernel that cannot confine must refuse the command.

use remuda_supervisor::{Confinement, RefusalKind, Request};
use tempfile::TempDir;

use crate::supervisor_process::{Outcome, SupervisorProcess};

fn kernel_can() -> bool {
    let program = env!("CARGO_BIN_EXE_remuda-supervisor");
    std::process::Command::new(program).arg("check-confinement").status().unwrap().success()
}

struct Fixture {
    directory: TempDir,
    network: bool,
}

impl Fixture {
    fn new() -> Self {
        let directory = TempDir::new_in("/var/tmp").unwrap();
        std::fs::create_dir(directory.path().join("mine")).unwrap();
        std::fs::write(directory.path().join("theirs"), "theirs").unwrap();
        Self { directory, network: false }
    }

    fn request(&self, supervisor: &SupervisorProcess, script: &str) -> Request {
        let mine = self.directory.path().join("mine").to_str().unwrap().to_owned();
        let mut request = supervisor.script(script);
        request.confinement = Some(Confinement { writable: vec![mine.clone()], network: self.network });
        request.cwd = Some(mine);
        request
    }

    /// Runs a confined script. `None` if the kernel cannot confine; then the refusal is asserted here.
    fn run(&self, script: &str) -> Option<Outcome> {
        let mut supervisor = SupervisorProcess::start("supervise");
        let request = self.request(&supervisor, script);
        supervisor.start_command(0, request);
        let outcome = supervisor.outcome(0);
        if !kernel_can() {
            assert_eq!(outcome.result.unwrap_err().kind, RefusalKind::NotConfined);
            return None;
        }
        Some(outcome)
    }
}

#[test]
fn confined_command_writes_only_beneath_its_writable_directories() {
    let fixture = Fixture::new();
    let script = "echo a > file && mkdir d && echo b > d/file && mv d/file . && rm file && ln -s x y && echo inside; \
        echo null > /dev/null && echo device; cat ../theirs; \
        for c in 'echo x > ../theirs' ': > ../theirs' 'truncate -s 0 ../theirs' 'rm ../theirs' 'mkdir ../d' \
            'mv ../theirs .' 'ln ../theirs hard' 'touch /var/tmp/remuda-escape' 'mkfifo ../p'; do \
            sh -c \"$c\" 2>/dev/null && echo \"could: $c\"; done; :";
    let Some(outcome) = fixture.run(script) else { return };
    assert_eq!(outcome.text(), "inside\ndevice\ntheirs", "{}", String::from_utf8_lossy(&outcome.stderr));
    assert_eq!(std::fs::read_to_string(fixture.directory.path().join("theirs")).unwrap(), "theirs");
    assert_eq!(std::fs::read_dir(fixture.directory.path()).unwrap().count(), 2);
}

#[test]
fn confined_command_cannot_create_namespaces_or_mounts() {
    let fixture = Fixture::new();
    let script = "for c in 'unshare -r true' 'unshare -n true' 'mount -t tmpfs x .' 'chroot / true'; do \
        $c 2>/dev/null && echo \"could: $c\"; done; \
        grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status; (echo threads and forks work)";
    let Some(outcome) = fixture.run(script) else { return };
    assert_eq!(outcome.text(), "NoNewPrivs:\t1\nSeccomp:\t2\nthreads and forks work\n");
}

#[test]
fn confined_command_reaches_the_network_only_if_allowed() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = format!("(echo > /dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo connected; echo done");
    let mut fixture = Fixture::new();
    let Some(outcome) = fixture.run(&script) else { return };
    assert_eq!(outcome.text(), "done\n");
    fixture.network = true;
    assert_eq!(fixture.run(&script).unwrap().text(), "connected\ndone\n");
}

/// Needs Linux 6.12. On older kernels a command can kill its supervisor and dies with it.
#[test]
fn confined_command_cannot_kill_its_supervisor() {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let numbers: Vec<u32> = release.split(['.', '-']).map_while(|part| part.trim().parse().ok()).collect();
    if numbers < vec![6, 12] {
        return;
    }
    let Some(outcome) = Fixture::new().run("kill -9 $PPID 2>/dev/null || echo refused") else { return };
    assert_eq!(outcome.text(), "refused\n");
}

#[test]
fn missing_writable_directory_refuses_the_command() {
    let mut supervisor = SupervisorProcess::start("supervise");
    let mut request = supervisor.script("echo ran");
    request.confinement = Some(Confinement { writable: vec!["/no/such".to_owned()], network: true });
    supervisor.start_command(0, request);
    assert_eq!(supervisor.outcome(0).result.unwrap_err().kind, RefusalKind::NotConfined);
}
