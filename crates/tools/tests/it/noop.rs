use std::time::{Duration, Instant};

use remuda_domain::Code;
use serde_json::{Value, json};

use crate::fixture::{ToolFixture, rejection};

#[tokio::test]
async fn noop_echoes_without_a_sandbox() {
    let fixture = ToolFixture::new();
    assert_eq!(fixture.call("noop", json!({})).await.unwrap(), Value::Null);
    let echo = json!({ "a": [1, null, "b"] });
    assert_eq!(fixture.call("noop", json!({ "echo": echo, "sleep_ms": 1 })).await.unwrap(), echo);
    let error = fixture.call("noop", json!({ "fail": "as asked" })).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::ToolFailed, "as asked"));
    assert!(fixture.context.sandbox.acquired().is_none());
    assert!(!fixture.workspace().try_exists().unwrap());
}

#[tokio::test]
async fn sleep_ends_on_cancel_and_timeout() {
    let mut fixture = ToolFixture::new();
    let start = Instant::now();
    let (answer, ()) = tokio::join!(fixture.call("noop", json!({ "sleep_ms": 600_000 })), async {
        tokio::task::yield_now().await;
        fixture.context.cancel.cancel();
    });
    assert_eq!(answer.unwrap_err().code(), Code::Cancelled);
    assert_eq!(fixture.call("noop", json!({})).await.unwrap_err().code(), Code::Cancelled);

    fixture = ToolFixture::new();
    fixture.context.timeout = Duration::from_millis(20);
    assert_eq!(
        fixture.call("noop", json!({ "sleep_ms": 600_000 })).await.unwrap_err().code(),
        Code::ToolTimedOut
    );
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn invalid_arguments_are_rejected() {
    for (arguments, field) in [
        (json!({ "sleep_ms": 600_001 }), "arguments.sleep_ms"),
        (json!({ "sleep_ms": "1" }), "arguments.sleep_ms"),
        (json!({ "fail": 1 }), "arguments.fail"),
        (json!({ "nope": 1 }), "arguments.nope"),
        (json!([]), "arguments"),
    ] {
        assert_eq!(rejection("noop", arguments).await, (Code::InvalidArgument, field.to_owned()));
    }
}
