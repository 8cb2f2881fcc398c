use std::{
    collections::VecDeque,
    io,
    net::IpAddr,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use remuda_domain::Code;
use remuda_tools::{
    ToolOptions,
    web::{AllowRule, Resolve, WebOptions},
};
use serde_json::{Value, json};

use crate::{
    fixture::{ToolFixture, rejection},
    server::{Reply, Server, page},
};

/// Options that allow only this server.
fn options(server: &Server) -> ToolOptions {
    let allowed = vec![AllowRule::parse("allowed", &server.address().to_string()).unwrap()];
    ToolOptions { web: WebOptions { allowed, ..WebOptions::default() }, search: None }
}

async fn fetch(options: &ToolOptions, url: String) -> remuda_domain::Result<Value> {
    ToolFixture::with(options).call("WebFetch", json!({ "url": url })).await
}

async fn fails(options: &ToolOptions, url: String) -> Code {
    fetch(options, url).await.unwrap_err().code()
}

#[tokio::test]
async fn html_page_becomes_text() {
    let server = Server::start(|request| {
        assert!(request.contains("user-agent: Remuda/"), "{request}");
        page(
            "200 OK",
            "text/html; charset=utf-8",
            "<title>T</title><h1>Hello</h1><p>See <a href='/x'>this</a>.",
        )
    })
    .await;
    let answer = fetch(&options(&server), server.url("/a?b#c")).await.unwrap();
    let text = format!("# Hello\n\nSee [this]({}).", server.url("/x"));
    let url = server.url("/a?b");
    assert_eq!(
        answer,
        json!({
            "url": url, "status": 200, "content_type": "text/html", "bytes": 59, "title": "T",
            "text": text, "truncated": false
        })
    );
    assert_eq!(server.requests(), 1);
}

#[tokio::test]
async fn error_status_is_a_result() {
    let server = Server::start(|_| page("404 Not Found", "text/plain", "nothing here")).await;
    let answer = fetch(&options(&server), server.url("/")).await.unwrap();
    assert_eq!((&answer["status"], &answer["text"]), (&json!(404), &json!("nothing here")));
}

#[tokio::test]
async fn binary_content_is_only_described() {
    let server = Server::start(|_| page("200 OK", "image/png", "\u{1}\u{2}\u{3}")).await;
    let answer = fetch(&options(&server), server.url("/")).await.unwrap();
    assert_eq!(
        answer,
        json!({ "url": server.url("/"), "status": 200, "content_type": "image/png", "bytes": 3 })
    );
}

#[tokio::test]
async fn wrong_charsets_are_tolerated() {
    let server = Server::start(|request| {
        let charset = request.split(' ').nth(1).unwrap().trim_start_matches('/').to_owned();
        let mut reply =
            format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset={charset}\r\n\r\n").into_bytes();
        reply.extend(b"caf\xe9");
        Reply::Bytes(reply)
    })
    .await;
    for (charset, text) in [("iso-8859-1", "café"), ("utf-8", "caf\u{fffd}"), ("nonsense", "caf\u{fffd}")] {
        let answer = fetch(&options(&server), server.url(&format!("/{charset}"))).await.unwrap();
        assert_eq!(answer["text"], text, "{charset}");
    }
}

#[tokio::test]
async fn redirects_are_followed_within_the_host_only() {
    let server = Server::start(|request| {
        let location = match request.split(' ').nth(1).unwrap() {
            "/start" => "/middle",
            "/middle" => "end",
            "/end" => return page("200 OK", "text/plain", "arrived"),
            "/loop" => "/loop",
            "/metadata" => "http://169.254.169.254/latest/meta-data/",
            "/localhost" => "http://localhost/",
            "/port" => "http://127.0.0.1:22/",
            "/user" => "//me:secret@127.0.0.1/",
            "/file" => "file:///etc/passwd",
            "/gopher" => "gopher://127.0.0.1:70/",
            other => panic!("{other}"),
        };
        Reply::Bytes(
            format!("HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n").into_bytes(),
        )
    })
    .await;
    let options = options(&server);
    let answer = fetch(&options, server.url("/start")).await.unwrap();
    assert_eq!((&answer["text"], &answer["url"]), (&json!("arrived"), &json!(server.url("/end"))));

    for (path, target) in
        [("/metadata", "http://169.254.169.254/latest/meta-data/"), ("/localhost", "http://localhost/")]
    {
        let before = server.requests();
        let answer = fetch(&options, server.url(path)).await.unwrap();
        let expected = json!({ "url": server.url(path), "status": 302, "redirect_to": target });
        assert_eq!((answer, server.requests()), (expected, before + 1));
        // Following it explicitly is rejected.
        assert_eq!(fails(&options, target.to_owned()).await, Code::AddressNotAllowed);
    }
    assert_eq!(fails(&options, server.url("/port")).await, Code::AddressNotAllowed);
    assert_eq!(fails(&options, server.url("/user")).await, Code::InvalidArgument);
    assert_eq!(fails(&options, server.url("/file")).await, Code::ToolFailed);
    assert_eq!(fails(&options, server.url("/gopher")).await, Code::ToolFailed);
    let before = server.requests();
    assert_eq!(fails(&options, server.url("/loop")).await, Code::ToolFailed);
    assert_eq!(server.requests() - before, 6);
}

#[tokio::test]
async fn only_public_addresses_can_be_reached() {
    let options = ToolOptions::default();
    for url in [
        "http://127.0.0.1/",
        "http://localhost/",
        "https://localhost:443/",
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://017700000001/",
        "http://0/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://169.254.169.254/",
        "http://[::ffff:169.254.169.254]/",
        "http://[fd00:ec2::254]/",
        "http://100.100.100.200/",
        "http://10.0.0.1/",
        "http://172.16.0.1/",
        "http://192.168.0.1/",
        "http://[fe80::1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[2002:7f00:1::]/",
        "http://224.0.0.1/",
        "http://255.255.255.255/",
        "http://1.1.1.1:22/",
        "https://1.1.1.1:8443/",
    ] {
        let error = fetch(&options, url.to_owned()).await.unwrap_err();
        assert_eq!(
            (error.code(), error.field()),
            (Code::AddressNotAllowed, Some("arguments.url")),
            "{url}: {error}"
        );
    }
}

/// Resolver that returns the next scripted result on each call.
#[derive(Debug)]
struct ScriptedResolver {
    answers: Mutex<VecDeque<Vec<IpAddr>>>,
    wait_for_request: AtomicUsize,
}

impl ScriptedResolver {
    fn new(answers: &[&[&str]]) -> Arc<Self> {
        let parse = |answer: &&[&str]| answer.iter().map(|address| address.parse().unwrap()).collect();
        Arc::new(Self {
            answers: Mutex::new(answers.iter().map(parse).collect()),
            wait_for_request: AtomicUsize::new(0),
        })
    }
}

#[async_trait]
impl Resolve for ScriptedResolver {
    async fn resolve(&self, _host: &str) -> io::Result<Vec<IpAddr>> {
        self.wait_for_request.fetch_add(1, Ordering::Relaxed);
        let next = self.answers.lock().unwrap().pop_front();
        next.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }
}

#[tokio::test]
async fn dns_rebinding_is_prevented() {
    let server = Server::start(|request| match request.split(' ').nth(1).unwrap() {
        "/again" => {
            Reply::Bytes(b"HTTP/1.1 302 Found\r\nlocation: /page\r\ncontent-length: 0\r\n\r\n".to_vec())
        }
        _ => page("200 OK", "text/plain", "here"),
    })
    .await;
    let with = |names: &Arc<ScriptedResolver>| {
        let mut options = options(&server);
        options.web.resolver = Arc::<ScriptedResolver>::clone(names);
        options
    };
    let port = server.address().port();
    // Resolved once: the second result is never used.
    let names = ScriptedResolver::new(&[&["127.0.0.1"], &["127.0.0.2"]]);
    let answer = fetch(&with(&names), format!("http://rebind.test:{port}/page")).await.unwrap();
    assert_eq!((&answer["text"], names.wait_for_request.load(Ordering::Relaxed)), (&json!("here"), 1));
    // A redirect is resolved and checked again.
    let names = ScriptedResolver::new(&[&["127.0.0.1"], &["127.0.0.2"]]);
    let before = server.requests();
    assert_eq!(
        fails(&with(&names), format!("http://rebind.test:{port}/again")).await,
        Code::AddressNotAllowed
    );
    assert_eq!((server.requests() - before, names.wait_for_request.load(Ordering::Relaxed)), (1, 2));
    // One forbidden address among allowed ones.
    for answer in
        [&["1.1.1.1", "127.0.0.1"][..], &["1.1.1.1", "169.254.169.254"], &["1.1.1.1", "::1"], &["10.0.0.1"]]
    {
        let names = ScriptedResolver::new(&[answer]);
        assert_eq!(fails(&with(&names), "http://mixed.test/".to_owned()).await, Code::AddressNotAllowed);
    }
    for answers in [&[&[][..]][..], &[]] {
        let names = ScriptedResolver::new(answers);
        assert_eq!(fails(&with(&names), "http://missing.test/".to_owned()).await, Code::ToolFailed);
    }
}

#[tokio::test]
async fn endless_bodies_are_truncated() {
    let server =
        Server::start(|_| Reply::Endless(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n".to_vec()))
            .await;
    let answer = fetch(&options(&server), server.url("/")).await.unwrap();
    assert_eq!((&answer["bytes"], &answer["truncated"]), (&json!(5 << 20), &json!(true)));
    assert_eq!(answer["text"].as_str().unwrap().len(), 100_000);
}

#[tokio::test]
async fn body_limit_applies_after_decompression() {
    let bomb = std::process::Command::new("sh")
        .args(["-c", "head -c 60000000 /dev/zero | tr '\\0' a | gzip -9"])
        .stdin(Stdio::null())
        .output()
        .unwrap()
        .stdout;
    assert!(bomb.len() < 100_000);
    let server = Server::start(move |request| {
        assert!(request.contains("accept-encoding: gzip"), "{request}");
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-encoding: gzip\r\n";
        let mut reply = format!("{head}content-length: {}\r\n\r\n", bomb.len()).into_bytes();
        reply.extend(&bomb);
        Reply::Bytes(reply)
    })
    .await;
    let answer = fetch(&options(&server), server.url("/")).await.unwrap();
    assert_eq!((&answer["bytes"], &answer["truncated"]), (&json!(5 << 20), &json!(true)));
}

#[tokio::test]
async fn slow_servers_time_out() {
    for head in [
        &b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 100\r\n\r\nsome"[..],
        b"HTTP/1.1 200",
        b"",
    ] {
        let server = Server::start(move |_| Reply::Stalled(head.to_vec())).await;
        let mut options = options(&server);
        options.web.timeout = Duration::from_millis(300);
        assert_eq!(fails(&options, server.url("/")).await, Code::ToolTimedOut);
    }
}

#[tokio::test]
async fn broken_responses_are_errors() {
    for reply in [
        &b"nonsense\r\n\r\n"[..],
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 100\r\n\r\nshort",
    ] {
        let server = Server::start(move |_| Reply::Bytes(reply.to_vec())).await;
        assert_eq!(fails(&options(&server), server.url("/")).await, Code::ToolFailed);
    }
    let huge = Server::start(|_| {
        Reply::Bytes(format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(2 << 20)).into_bytes())
    })
    .await;
    assert_eq!(fails(&options(&huge), huge.url("/")).await, Code::ToolFailed);
}

#[tokio::test]
async fn invalid_urls_are_rejected() {
    for url in [
        "",
        "example.org",
        "ftp://example.org/",
        "file:///etc/passwd",
        "http://a@127.0.0.1/",
        "http://a:b@c/",
    ] {
        let rejected = rejection("WebFetch", json!({ "url": url })).await;
        assert_eq!(rejected, (Code::InvalidArgument, "arguments.url".to_owned()), "{url}");
    }
    assert_eq!(rejection("WebFetch", json!({})).await.1, "arguments.url");
}

#[tokio::test]
async fn cancel_ends_a_fetch() {
    let server = Server::start(|_| Reply::Stalled(Vec::new())).await;
    let fixture = ToolFixture::with(&options(&server));
    let (answer, ()) = tokio::join!(fixture.call("WebFetch", json!({ "url": server.url("/") })), async {
        server.wait_for_request().await;
        fixture.context.cancel.cancel();
    });
    assert_eq!(answer.unwrap_err().code(), Code::Cancelled);
    assert!(fixture.context.sandbox.acquired().is_none());
}
