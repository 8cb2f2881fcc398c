//! Malformed gRPC requests and command-line input: the server refuses them and keeps serving.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, process::Command};

use bytes::Bytes;
use prost_reflect::prost::Message as _;
use remuda_domain::Code;
use remuda_proto::{status::from_status, v1};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::Request;

use crate::{
    api::{noop, submission},
    harness::{CommandOutput, Dev, temporary_directory},
    raw_grpc::RawGrpc,
};

const SUBMIT: &str = "remuda.v1.RunService/SubmitRun";
const GET: &str = "remuda.v1.RunService/GetRun";

fn valid_submit() -> Bytes {
    submission("s1", vec![noop(0)]).encode_to_vec().into()
}

#[tokio::test]
async fn malformed_grpc_requests_are_refused_and_the_server_keeps_serving() {
    let dev = Dev::start().await;
    let grpc = RawGrpc::connect(dev.server.endpoint()).await;

    // Field 1 of GetRun with a byte that is not UTF-8; then no protobuf at all; then a length beyond the end.
    for garbage in [&b"\x0a\x01\xff"[..], b"\xff\xff\xff\xff", b"\x0a\x7fx"] {
        let error = grpc.expect_error(GET, Request::new(Bytes::from_static(garbage))).await;
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    }
    let large = Bytes::from(vec![0; remuda_domain::limits::MAX_MESSAGE_BYTES + 1]);
    assert_eq!(grpc.expect_error(SUBMIT, Request::new(large)).await.code(), Code::TooLarge);
    for method in ["remuda.v1.RunService/Nope", "remuda.v1.Nope/Get", "x/y"] {
        assert_eq!(grpc.expect_error(method, Request::new(Bytes::new())).await.code(), Code::Unimplemented);
    }

    // An unknown field of a newer version is ignored.
    let newer = [&valid_submit()[..], b"\xfa\x3f\x03new"].concat();
    assert!(grpc.unary(SUBMIT, Request::new(newer.into())).await.is_ok());

    let with_header = |name: &'static str, value: &str| {
        let mut request = Request::new(valid_submit());
        request.metadata_mut().append(name, value.parse().unwrap());
        request
    };
    // A key that is sent must be valid even where none is required.
    for (name, value) in
        [("authorization", "Bearer rmd_x"), ("authorization", "Basic x"), ("authorization", "")]
    {
        assert_eq!(grpc.expect_error(SUBMIT, with_header(name, value)).await.code(), Code::Unauthenticated);
    }
    let mut twice = with_header("authorization", "Bearer a");
    twice.metadata_mut().append("authorization", "Bearer b".parse().unwrap());
    assert_eq!(grpc.expect_error(SUBMIT, twice).await.code(), Code::Unauthenticated);
    for timeout in ["garbage", "-1S", "99999999H", "0n"] {
        // The server may accept or refuse it, but must answer.
        grpc.unary(SUBMIT, with_header("grpc-timeout", timeout)).await.ok();
    }
    for traceparent in ["garbage", "00-00000000000000000000000000000000-0000000000000000-00"] {
        assert!(grpc.unary(SUBMIT, with_header("traceparent", traceparent)).await.is_ok());
    }
    let huge = "x".repeat(1 << 20);
    assert!(grpc.unary(SUBMIT, with_header("x-huge", &huge)).await.is_err());

    let missing = v1::SubscribeRequest::default().encode_to_vec();
    let grpc = RawGrpc::connect(dev.server.endpoint()).await;
    let error = match grpc.stream("remuda.v1.StreamService/Subscribe", missing.into()).await {
        Ok(mut events) => from_status(&events.message().await.unwrap_err()),
        Err(status) => from_status(&status),
    };
    assert_eq!(error.code(), Code::InvalidArgument);
    assert_eq!(dev.cli.run(&["run", "--tool", "noop"]).await.code, 0, "the server must keep serving");
}

#[tokio::test]
async fn other_protocols_on_the_port_do_not_disturb_the_server() {
    let dev = Dev::start().await;
    let address = dev.server.endpoint().strip_prefix("http://").unwrap().to_owned();
    for opening in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\0\0\0\0",
    ] {
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        stream.write_all(opening).await.unwrap();
        stream.shutdown().await.unwrap();
        // The server may answer, reset or close the connection.
        stream.read_to_end(&mut Vec::new()).await.ok();
    }
    assert_eq!(dev.cli.run(&["run", "--tool", "noop"]).await.code, 0, "the server must keep serving");
}

#[tokio::test]
async fn cli_refuses_invalid_utf8_files_and_endpoints() {
    let dev = Dev::start().await;
    let output = Command::new(env!("CARGO_BIN_EXE_remuda"))
        .args(["run", "--tool", "Read", "--endpoint", dev.server.endpoint(), "--arg"])
        .arg(OsStr::from_bytes(b"file_path=\xff\xfe"))
        .env_remove("REMUDA_API_KEY")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));

    let directory = temporary_directory();
    let path = directory.path().join("calls.json");
    let cases: [(&[u8], &str); 5] = [
        (b"[{\"tool\": \"Read\", \"arguments\": {\"file_path\": \"\xff\"}}]", "invalid_argument"),
        (b"{}", "invalid_argument"),
        (b"[{\"tool\": \"noop\", \"nope\": 1}]", "invalid_argument"),
        (b"[{\"tool\": \"noop\", \"timeout\": \"-1s\"}]", "invalid_argument"),
        (b"[]", "invalid_argument"),
    ];
    for (contents, code) in cases {
        std::fs::write(&path, contents).unwrap();
        let done: CommandOutput = dev.cli.run(&["run", "--calls", path.to_str().unwrap(), "--json"]).await;
        assert_eq!((done.code, done.error().0.as_str()), (2, code), "{}", done.stderr);
    }
    std::fs::write(&path, vec![b' '; remuda_domain::limits::MAX_MESSAGE_BYTES + 1]).unwrap();
    let done = dev.cli.run(&["run", "--calls", path.to_str().unwrap(), "--json"]).await;
    assert_eq!(done.error(), ("too_large".to_owned(), "calls".to_owned()));
    for endpoint in ["", "nonsense", "ftp://x", "http://", "http://127.0.0.1:1/path"] {
        let done = dev.cli.run(&["runs", "list", "--endpoint", endpoint, "--json"]).await;
        assert_eq!((done.code, done.error().1.as_str()), (2, "endpoint"), "{endpoint}: {}", done.stderr);
    }
}
