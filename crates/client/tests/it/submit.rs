use remuda_domain::Code;
use remuda_proto::v1;
use tonic::Status;

use crate::server::{Script, Server, until};

fn down_twice() -> Script {
    let down = || Status::unavailable("down");
    Script { submit_errors: [down(), down()].into(), ..Default::default() }
}

#[tokio::test]
async fn submit_with_a_key_is_retried() {
    let server = Server::start(down_twice());
    let request = v1::SubmitRunRequest { idempotency_key: "k".into(), ..Default::default() };
    assert!(server.client().submit(request).await.unwrap().run.is_some());
    assert_eq!(server.received().submits, 3);
}

#[tokio::test]
async fn submit_without_a_key_is_not_retried() {
    let server = Server::start(down_twice());
    let error = server.client().submit(v1::SubmitRunRequest::default()).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert_eq!(server.received().submits, 1);
}

#[tokio::test]
async fn wait_survives_a_killed_server() {
    let server = Server::start(Script::default());
    let client = server.client();
    client.submit(v1::SubmitRunRequest::default()).await.unwrap();
    let restart = async {
        until("the first wait", || server.received().waits == 1).await;
        server.restart()
    };
    let (run, server) = tokio::join!(client.wait_until_finished("run_1"), restart);
    assert_eq!(run.unwrap().id, "run_1");
    assert_eq!(server.received().waits, 3);
}
