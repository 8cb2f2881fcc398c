use std::time::{Duration, Instant};

use remuda_domain::Code;
use serde_json::json;

use crate::bench::{Bench, refused};

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
async fn long_output_says_so() {
    let answer = Bench::new().call("Bash", json!({ "command": "yes | head -c 1000000" })).await.unwrap();
    assert_eq!((&answer["truncated"], &answer["stdout_bytes"]), (&json!(true), &json!(1_000_000)));
    assert!(answer["stdout"].as_str().unwrap().len() < 270_000);
    assert_eq!(answer.get("stderr_bytes"), None);
}

#[tokio::test]
async fn the_shorter_timeout_counts() {
    let mut bench = Bench::new();
    let start = Instant::now();
    let error = bench.call("Bash", json!({ "command": "sleep 1000", "timeout_ms": 100 })).await.unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (Code::ToolTimedOut, "the tool call did not end within 100 ms")
    );
    bench.context.timeout = Duration::from_millis(100);
    let error =
        bench.call("Bash", json!({ "command": "sleep 1000", "timeout_ms": 600_000 })).await.unwrap_err();
    assert_eq!(error.code(), Code::ToolTimedOut);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[tokio::test]
async fn cancel_is_an_error() {
    let bench = Bench::new();
    let (answer, ()) = tokio::join!(bench.call("Bash", json!({ "command": "sleep 1000" })), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        bench.context.cancel.cancel();
    });
    assert_eq!(answer.unwrap_err().code(), Code::Cancelled);
    assert_eq!(bench.call("Bash", json!({ "command": "true" })).await.unwrap_err().code(), Code::Cancelled);
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
        (json!({ "command": "ls", "run_in_background": true }), "arguments.run_in_background"),
        (json!("ls"), "arguments"),
    ] {
        assert_eq!(refused("Bash", arguments).await, (Code::InvalidArgument, field.to_owned()));
    }
    let long = json!({ "command": "x".repeat(200_000) });
    assert_eq!(refused("Bash", long).await, (Code::TooLarge, "arguments.command".to_owned()));
}
