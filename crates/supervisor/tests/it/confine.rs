//! A command that may touch little. Where the kernel cannot do that, the command must not run.

use remuda_supervisor::{Confinement, RefusalKind, Request};
use tempfile::TempDir;

use crate::peer::{Outcome, Peer};

fn kernel_can() -> bool {
    let program = env!("CARGO_BIN_EXE_remuda-supervisor");
    std::process::Command::new(program).arg("check-confinement").status().unwrap().success()
}

struct Stage {
    directory: TempDir,
    network: bool,
}

impl Stage {
    fn new() -> Self {
        let directory = TempDir::new_in("/var/tmp").unwrap();
        std::fs::create_dir(directory.path().join("mine")).unwrap();
        std::fs::write(directory.path().join("theirs"), "theirs").unwrap();
        Self { directory, network: false }
    }

    fn request(&self, peer: &Peer, script: &str) -> Request {
        let mine = self.directory.path().join("mine").to_str().unwrap().to_owned();
        let mut request = peer.script(script);
        request.confinement = Some(Confinement { writable: vec![mine.clone()], network: self.network });
        request.cwd = Some(mine);
        request
    }

    /// Nothing, if the kernel cannot confine; that was checked then.
    fn run(&self, script: &str) -> Option<Outcome> {
        let mut peer = Peer::start("supervise");
        let request = self.request(&peer, script);
        peer.start_command(0, request);
        let outcome = peer.outcome(0);
        if !kernel_can() {
            assert_eq!(outcome.result.unwrap_err().kind, RefusalKind::NotConfined);
            return None;
        }
        Some(outcome)
    }
}

#[test]
fn it_writes_only_where_it_may() {
    let stage = Stage::new();
    let script = "echo a > file && mkdir d && echo b > d/file && mv d/file . && rm file && ln -s x y && echo inside; \
        echo null > /dev/null && echo device; cat ../theirs; \
        for c in 'echo x > ../theirs' ': > ../theirs' 'truncate -s 0 ../theirs' 'rm ../theirs' 'mkdir ../d' \
            'mv ../theirs .' 'ln ../theirs hard' 'touch /var/tmp/remuda-escape' 'mkfifo ../p'; do \
            sh -c \"$c\" 2>/dev/null && echo \"could: $c\"; done; :";
    let Some(outcome) = stage.run(script) else { return };
    assert_eq!(outcome.text(), "inside\ndevice\ntheirs", "{}", String::from_utf8_lossy(&outcome.stderr));
    assert_eq!(std::fs::read_to_string(stage.directory.path().join("theirs")).unwrap(), "theirs");
    assert_eq!(std::fs::read_dir(stage.directory.path()).unwrap().count(), 2);
}

#[test]
fn it_gets_no_namespace_mount_or_look_at_others() {
    let stage = Stage::new();
    let script = "for c in 'unshare -r true' 'unshare -n true' 'mount -t tmpfs x .' 'chroot / true'; do \
        $c 2>/dev/null && echo \"could: $c\"; done; \
        grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status; (echo threads and forks work)";
    let Some(outcome) = stage.run(script) else { return };
    assert_eq!(outcome.text(), "NoNewPrivs:\t1\nSeccomp:\t2\nthreads and forks work\n");
}

#[test]
fn it_reaches_no_network_unless_it_may() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = format!("(echo > /dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo connected; echo done");
    let mut stage = Stage::new();
    let Some(outcome) = stage.run(&script) else { return };
    assert_eq!(outcome.text(), "done\n");
    stage.network = true;
    assert_eq!(stage.run(&script).unwrap().text(), "connected\ndone\n");
}

/// Needs Linux 6.12; on others the supervisor can be killed, and takes its command along.
#[test]
fn it_cannot_kill_its_supervisor() {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let numbers: Vec<u32> = release.split(['.', '-']).map_while(|part| part.trim().parse().ok()).collect();
    if numbers < vec![6, 12] {
        return;
    }
    let Some(outcome) = Stage::new().run("kill -9 $PPID 2>/dev/null || echo refused") else { return };
    assert_eq!(outcome.text(), "refused\n");
}

#[test]
fn a_directory_that_is_missing_is_no_reason_to_run_unconfined() {
    let mut peer = Peer::start("supervise");
    let mut request = peer.script("echo ran");
    request.confinement = Some(Confinement { writable: vec!["/no/such".to_owned()], network: true });
    peer.start_command(0, request);
    assert_eq!(peer.outcome(0).result.unwrap_err().kind, RefusalKind::NotConfined);
}
