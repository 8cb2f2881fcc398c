use std::time::Duration;

use remuda_domain::Code;
use remuda_tools::{Registry, ToolOptions};
use serde_json::json;

use crate::bench::{Bench, alive, refused};

#[tokio::test]
async fn exit_code_and_output_are_the_result() {
    let bench = Bench::new();
    let answer = bench.call("Bash", json!({ "command": "echo out; echo err >&2; exit 3" })).await.unwrap();
    assert_eq!(answer, json!({ "exit_code": 3, "stdout": "out\n", "stderr": "err\n" }));
    let answer =
        bench.call("Bash", json!({ "command": "kill -TERM $$", "description": "dies" })).await.unwrap();
    assert_eq!(answer, json!({ "exit_code": null, "signal": 15, "stdout": "", "stderr": "" }));
}

#[tokio::test]
async fn long_output_is_kept_as_an_artifact() {
    let bench = Bench::new();
    let command = "seq 100000; echo short >&2";
    let answer = bench.call("Bash", json!({ "command": command })).await.unwrap();
    assert_eq!((&answer["truncated"], &answer["stdout_bytes"]), (&json!(true), &json!(588_895)));
    let stdout = answer["stdout"].as_str().unwrap();
    assert!(stdout.len() < 16_100 && stdout.starts_with("1\n2\n") && stdout.ends_with("\n100000\n"));
    assert_eq!((&answer["stderr"], answer.get("stderr_bytes")), (&json!("short\n"), None));

    let path = answer["artifacts"]["stdout"].as_str().unwrap();
    assert_eq!(path, format!(".openharness/state/artifacts/{}/stdout", bench.context.call));
    assert_eq!(answer["artifacts"].get("stderr"), None);
    assert!(answer["note"].as_str().unwrap().contains(path));
    let kept = std::fs::read_to_string(bench.workspace().join(path)).unwrap();
    assert_eq!((kept.len(), kept.lines().nth(49_999)), (588_895, Some("50000")));
    // What git has to see stays clean.
    let status =
        bench.call("Bash", json!({ "command": "git init -q . && git status --short" })).await.unwrap();
    assert_eq!((&status["exit_code"], &status["stdout"]), (&json!(0), &json!("")));
    // The way to the rest.
    let read = bench.call("Read", json!({ "file_path": path, "offset": 50_000, "limit": 1 })).await.unwrap();
    assert!(read["content"].as_str().unwrap().contains("50000"), "{read}");
}

#[tokio::test]
async fn the_shorter_timeout_counts() {
    let mut bench = Bench::new();
    for name in ["timeout_ms", "timeout"] {
        let error = bench.call("Bash", json!({ "command": "sleep 1000", (name): 100 })).await.unwrap_err();
        let expected = (Code::ToolTimedOut, "the tool call did not end within 100 ms");
        assert_eq!((error.code(), error.message()), expected);
    }
    bench.context.timeout = Duration::from_millis(100);
    let error =
        bench.call("Bash", json!({ "command": "sleep 1000", "timeout_ms": 600_000 })).await.unwrap_err();
    assert_eq!(error.code(), Code::ToolTimedOut);
}

#[tokio::test]
async fn cancel_is_an_error() {
    let bench = Bench::new();
    let (answer, pid) =
        tokio::join!(bench.call("Bash", json!({ "command": "echo $$ > pid; exec sleep 1000" })), async {
            let pid = bench.pid("pid").await;
            bench.context.cancel.cancel();
            pid
        });
    assert_eq!(answer.unwrap_err().code(), Code::Cancelled);
    assert!(!alive(pid));
    assert_eq!(bench.call("Bash", json!({ "command": "true" })).await.unwrap_err().code(), Code::Cancelled);
}

#[tokio::test]
async fn what_was_said_before_the_end_is_kept() {
    let bench = Bench::new();
    let command = json!({ "command": "echo so far; echo and >&2; sleep 1000", "timeout_ms": 1000 });
    let failure = bench.call_in_full("Bash", command).await.unwrap_err();
    assert_eq!(failure.error.code(), Code::ToolTimedOut);
    assert_eq!(failure.output, json!({ "stdout": "so far\n", "stderr": "and\n" }));
}

#[tokio::test]
async fn commands_run_in_the_workspace() {
    let bench = Bench::new();
    let answer =
        bench.call("Bash", json!({ "command": "pwd -P; echo $OPENHARNESS_WORKSPACE_ROOT" })).await.unwrap();
    let lines: Vec<_> = answer["stdout"].as_str().unwrap().lines().collect();
    let workspace = bench.workspace().canonicalize().unwrap();
    assert_eq!(lines, [workspace.to_str().unwrap(); 2]);
}

#[tokio::test]
async fn commands_that_wait_for_input_are_refused_with_advice() {
    let tools = Registry::native(&ToolOptions::default());
    let error =
        tools.get("Bash").unwrap().validate(&json!({ "command": "cd src && vim main.rs" })).unwrap_err();
    assert_eq!((error.code(), error.field()), (Code::NeedsInput, Some("arguments.command")));
    assert!(error.message().contains("Edit"), "{error}");
    for command in ["python3", "git rebase -i HEAD~2", "git commit", "ssh example.org", "read answer"] {
        let refusal = refused("Bash", json!({ "command": command })).await;
        assert_eq!(refusal, (Code::NeedsInput, "arguments.command".to_owned()), "{command}");
    }
    // Whatever still reads finds nothing to read.
    let answer =
        Bench::new().call("Bash", json!({ "command": "cat; if read x; then echo $x; fi" })).await.unwrap();
    assert_eq!((&answer["exit_code"], &answer["stdout"]), (&json!(0), &json!("")));
}

#[tokio::test]
async fn bad_arguments_are_refused() {
    for (arguments, field) in [
        (json!({}), "arguments.command"),
        (json!({ "command": "" }), "arguments.command"),
        (json!({ "command": " \n" }), "arguments.command"),
        (json!({ "command": "a\0b" }), "arguments.command"),
        (json!({ "command": ["ls"] }), "arguments.command"),
        (json!({ "command": "ls", "timeout_ms": 0 }), "arguments.timeout_ms"),
        (json!({ "command": "ls", "timeout_ms": -1 }), "arguments.timeout_ms"),
        (json!({ "command": "ls", "timeout_ms": 1_000_000_000 }), "arguments.timeout_ms"),
        (json!({ "command": "ls", "timeout": 0 }), "arguments.timeout_ms"),
        (json!({ "command": "ls", "timeout": 1, "timeout_ms": 1 }), "arguments"),
        (json!({ "command": "ls", "run_in_background": "yes" }), "arguments.run_in_background"),
        (json!({ "command": "ls", "background": true }), "arguments.background"),
        (json!("ls"), "arguments"),
    ] {
        let text = arguments.to_string();
        assert_eq!(refused("Bash", arguments).await, (Code::InvalidArgument, field.to_owned()), "{text}");
    }
    let long = json!({ "command": "x".repeat(200_000) });
    assert_eq!(refused("Bash", long).await, (Code::TooLarge, "arguments.command".to_owned()));
}
