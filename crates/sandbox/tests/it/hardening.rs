//! Tests of the local backend with confinement. Where no method works, the backend must report that.

use std::{fs::Permissions, os::unix::fs::PermissionsExt as _};

use remuda_domain::{
    Code,
    execution::{ExecutionPolicy, ResourceLimits},
};
use remuda_sandbox::{Backend, Command, ExecStatus, FeatureState, Hardening, LocalBackend, LocalOptions};

use crate::fixture::{self, LONG, SandboxFixture, code};

fn backend(hardening: Hardening, bubblewrap: bool) -> LocalBackend {
    let options = LocalOptions { hardening, ..LocalOptions::default() };
    let found = options.bubblewrap.clone().filter(|_| bubblewrap);
    LocalBackend::new(LocalOptions { bubblewrap: found, ..options })
}

async fn state(backend: &LocalBackend, name: &str) -> (FeatureState, String) {
    let features = backend.describe().await;
    let feature = features.into_iter().find(|feature| feature.name == name).unwrap();
    (feature.state, feature.detail)
}

/// The confinement methods that work on this machine: a name, and a backend that uses it.
async fn methods() -> Vec<(&'static str, LocalBackend)> {
    let mut methods = Vec::new();
    for (name, bubblewrap) in [("bubblewrap", true), ("Landlock", false)] {
        let backend = backend(Hardening::Auto, bubblewrap);
        if state(&backend, "confinement").await.1.starts_with(name) {
            methods.push((name, backend));
        }
    }
    methods
}

/// A confined sandbox, with the named network if there is one.
async fn confined(backend: &LocalBackend, network: Option<&str>) -> SandboxFixture {
    let mut policy = ExecutionPolicy::default();
    if let Some(network) = network {
        policy.network = network.to_owned();
    }
    SandboxFixture::with(backend, policy).await
}

#[tokio::test]
async fn only_the_workspace_and_the_system_are_accessible() {
    for (name, backend) in methods().await {
        let fixture = confined(&backend, None).await;
        let outside = tempfile::tempdir_in("/var/tmp").unwrap();
        std::fs::write(outside.path().join("theirs"), "theirs").unwrap();
        std::fs::set_permissions(outside.path(), Permissions::from_mode(0o755)).unwrap();
        let script = format!(
            "mkdir d && echo a > d/b && mv d/b . && rm b && echo inside; \
             t=$(mktemp) && echo x > $t && rm $t && echo temporary; echo > /dev/null && echo device; \
             for c in 'cat {0}/theirs' 'ls {0}' 'ls /root' 'cat /etc/shadow' 'echo x > {0}/theirs' 'rm {0}/theirs' 'touch {0}/new' 'truncate -s 0 {0}/theirs'; do \
             sh -c \"$c\" 2>/dev/null && echo \"could: $c\"; done; :",
            outside.path().display()
        );
        let result = fixture.shell(&script).await;
        assert_eq!(result.stdout.text, "inside\ntemporary\ndevice\n", "{name}: {}", result.stderr.text);
        assert_eq!(std::fs::read_to_string(outside.path().join("theirs")).unwrap(), "theirs");
    }
}

#[tokio::test]
async fn network_is_reachable_only_if_the_policy_names_one() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = format!("(echo > /dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo connected; echo done");
    for (name, backend) in methods().await {
        assert_eq!(confined(&backend, None).await.shell(&script).await.stdout.text, "done\n", "{name}");
        let fixture = confined(&backend, Some("outside")).await;
        assert_eq!(fixture.shell(&script).await.stdout.text, "connected\ndone\n", "{name}");
    }
}

/// Confined commands satisfy the conformance suite, too.
#[tokio::test]
async fn confined_commands_pass_the_command_suite() {
    for (name, backend) in methods().await {
        macro_rules! same {
            ($($test:ident,)*) => {$(
                crate::commands::$test(confined(&backend, None).await).await;
            )*};
        }
        same![
            exit_code_and_output_streams_are_reported,
            signal_is_reported,
            environment_contains_only_allowed_variables,
            working_directory_must_be_in_the_workspace,
            stdin_is_delivered,
            timeout_ends_a_process_that_ignores_sigterm,
            cancel_kills_within_a_second,
            dropping_the_call_kills_the_command,
            background_child_does_not_outlive_the_call,
            daemon_does_not_outlive_the_call,
            usage_is_reported,
            long_output_is_spilled_to_a_file,
            many_commands_run_concurrently,
        ];
        println!("{name} passed");
    }
}

/// A command can kill everything in its namespace, and nothing of the host.
#[tokio::test]
async fn kill_all_affects_only_the_own_namespace() {
    for (name, backend) in methods().await {
        if name != "bubblewrap" {
            continue;
        }
        let fixture = confined(&backend, None).await;
        let script = "(setsid sleep 1000 &); sleep 1000 & kill -9 $PPID; kill -9 -1; echo still";
        let result = fixture.shell(script).await;
        assert!(matches!(result.status, ExecStatus::Exited(0) | ExecStatus::Signalled(9)), "{result:?}");
        fixture.assert_nothing_runs();
        let output = fixture.shell("ls /proc | grep -c '^[0-9]'").await.stdout.text;
        assert!(output.trim().parse::<u32>().unwrap() < 10, "{output}");
    }
}

/// Landlock cannot block connections to Unix sockets, so it is not enough.
#[tokio::test]
async fn required_hardening_needs_bubblewrap() {
    let outside = tempfile::tempdir().unwrap();
    let request = fixture::request(outside.path().join("workspace"), ExecutionPolicy::default());
    let none = backend(Hardening::None, true);
    assert_eq!(state(&none, "confinement").await.0, FeatureState::Off);
    none.check(&request).await.unwrap();

    let required = backend(Hardening::Required, false);
    for name in ["confinement", "network", "worker protection"] {
        assert_eq!(state(&required, name).await.0, FeatureState::Unavailable, "{name}");
    }
    assert_eq!(code(required.check(&request).await), Code::Unavailable);
    assert_eq!(code(required.acquire(&request).await), Code::Unavailable);

    let auto = backend(Hardening::Auto, false);
    assert_ne!(state(&auto, "confinement").await.0, FeatureState::Enforced);
    auto.check(&request).await.unwrap();
}

#[tokio::test]
async fn temporary_files_are_bounded_and_private() {
    for (name, backend) in methods().await {
        if name != "bubblewrap" {
            continue;
        }
        let limits = ResourceLimits { scratch_bytes: 1 << 20, ..ResourceLimits::default() };
        let policy = ExecutionPolicy { limits, ..ExecutionPolicy::default() };
        let fixture = SandboxFixture::with(&backend, policy).await;
        let others = tempfile::NamedTempFile::new_in("/tmp").unwrap();
        let script = "for d in /tmp /var/tmp /dev/shm; do head -c 3000000 /dev/zero > $d/a 2>/dev/null; \
                      stat -c %s $d/a; rm $d/a; done; touch /x /dev/x /etc/x 2>/dev/null; ls /x /dev/x /etc/x 2>/dev/null";
        assert_eq!(fixture.shell(script).await.stdout.text, "1048576\n1048576\n1048576\n");
        let script = format!("ls {} || echo hidden", others.path().display());
        assert_eq!(fixture.shell(&script).await.stdout.text, "hidden\n");
    }
}

#[tokio::test]
async fn configured_paths_are_readable() {
    let shared = tempfile::tempdir_in("/var/tmp").unwrap();
    std::fs::write(shared.path().join("tool"), "shared\n").unwrap();
    for bubblewrap in [true, false] {
        let options = LocalOptions {
            hardening: Hardening::Auto,
            readable: vec![shared.path().to_owned(), "/no/such".into()],
            ..LocalOptions::default()
        };
        let found = options.bubblewrap.clone().filter(|_| bubblewrap);
        let backend = LocalBackend::new(LocalOptions { bubblewrap: found, ..options });
        let script = format!("cat {0}/tool; echo x > {0}/new && echo written; :", shared.path().display());
        assert_eq!(confined(&backend, None).await.shell(&script).await.stdout.text, "shared\n");
    }
}

/// A program that cannot be started, or is not bubblewrap, is skipped.
#[tokio::test]
async fn unusable_bubblewrap_is_skipped() {
    for program in ["/no/such/bwrap", "/bin/true", "/bin/false"] {
        let options = LocalOptions {
            hardening: Hardening::Auto,
            bubblewrap: Some(program.into()),
            ..LocalOptions::default()
        };
        let backend = LocalBackend::new(options);
        let (_, detail) = state(&backend, "confinement").await;
        assert!(!detail.starts_with("bubblewrap"), "{detail}");
        let fixture = confined(&backend, None).await;
        let result = fixture.exec(Command::argv(vec!["true".into()], LONG)).await.unwrap();
        assert_eq!(result.status, ExecStatus::Exited(0));
    }
}
