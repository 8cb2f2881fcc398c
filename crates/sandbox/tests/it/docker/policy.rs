//! Privileges of containers, seen from inside and through the engine.

use remuda_domain::{Code, execution::ResourceLimits};
use remuda_sandbox::{Backend, Command, ExecStatus, FeatureState, docker::ContainerUser};

use super::docker_fixture::{DockerFixture, eventually, run, shell};
use crate::fixture::{LONG, code};

#[tokio::test(flavor = "multi_thread")]
async fn commands_have_no_privileges() {
    let fixture = DockerFixture::new().await;
    let sandbox = fixture.sandbox().await;
    let status = shell(&*sandbox, "cat /proc/self/status").await.stdout.text;
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(&format!("{name}:")));
        line.unwrap().split_once(':').unwrap().1.trim().to_owned()
    };
    for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(name), "0000000000000000", "{name}");
    }
    assert_eq!((field("NoNewPrivs").as_str(), field("Seccomp").as_str()), ("1", "2"));
    let ContainerUser { uid, gid } = ContainerUser::of_this_process();
    assert_eq!(field("Uid"), format!("{uid}\t{uid}\t{uid}\t{uid}"));
    assert_eq!(field("Gid"), format!("{gid}\t{gid}\t{gid}\t{gid}"));
    assert_ne!(uid, 0);

    let script = "touch /x /bin/x /.remuda/x /etc/x 2>&1; ls /sys/class/net; echo; ulimit -c";
    let result = shell(&*sandbox, script).await;
    let text = &result.stdout.text;
    assert_eq!(text.matches("Read-only file system").count(), 4, "{text}");
    assert!(text.ends_with("\nlo\n\n0\n"), "{text}");
    let result =
        shell(&*sandbox, "mount -t tmpfs none /tmp; mknod /tmp/null c 1 3; chroot / true; unshare -Ur true")
            .await;
    assert_ne!(result.status, ExecStatus::Exited(0));
    let result = shell(&*sandbox, "ls /dev; ls -d /var/run/docker.sock /run/docker.sock").await;
    for device in ["sda", "vda", "kmsg", "mem", "docker"] {
        assert!(!result.stdout.text.lines().any(|line| line.contains(device)), "{}", result.stdout.text);
    }
}

/// Commands run as the same user as the supervisors, and must not access their streams.
#[tokio::test(flavor = "multi_thread")]
async fn supervisor_is_inaccessible_to_commands() {
    let fixture = DockerFixture::new().await;
    let sandbox = fixture.sandbox().await;
    let script = "for p in 1 $PPID; do
        ls /proc/$p/fd && echo reached fd of $p
        echo nonsense > /proc/$p/fd/1 && echo wrote to $p
        cat /proc/$p/environ && echo read environ of $p
        kill -9 1 && kill -STOP 1
    done 2>/dev/null; echo done";
    let result = shell(&*sandbox, script).await;
    assert_eq!((result.status, result.stdout.text.as_str()), (ExecStatus::Exited(0), "done\n"));
    assert_eq!(shell(&*sandbox, "echo well").await.stdout.text, "well\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn host_and_container_share_the_workspace() {
    let fixture = DockerFixture::new().await;
    let sandbox = fixture.sandbox().await;
    assert_eq!(
        shell(&*sandbox, "pwd; echo from inside > in; mkdir d; id -u > d/uid").await.stdout.text,
        "/workspace\n"
    );
    let range = remuda_sandbox::ByteRange::first(100);
    assert_eq!(sandbox.read_file("/workspace/in", range).await.unwrap().bytes, b"from inside\n");
    let overwrite = remuda_sandbox::WriteMode::Overwrite;
    sandbox.write_file("e/out", b"from outside\n".to_vec(), overwrite).await.unwrap();
    let result =
        shell(&*sandbox, "cat e/out && echo more >> e/out && touch e/new && rm in && cat e/out").await;
    assert_eq!(result.stdout.text, "from outside\nfrom outside\nmore\n", "{}", result.stderr.text);
    assert_eq!(code(sandbox.stat("in").await), Code::FileNotFound);
    let mut command = Command::shell("pwd; cat uid", LONG);
    command.cwd = Some("/workspace/d".into());
    let uid = ContainerUser::of_this_process().uid;
    assert_eq!(run(&*sandbox, command).await.unwrap().stdout.text, format!("/workspace/d\n{uid}\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn image_digest_is_recorded_and_missing_images_are_rejected() {
    let fixture = DockerFixture::new().await;
    let request = fixture.request();
    fixture.backend.check(&request).await.unwrap();
    let execution_site = fixture.backend.acquire(&request).await.unwrap().execution_site().unwrap();
    let id = fixture.docker.inspect_image(&fixture.image.name).await.unwrap().id.unwrap();
    assert_eq!(
        (execution_site.image.as_str(), execution_site.digest.as_str()),
        (fixture.image.name.as_str(), id.as_str())
    );
    let container = fixture.docker.inspect_container(&fixture.only_container().await, None).await.unwrap();
    assert_eq!(container.config.unwrap().labels.unwrap()["dev.remuda.digest"], id);

    for (image, expected) in [
        (Some("remuda-no-such-image:1"), Code::ImageNotFound),
        (Some("--privileged"), Code::InvalidArgument),
        (Some("a/../../containers"), Code::InvalidArgument),
        (None, Code::InvalidArgument),
    ] {
        let mut request = fixture.request();
        request.policy.image = image.map(str::to_owned);
        for error in [
            fixture.backend.check(&request).await.unwrap_err(),
            fixture.backend.acquire(&request).await.unwrap_err(),
        ] {
            assert_eq!((error.code(), error.field()), (expected, Some("image")), "{image:?}");
        }
    }
    let mut request = fixture.request();
    request.policy.network = "remuda-no-such-network".into();
    for error in [
        fixture.backend.check(&request).await.unwrap_err(),
        fixture.backend.acquire(&request).await.unwrap_err(),
    ] {
        assert_eq!((error.code(), error.field()), (Code::NotConfigured, Some("network")), "{error}");
    }
    // Containers that failed to start are removed, too.
    eventually("only the first container", || async { fixture.containers().await.len() == 1 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn image_without_a_shell_runs_programs_only() {
    let mut fixture = DockerFixture::new().await;
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("bin")).unwrap();
    std::fs::copy("/usr/bin/busybox", root.path().join("bin/busybox")).unwrap();
    let request = fixture.request_for(root.path(), &["ENV PATH=/bin"]).await;
    let sandbox = fixture.backend.acquire(&request).await.unwrap();
    let argv = ["busybox", "echo", "hi"].map(str::to_owned).to_vec();
    let result = run(&*sandbox, Command::argv(argv, LONG)).await.unwrap();
    assert_eq!((result.status, result.stdout.text.as_str()), (ExecStatus::Exited(0), "hi\n"));
    let error = run(&*sandbox, Command::shell("echo hi", LONG)).await.unwrap_err();
    assert_eq!((error.code(), error.field()), (Code::ImageUnusable, Some("command")));
    let error = run(&*sandbox, Command::argv(vec!["ls".into()], LONG)).await.unwrap_err();
    assert_eq!((error.code(), error.field()), (Code::FileNotFound, Some("command")));
}

#[tokio::test(flavor = "multi_thread")]
async fn image_with_a_volume_is_rejected() {
    let mut fixture = DockerFixture::new().await;
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("file"), "x").unwrap();
    let request = fixture.request_for(root.path(), &["VOLUME /data"]).await;
    let error = fixture.backend.acquire(&request).await.unwrap_err();
    assert_eq!((error.code(), error.field()), (Code::ImageUnusable, Some("image")));
    assert!(fixture.containers().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn describe_reports_enforced_features() {
    let fixture = DockerFixture::new().await;
    let features = fixture.backend.describe().await;
    let state = |name: &str| features.iter().find(|feature| feature.name == name).unwrap().state;
    for name in ["engine", "runtime", "seccomp", "memory limit", "process limit", "no privileges"] {
        assert_eq!(state(name), FeatureState::Enforced, "{features:?}");
    }
    assert!(!fixture.backend.engine_id().await.unwrap().is_empty());
    let nowhere =
        remuda_sandbox::DockerOptions::new("unix:///nonexistent", "x", remuda_domain::WorkerId::new());
    let features = remuda_sandbox::DockerBackend::new(nowhere).describe().await;
    assert_eq!((features.len(), features[0].state), (1, FeatureState::Unavailable));
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_are_limited_without_a_policy() {
    let fixture = DockerFixture::new().await;
    let mut request = fixture.request();
    request.policy.limits = ResourceLimits::default();
    let sandbox = fixture.backend.acquire(&request).await.unwrap();
    // The files of cgroup v2, or of v1.
    let script = "cd /sys/fs/cgroup; cat memory.max || cat memory/memory.limit_in_bytes; \
                  (cat cpu.max || cat cpu/cpu.cfs_quota_us) | cut -d' ' -f1; cat pids.max || cat pids/pids.max";
    let found = shell(&*sandbox, script).await.stdout.text;
    let limits = ResourceLimits::default();
    let cpu_quota = ResourceLimits::CONTAINER_CPUS * 100_000.0;
    let processes = limits.processes.unwrap() + 160;
    assert_eq!(found, format!("{}\n{cpu_quota}\n{processes}\n", ResourceLimits::CONTAINER_MEMORY_BYTES));
}
