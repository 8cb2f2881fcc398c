//! `WebFetch` of hostile pages needs little memory, and returns it. The only test of its process, whose memory it measures.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

#[path = "it/fixture.rs"]
#[expect(dead_code, reason = "this test uses a part of it")]
mod fixture;
#[path = "it/server.rs"]
#[expect(dead_code, reason = "this test uses a part of it")]
mod server;

use std::{fs, sync::Arc};

use remuda_tools::{
    ToolOptions,
    web::{AllowRule, WebOptions},
};
use serde_json::json;

use crate::{
    fixture::ToolFixture,
    server::{Reply, Server},
};

/// The largest page that is read.
const PAGE: usize = 5 << 20;
/// What a conversion may take, with the page itself, in KiB.
const LIMIT: u64 = 64 << 10;

/// A value of `/proc/self/status` in KiB.
fn memory(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap()
}

/// Forgets the highest amount of memory so far, and returns the current one.
fn reset_peak() -> u64 {
    fs::write("/proc/self/clear_refs", "5").unwrap();
    memory("VmRSS")
}

fn repeated(text: &[u8]) -> Vec<u8> {
    text.iter().copied().cycle().take(PAGE).collect()
}

fn pages() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let (html, utf16) = ("text/html", "text/html; charset=utf-16le");
    let after = |start: &[u8], text: &[u8]| [start, &repeated(text)].concat();
    let numbered: Vec<u8> = (0..).flat_map(|n| format!(" a{n}=b").into_bytes()).take(PAGE).collect();
    vec![
        ("NULs", html, repeated(b"\0")),
        ("NULs in a title", html, after(b"<title>", b"\0")),
        ("NULs in a script", html, after(b"<script>", b"\0")),
        ("NULs in a comment", html, after(b"<!--", b"\0")),
        ("nested elements", html, repeated(b"<div>")),
        ("nested hidden elements", html, repeated(b"<svg>")),
        ("unclosed links", html, repeated(b"<a href=x>")),
        ("links", html, repeated(b"<a href=x>y</a>")),
        ("one giant link target", html, after(b"<a href=\"", b"%F0")),
        ("one giant alternative text", html, after(b"<img alt=\"", b"x ")),
        ("one giant name", html, after(b"<", b"x")),
        ("many attributes", html, [b"<p".as_slice(), &numbered].concat()),
        ("entities", html, repeated(b"&NotEqualTilde;")),
        ("broken entities", html, repeated(b"&#x110000;&nope;&")),
        ("tables", html, repeated(b"<table><tr><td>1<td>2")),
        ("text", html, repeated(b"word ")),
        ("one word", html, repeated(b"x")),
        ("accents in an old encoding", "text/html; charset=windows-1252", repeated(b"\x80\xe9")),
        ("broken UTF-8", html, repeated(b"\xff\xc3")),
        ("broken UTF-16", utf16, repeated(b"\x00\xd8\x41")),
        ("NULs in UTF-16", utf16, repeated(b"\0")),
        ("doctypes", html, repeated(b"<!doctype x public \"y\">")),
        ("line breaks", html, repeated(b"<br>")),
        ("plain NULs", "text/plain", repeated(b"\0")),
        ("lines", "text/plain", repeated(b"\n")),
    ]
}

#[tokio::test]
async fn hostile_pages_need_little_memory_and_return_it() {
    let pages = Arc::new(pages());
    let served = Arc::clone(&pages);
    let server = Server::start(move |request| {
        let number: usize = request["GET /".len()..].split(' ').next().unwrap().parse().unwrap();
        let (_, media_type, body) = &served[number];
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {media_type}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        Reply::Bytes([head.as_bytes(), body].concat())
    })
    .await;
    let allowed = vec![AllowRule::parse("allowed", &server.address().to_string()).unwrap()];
    let options = ToolOptions { web: WebOptions { allowed, ..WebOptions::default() }, search: None };
    let tools = ToolFixture::with(&options);
    let fetch = async |number: usize| {
        tools.call("WebFetch", json!({ "url": server.url(&format!("/{number}")) })).await.unwrap()
    };
    // What the first call initializes stays.
    fetch(pages.len() - 1).await;
    let begin = reset_peak();
    for (number, (name, _, body)) in pages.iter().enumerate() {
        let before = reset_peak();
        let answer = fetch(number).await;
        // The server of this test holds its reply, too.
        let (taken, reply) = (memory("VmHWM").saturating_sub(before), body.len() as u64 >> 9);
        assert!(taken < LIMIT + reply, "{name}: {taken} KiB");
        assert!(answer["text"].as_str().unwrap().chars().count() <= 100_000, "{name}");
    }
    let kept = memory("VmRSS").saturating_sub(begin);
    assert!(kept < LIMIT, "{kept} KiB are kept after all pages");
}
