//! A server that speaks the OpenAI chat format and records its requests.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use crate::harness::Harness;

/// Sends one response after the other, and repeats the last one.
pub(crate) struct ModelServer {
    requests: Arc<Mutex<Vec<Value>>>,
    _stop: DropGuard,
}

/// A response with text.
pub(crate) fn say(text: &str) -> Value {
    json!({ "content": text })
}

/// A response with a tool call.
pub(crate) fn call(tool: &str, arguments: &Value) -> Value {
    let function = json!({ "name": tool, "arguments": arguments.to_string() });
    json!({ "tool_calls": [{ "index": 0, "id": "call_1", "type": "function", "function": function }] })
}

impl ModelServer {
    /// Starts the server as the model of the harness.
    pub(crate) async fn start(harness: &Harness, responses: Vec<Value>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        harness.write(
            ".openharness/models/m.yaml",
            &format!("m: {{ provider: openai-compatible, name: wire, url: '{url}', key: sk-hidden }}\n"),
        );
        let requests: Arc<Mutex<Vec<Value>>> = Arc::default();
        let (stop, next, received) = (CancellationToken::new(), AtomicUsize::new(0), Arc::clone(&requests));
        TaskTracker::new().spawn(stop.clone().run_until_cancelled_owned(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let Some(body) = read(&mut stream).await else { continue };
                received.lock().unwrap().push(body);
                let turn = next.fetch_add(1, Ordering::SeqCst).min(responses.len() - 1);
                // The client may have disconnected.
                drop(stream.write_all(reply(&responses[turn]).as_bytes()).await);
            }
        }));
        Self { requests, _stop: stop.drop_guard() }
    }

    /// The received requests, in order.
    pub(crate) fn requests(&self) -> Vec<Value> {
        self.requests.lock().unwrap().clone()
    }
}

fn reply(delta: &Value) -> String {
    let finish = if delta["tool_calls"].is_array() { "tool_calls" } else { "stop" };
    let chunk = json!({ "id": "a", "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] });
    let body = format!("data: {chunk}\n\ndata: [DONE]\n\n");
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n";
    format!("{head}content-length: {}\r\n\r\n{body}", body.len())
}

async fn read(stream: &mut TcpStream) -> Option<Value> {
    let mut received = Vec::new();
    loop {
        if let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&received[..end]).to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
            let body = &received[end + 4..];
            if body.len() >= length.parse().ok()? {
                return serde_json::from_slice(body).ok();
            }
        }
        if stream.read_buf(&mut received).await.ok()? == 0 {
            return None;
        }
    }
}
