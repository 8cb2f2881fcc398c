use std::sync::Arc;

use remuda_domain::Code;
use remuda_tools::{ToolOptions, web::SearxNg};
use serde_json::{Value, json};

use crate::{
    fixture::{ToolFixture, rejection},
    server::{Reply, Server, page},
};

const RESULTS: &str = r#"{"query":"q","results":[
    {"url":"https://docs.example.org/a","title":"A","content":"about a","engine":"x"},
    {"url":"https://example.org/b","title":"B","content":null},
    {"url":"https://evilexample.org/c","title":"C","content":"c"},
    {"url":"javascript:alert(1)","title":"D","content":"d"}]}"#;

async fn search(server: &Server, arguments: Value) -> remuda_domain::Result<Value> {
    let provider = SearxNg::new(&server.url("/base/")).unwrap().with_header("x-key", "secret").unwrap();
    assert!(!format!("{provider:?}").contains("secret"));
    let options = ToolOptions { search: Some(Arc::new(provider)), ..ToolOptions::default() };
    ToolFixture::with(&options).call("WebSearch", arguments).await
}

#[tokio::test]
async fn search_returns_results_of_the_provider() {
    let server = Server::start(|request| {
        assert!(request.starts_with("GET /base/search?q=rust+%26+more&format=json HTTP/1.1"), "{request}");
        assert!(request.contains("x-key: secret"), "{request}");
        page("200 OK", "application/json", RESULTS)
    })
    .await;
    let answer = search(&server, json!({ "query": "rust & more" })).await.unwrap();
    assert_eq!(
        answer["results"][0],
        json!({ "title": "A", "url": "https://docs.example.org/a", "snippet": "about a" })
    );
    let urls = |answer: &Value| -> Vec<String> {
        answer["results"]
            .as_array()
            .unwrap()
            .iter()
            .map(|hit| hit["url"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        urls(&answer),
        ["https://docs.example.org/a", "https://example.org/b", "https://evilexample.org/c"]
    );
    let answer =
        search(&server, json!({ "query": "rust & more", "blocked_domains": ["Example.org"] })).await.unwrap();
    assert_eq!(urls(&answer), ["https://evilexample.org/c"]);
    let domains = json!(["example.org", "other.org"]);
    let answer =
        search(&server, json!({ "query": "rust & more", "allowed_domains": domains })).await.unwrap();
    assert_eq!(urls(&answer), ["https://docs.example.org/a", "https://example.org/b"]);
}

#[tokio::test]
async fn failing_provider_is_unavailable() {
    for reply in [
        page("429 Too Many", "text/plain", "no"),
        page("200 OK", "text/html", "<html>"),
        Reply::Bytes(Vec::new()),
    ] {
        let server = Server::start(move |_| reply.clone()).await;
        assert_eq!(search(&server, json!({ "query": "q" })).await.unwrap_err().code(), Code::Unavailable);
    }
    for base in ["", "ftp://x/", "search.example"] {
        assert_eq!(SearxNg::new(base).unwrap_err().field(), Some("tools.search.url"));
    }
}

#[tokio::test]
async fn search_without_a_provider_is_not_configured() {
    let error = ToolFixture::new().call("WebSearch", json!({ "query": "q" })).await.unwrap_err();
    assert_eq!(error.code(), Code::NotConfigured);
    assert!(error.message().contains("tools.search.url"));
    for (arguments, field) in [
        (json!({ "query": " " }), "arguments.query"),
        (json!({ "query": "x".repeat(500) }), "arguments.query"),
        (json!({ "query": "q", "allowed_domains": ["a b"] }), "arguments.allowed_domains"),
        (json!({ "query": "q", "blocked_domains": ["https://x"] }), "arguments.blocked_domains"),
        (json!({ "query": "q", "blocked_domains": "x" }), "arguments.blocked_domains"),
        (json!({ "query": "q", "blocked_domains": vec!["x"; 51] }), "arguments.blocked_domains"),
    ] {
        assert_eq!(rejection("WebSearch", arguments).await, (Code::InvalidArgument, field.to_owned()));
    }
}
