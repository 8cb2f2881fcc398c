//! Tests of the local backend with confinement. Where no method works, the backend must report that.

use remuda_domain::{Code, execution::ExecutionPolicy};
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
        let backend = backend(Hardening::Required, bubblewrap);
        if let (FeatureState::Enforced, detail) = state(&backend, "confinement").await
            && detail.starts_with(name)
        {
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
async fn only_the_workspace_can_be_written() {
    for (name, backend) in methods().await {
        let fixture = confined(&backend, None).await;
        let outside = tempfile::tempdir_in("/var/tmp").unwrap();
        std::fs::write(outside.path().join("theirs"), "theirs").unwrap();
        let script = format!(
            "mkdir d && echo a > d/b && mv d/b . && rm b && echo inside; cat {0}/theirs; echo; \
             t=$(mktemp) && echo x > $t && rm $t && echo temporary; echo > /dev/null && echo device; \
             for c in 'echo x > {0}/theirs' 'rm {0}/theirs' 'touch {0}/new' 'truncate -s 0 {0}/theirs'; do \
             sh -c \"$c\" 2>/dev/null && echo \"could: $c\"; done; :",
            outside.path().display()
        );
        let result = fixture.shell(&script).await;
        assert_eq!(
            result.stdout.text, "inside\ntheirs\ntemporary\ndevice\n",
            "{name}: {}",
            result.stderr.text
        );
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

#[tokio::test]
async fn required_hardening_fails_where_no_method_works() {
    // Without bubblewrap, Landlock is the only method, which may be unavailable.
    let outside = tempfile::tempdir().unwrap();
    let none = backend(Hardening::None, true);
    assert_eq!(state(&none, "confinement").await.0, FeatureState::Off);
    let request = fixture::request(outside.path().join("workspace"), ExecutionPolicy::default());
    none.check(&request).await.unwrap();
    let required = backend(Hardening::Required, false);
    match state(&required, "confinement").await.0 {
        FeatureState::Enforced => required.check(&request).await.unwrap(),
        FeatureState::Off | FeatureState::Unavailable => {
            assert_eq!(code(required.check(&request).await), Code::Unavailable);
            assert_eq!(code(required.acquire(&request).await), Code::Unavailable);
        }
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
