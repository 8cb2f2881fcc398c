use futures::StreamExt as _;
use remuda_client::{Client, ClientOptions, Target};
use remuda_domain::Code;
use remuda_proto::v1;

use crate::server::{Script, Server};

/// An address without a listener.
fn unreachable_server() -> ClientOptions {
    let mut server = Server::start(Script::default());
    server.kill();
    server.options()
}

#[tokio::test]
async fn unreachable_server_is_named_immediately() {
    let options = unreachable_server();
    let expected = format!("cannot reach the server at {}", options.endpoint);
    let client = Client::connect(options).unwrap();
    let error = client.get_server_info(v1::GetServerInfoRequest {}).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Unavailable, expected.as_str()));
    let error = client.wait_until_finished("run_1").await.unwrap_err();
    assert_eq!(error.message(), expected);
    let error = client.follow(Target::Session("s1".into()), 0).next().await.unwrap().unwrap_err();
    assert_eq!(error.message(), expected);
    let keyed = v1::SubmitRunRequest { idempotency_key: "k".into(), ..Default::default() };
    assert_eq!(client.submit(keyed).await.unwrap_err().message(), expected);
}

#[tokio::test]
async fn lost_server_is_reported_as_unavailable_with_its_address() {
    let mut server = Server::start(Script::default());
    let client = server.client();
    client.get_server_info(v1::GetServerInfoRequest {}).await.unwrap();
    server.kill();
    let error = client.get_server_info(v1::GetServerInfoRequest {}).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.message().contains(&server.url()), "{error}");
}

#[tokio::test]
async fn invalid_options_name_their_field() {
    for bad in ["", "127.0.0.1:7777", "ftp://host", "http://", "http://host/path", "a b"] {
        let options = ClientOptions { endpoint: bad.to_owned(), ..Default::default() };
        let error = Client::connect(options).unwrap_err();
        assert_eq!((error.code(), error.field()), (Code::InvalidArgument, Some("endpoint")), "{bad:?}");
    }
    let options = ClientOptions { stream_endpoint: Some("x".into()), ..Default::default() };
    assert_eq!(Client::connect(options).unwrap_err().field(), Some("stream_endpoint"));
    let options = ClientOptions { api_key: Some("a\nb".into()), ..Default::default() };
    assert_eq!(Client::connect(options).unwrap_err().field(), Some("api_key"));
}
