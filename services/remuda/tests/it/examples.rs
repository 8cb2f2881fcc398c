//! The examples of the Rust client work.

use remuda_domain::RunState;

use crate::harness::Dev;

#[path = "../../../../crates/client/examples/submit_and_follow.rs"]
#[allow(dead_code, unreachable_pub, reason = "an example is a program of its own")]
mod submit_and_follow;

#[tokio::test]
async fn client_example_submits_and_follows_a_run() {
    let dev = Dev::start().await;
    let ended = submit_and_follow::submit_and_follow(dev.server.endpoint()).await.unwrap();
    assert_eq!(ended, Some(RunState::Completed));
}
