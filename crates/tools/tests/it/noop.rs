use std::time::{Duration, Instant};

use remuda_domain::Code;
use serde_json::{Value, json};

use crate::bench::{Bench, refused};

#[tokio::test]
async fn answers_what_it_was_given_and_needs_no_sandbox() {
    let bench = Bench::new();
    assert_eq!(bench.call("noop", json!({})).await.unwrap(), Value::Null);
    let echo = json!({ "a": [1, null, "b"] });
    assert_eq!(bench.call("noop", json!({ "echo": echo, "sleep_ms": 1 })).await.unwrap(), echo);
    let error = bench.call("noop", json!({ "fail": "as asked" })).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::ToolFailed, "as asked"));
    assert!(bench.context.sandbox.acquired().is_none());
    assert!(!bench.workspace().try_exists().unwrap());
}

#[tokio::test]
async fn sleep_ends_with_cancel_and_timeout() {
    let mut bench = Bench::new();
    let start = Instant::now();
    let (answer, ()) = tokio::join!(bench.call("noop", json!({ "sleep_ms": 600_000 })), async {
        tokio::task::yield_now().await;
        bench.context.cancel.cancel();
    });
    assert_eq!(answer.unwrap_err().code(), Code::Cancelled);
    assert_eq!(bench.call("noop", json!({})).await.unwrap_err().code(), Code::Cancelled);

    bench = Bench::new();
    bench.context.timeout = Duration::from_millis(20);
    assert_eq!(
        bench.call("noop", json!({ "sleep_ms": 600_000 })).await.unwrap_err().code(),
        Code::ToolTimedOut
    );
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn bad_arguments_are_refused() {
    for (arguments, field) in [
        (json!({ "sleep_ms": 600_001 }), "arguments.sleep_ms"),
        (json!({ "sleep_ms": "1" }), "arguments.sleep_ms"),
        (json!({ "fail": 1 }), "arguments.fail"),
        (json!({ "nope": 1 }), "arguments.nope"),
        (json!([]), "arguments"),
    ] {
        assert_eq!(refused("noop", arguments).await, (Code::InvalidArgument, field.to_owned()));
    }
}
