use std::time::Duration;

use remuda_domain::Code;
use remuda_tools::{Registry, ToolOptions};
use serde_json::json;

use crate::fixture::{ToolFixture, alive, rejection};

#[tokio::test]
async fn exit_code_and_output_are_the_result() {
    let fixture = ToolFixture::new();
    let answer = fixture.call("Bash", json!({ "command": "echo out; echo err >&2; exit 3" })).await.unwrap();
    assert_eq!(answer, json!({ "exit_code": 3, "stdout": "out\n", "stderr": "err\n" }));
    let answer =
        fixture.call("Bash", json!({ "command": "kill -TERM $$", "description": "dies" })).await.unwrap();
    assert_eq!(answer, json!({ "exit_code": null, "signal": 15, "stdout": "", "stderr": "" }));
}

#[tokio::test]
async fn long_output_is_stored_as_an_artifact() {
    let fixture = ToolFixture::new();
    let command = "seq 100000; echo short >&2";
    let answer = fixture.call("Bash", json!({ "command": command })).await.unwrap();
    assert_eq!((&answer["truncated"], &answer["stdout_bytes"]), (&json!(true), &json!(588_895)));
    let stdout = answer["stdout"].as_str().unwrap();
    assert!(stdout.len() < 16_100 && stdout.starts_with("1\n2\n") && stdout.ends_with("\n100000\n"));
    assert_eq!((&answer["stderr"], answer.get("stderr_bytes")), (&json!("short\n"), None));

    let path = answer["artifacts"]["stdout"].as_str().unwrap();
    assert_eq!(path, format!(".openharness/state/artifacts/{}/stdout", fixture.context.call));
    assert_eq!(answer["artifacts"].get("stderr"), None);
    assert!(answer["note"].as_str().unwrap().contains(path));
    let kept = std::fs::read_to_string(fixture.workspace().join(path)).unwrap();
    assert_eq!((kept.len(), kept.lines().nth(49_999)), (588_895, Some("50000")));
    // The work tree stays clean for git.
    let status =
        fixture.call("Bash", json!({ "command": "git init -q . && git status --short" })).await.unwrap();
    assert_eq!((&status["exit_code"], &status["stdout"]), (&json!(0), &json!("")));
    // The rest can be read from the artifact.
    let read =
        fixture.call("Read", json!({ "file_path": path, "offset": 50_000, "limit": 1 })).await.unwrap();
    assert!(read["content"].as_str().unwrap().contains("50000"), "{read}");
}

#[tokio::test]
async fn shorter_of_both_timeouts_applies() {
    let mut fixture = ToolFixture::new();
    for name in ["timeout_ms", "timeout"] {
        let error = fixture.call("Bash", json!({ "command": "sleep 1000", (name): 100 })).await.unwrap_err();
        let expected = (Code::ToolTimedOut, "the tool call did not end within 100 ms");
        assert_eq!((error.code(), error.message()), expected);
    }
    fixture.context.timeout = Duration::from_millis(100);
    let error =
        fixture.call("Bash", json!({ "command": "sleep 1000", "timeout_ms": 600_000 })).await.unwrap_err();
    assert_eq!(error.code(), Code::ToolTimedOut);
}

#[tokio::test]
async fn cancelled_call_fails_with_cancelled() {
    let fixture = ToolFixture::new();
    let (answer, pid) =
        tokio::join!(fixture.call("Bash", json!({ "command": "echo $$ > pid; exec sleep 1000" })), async {
            let pid = fixture.pid("pid").await;
            fixture.context.cancel.cancel();
            pid
        });
    assert_eq!(answer.unwrap_err().code(), Code::Cancelled);
    assert!(!alive(pid));
    assert_eq!(fixture.call("Bash", json!({ "command": "true" })).await.unwrap_err().code(), Code::Cancelled);
}

#[tokio::test]
async fn timed_out_call_returns_partial_output() {
    let fixture = ToolFixture::new();
    let command = json!({ "command": "echo so far; echo and >&2; sleep 1000", "timeout_ms": 1000 });
    let failure = fixture.call_with_output("Bash", command).await.unwrap_err();
    assert_eq!(failure.error.code(), Code::ToolTimedOut);
    assert_eq!(failure.output, json!({ "stdout": "so far\n", "stderr": "and\n" }));
}

#[tokio::test]
async fn commands_run_in_the_workspace() {
    let fixture = ToolFixture::new();
    let answer =
        fixture.call("Bash", json!({ "command": "pwd -P; echo $OPENHARNESS_WORKSPACE_ROOT" })).await.unwrap();
    let lines: Vec<_> = answer["stdout"].as_str().unwrap().lines().collect();
    let workspace = fixture.workspace().canonicalize().unwrap();
    assert_eq!(lines, [workspace.to_str().unwrap(); 2]);
}

#[tokio::test]
async fn interactive_commands_are_rejected_with_advice() {
    let tools = Registry::native(&ToolOptions::default());
    let error =
        tools.get("Bash").unwrap().validate(&json!({ "command": "cd src && vim main.rs" })).unwrap_err();
    assert_eq!((error.code(), error.field()), (Code::NeedsInput, Some("arguments.command")));
    assert!(error.message().contains("Edit"), "{error}");
    for command in ["python3", "git rebase -i HEAD~2", "git commit", "ssh example.org", "read answer"] {
        let rejected = rejection("Bash", json!({ "command": command })).await;
        assert_eq!(rejected, (Code::NeedsInput, "arguments.command".to_owned()), "{command}");
    }
    // Commands that read anyway get an empty stdin.
    let answer = ToolFixture::new()
        .call("Bash", json!({ "command": "cat; if read x; then echo $x; fi" }))
        .await
        .unwrap();
    assert_eq!((&answer["exit_code"], &answer["stdout"]), (&json!(0), &json!("")));
}

#[tokio::test]
async fn invalid_arguments_are_rejected() {
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
        assert_eq!(rejection("Bash", arguments).await, (Code::InvalidArgument, field.to_owned()), "{text}");
    }
    let long = json!({ "command": "x".repeat(200_000) });
    assert_eq!(rejection("Bash", long).await, (Code::TooLarge, "arguments.command".to_owned()));
}
