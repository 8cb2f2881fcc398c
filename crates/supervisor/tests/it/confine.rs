//! Confined commands: what they can and cannot access. A kernel that cannot confine must refuse the command.

use remuda_supervisor::{Confinement, RefusalKind, Request};
use tempfile::TempDir;

use crate::supervisor_process::{Outcome, SupervisorProcess};

fn kernel_can() -> bool {
    let program = env!("CARGO_BIN_EXE_remuda-supervisor");
    std::process::Command::new(program).args(["check-confinement", "files"]).status().unwrap().success()
}

const SYSTEM: [&str; 7] = ["/usr", "/bin", "/lib", "/lib64", "/proc", "/etc/passwd", "/no/such"];

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
        request.confinement = Some(Confinement::Files {
            readable: SYSTEM.map(str::to_owned).to_vec(),
            writable: vec![mine.clone()],
            network: self.network,
        });
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
fn confined_command_reads_and_writes_only_what_is_listed() {
    let fixture = Fixture::new();
    let script = "echo a > file && mkdir d && echo b > d/file && mv d/file . && rm file && ln -s x y && echo inside; \
        echo null > /dev/null && echo device; cat /etc/passwd > /dev/null && echo system; \
        for c in 'cat ../theirs' 'ls ..' 'ls /etc' 'cat /etc/hostname' 'echo x > ../theirs' ': > ../theirs' 'truncate -s 0 ../theirs' 'rm ../theirs' 'mkdir ../d' \
            'mv ../theirs .' 'ln ../theirs hard' 'touch /var/tmp/remuda-escape' 'mkfifo ../p'; do \
            sh -c \"$c\" 2>/dev/null && echo \"could: $c\"; done; :";
    let Some(outcome) = fixture.run(script) else { return };
    assert_eq!(outcome.text(), "inside\ndevice\nsystem\n", "{}", String::from_utf8_lossy(&outcome.stderr));
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
    request.confinement = Some(Confinement::Files {
        readable: Vec::new(),
        writable: vec!["/no/such".to_owned()],
        network: true,
    });
    supervisor.start_command(0, request);
    assert_eq!(supervisor.outcome(0).result.unwrap_err().kind, RefusalKind::NotConfined);
}

/// Needs Linux 6.12.
#[test]
fn command_of_its_own_processes_signals_and_traces_no_other() {
    let program = env!("CARGO_BIN_EXE_remuda-supervisor");
    let check =
        std::process::Command::new(program).args(["check-confinement", "processes"]).status().unwrap();
    let mut supervisor = SupervisorProcess::start("supervise");
    let script = format!(
        "kill -0 {0} 2>/dev/null && echo signalled; cat /proc/{0}/environ > /dev/null 2>&1 && echo read; \
         sleep 100 & kill $! && wait $!; echo own; echo x > file && cat file",
        std::process::id()
    );
    let directory = TempDir::new().unwrap();
    let mut request = supervisor.script(&script);
    request.cwd = directory.path().to_str().map(str::to_owned);
    request.confinement = Some(Confinement::Processes);
    supervisor.start_command(0, request);
    let outcome = supervisor.outcome(0);
    if check.success() {
        assert_eq!(outcome.text(), "own\nx\n");
    } else {
        assert_eq!(outcome.result.unwrap_err().kind, RefusalKind::NotConfined);
    }
}

/// A host's abstract socket is reachable to every process of its network namespace.
#[test]
fn namespaced_command_with_the_hosts_network_reaches_no_abstract_socket() {
    use std::os::{linux::net::SocketAddrExt as _, unix::net};

    let name = format!("remuda-test-{}", std::process::id());
    let address = net::SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = net::UnixListener::bind_addr(&address).unwrap();
    let script = format!(
        "perl -MSocket -e 'socket(my $s, AF_UNIX, SOCK_STREAM, 0) or die; \
         print connect($s, pack_sockaddr_un(\"\\0{name}\")) ? \"connected\" : \"refused\"'"
    );
    for (confinement, expected) in
        [(None, "connected"), (Some(Confinement::Namespaced { host_network: true }), "refused")]
    {
        let mut supervisor = SupervisorProcess::start("supervise");
        let mut request = supervisor.script(&script);
        request.confinement = confinement;
        supervisor.start_command(0, request);
        assert_eq!(supervisor.outcome(0).text(), expected);
    }
}

#[test]
fn command_has_no_capabilities_but_those_for_files_if_it_may() {
    for (file_capabilities, as_root) in [(false, "0000000000000000"), (true, "000000000000001f")] {
        let mut supervisor = SupervisorProcess::start("supervise");
        let mut request = supervisor.script("grep -E '^Cap(Prm|Eff)' /proc/self/status");
        request.file_capabilities = file_capabilities;
        supervisor.start_command(0, request);
        let set = if nix::unistd::geteuid().is_root() { as_root } else { "0000000000000000" };
        assert_eq!(supervisor.outcome(0).text(), format!("CapPrm:\t{set}\nCapEff:\t{set}\n"));
    }
}
