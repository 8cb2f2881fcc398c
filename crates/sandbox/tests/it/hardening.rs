//! The local backend with walls. Where this machine has none, that must be said.

use remuda_domain::{Code, execution::ExecutionPolicy};
use remuda_sandbox::{Backend, Command, ExecStatus, FeatureState, Hardening, LocalBackend, LocalOptions};

use crate::bench::{self, Bench, LONG, code};

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

/// The ways that work here: a name, and a backend that confines that way.
async fn ways() -> Vec<(&'static str, LocalBackend)> {
    let mut ways = Vec::new();
    for (name, bubblewrap) in [("bubblewrap", true), ("Landlock", false)] {
        let backend = backend(Hardening::Required, bubblewrap);
        if let (FeatureState::Enforced, detail) = state(&backend, "confinement").await
            && detail.starts_with(name)
        {
            ways.push((name, backend));
        }
    }
    ways
}

/// With a network, if one is named.
async fn walled(backend: &LocalBackend, network: Option<&str>) -> Bench {
    let mut policy = ExecutionPolicy::default();
    if let Some(network) = network {
        policy.network = network.to_owned();
    }
    Bench::with(backend, policy).await
}

#[tokio::test]
async fn only_the_workspace_can_be_written() {
    for (name, backend) in ways().await {
        let bench = walled(&backend, None).await;
        let outside = tempfile::tempdir_in("/var/tmp").unwrap();
        std::fs::write(outside.path().join("theirs"), "theirs").unwrap();
        let script = format!(
            "mkdir d && echo a > d/b && mv d/b . && rm b && echo inside; cat {0}/theirs; echo; \
             t=$(mktemp) && echo x > $t && rm $t && echo temporary; echo > /dev/null && echo device; \
             for c in 'echo x > {0}/theirs' 'rm {0}/theirs' 'touch {0}/new' 'truncate -s 0 {0}/theirs'; do \
             sh -c \"$c\" 2>/dev/null && echo \"could: $c\"; done; :",
            outside.path().display()
        );
        let result = bench.shell(&script).await;
        assert_eq!(
            result.stdout.text, "inside\ntheirs\ntemporary\ndevice\n",
            "{name}: {}",
            result.stderr.text
        );
        assert_eq!(std::fs::read_to_string(outside.path().join("theirs")).unwrap(), "theirs");
    }
}

#[tokio::test]
async fn without_a_network_there_is_none() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = format!("(echo > /dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo connected; echo done");
    for (name, backend) in ways().await {
        assert_eq!(walled(&backend, None).await.shell(&script).await.stdout.text, "done\n", "{name}");
        let bench = walled(&backend, Some("outside")).await;
        assert_eq!(bench.shell(&script).await.stdout.text, "connected\ndone\n", "{name}");
    }
}

/// Behind walls a command is held as well as without.
#[tokio::test]
async fn what_holds_without_walls_holds_behind_them() {
    for (name, backend) in ways().await {
        macro_rules! same {
            ($($test:ident,)*) => {$(
                crate::commands::$test(walled(&backend, None).await).await;
            )*};
        }
        same![
            echo_exit_code_and_streams,
            signal_is_reported,
            environment_is_only_what_is_allowed,
            runs_in_the_workspace_or_beneath,
            input_is_given,
            timeout_ends_a_process_that_ignores_sigterm,
            cancel_is_quick,
            dropping_the_call_kills,
            background_child_does_not_outlive_the_call,
            a_daemon_does_not_outlive_the_call,
            usage_is_reported,
            long_output_is_kept_in_a_file,
            many_at_once,
        ];
        println!("{name} holds");
    }
}

/// Of a namespace, it can kill everything in there; of the machine, nothing.
#[tokio::test]
async fn killing_everyone_kills_only_ones_own() {
    for (name, backend) in ways().await {
        if name != "bubblewrap" {
            continue;
        }
        let bench = walled(&backend, None).await;
        let script = "(setsid sleep 1000 &); sleep 1000 & kill -9 $PPID; kill -9 -1; echo still";
        let result = bench.shell(script).await;
        assert!(matches!(result.status, ExecStatus::Exited(0) | ExecStatus::Signalled(9)), "{result:?}");
        bench.assert_nothing_runs();
        let seen = bench.shell("ls /proc | grep -c '^[0-9]'").await.stdout.text;
        assert!(seen.trim().parse::<u32>().unwrap() < 10, "{seen}");
    }
}

#[tokio::test]
async fn where_nothing_works_required_refuses_and_says_so() {
    // A bubblewrap that is none, as the only way: as if the kernel could not.
    let outside = tempfile::tempdir().unwrap();
    let none = backend(Hardening::None, true);
    assert_eq!(state(&none, "confinement").await.0, FeatureState::Off);
    let request = bench::request(outside.path().join("workspace"), ExecutionPolicy::default());
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

/// One that cannot be started, or does something else, is passed over.
#[tokio::test]
async fn a_broken_bubblewrap_is_not_used() {
    for program in ["/no/such/bwrap", "/bin/true", "/bin/false"] {
        let options = LocalOptions {
            hardening: Hardening::Auto,
            bubblewrap: Some(program.into()),
            ..LocalOptions::default()
        };
        let backend = LocalBackend::new(options);
        let (_, detail) = state(&backend, "confinement").await;
        assert!(!detail.starts_with("bubblewrap"), "{detail}");
        let bench = walled(&backend, None).await;
        let result = bench.exec(Command::argv(vec!["true".into()], LONG)).await.unwrap();
        assert_eq!(result.status, ExecStatus::Exited(0));
    }
}
