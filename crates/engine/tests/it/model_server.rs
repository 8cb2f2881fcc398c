//! A server that speaks the OpenAI chat format, to see what really goes over the wire.

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

use crate::lab::Lab;

/// Gives one answer after the other, the last one again and again.
pub(crate) struct ModelServer {
    asked: Arc<Mutex<Vec<Value>>>,
    _stop: DropGuard,
}

/// An answer in words.
pub(crate) fn say(text: &str) -> Value {
    json!({ "content": text })
}

/// An answer that wants a call.
pub(crate) fn call(tool: &str, arguments: &Value) -> Value {
    let function = json!({ "name": tool, "arguments": arguments.to_string() });
    json!({ "tool_calls": [{ "index": 0, "id": "call_1", "type": "function", "function": function }] })
}

impl ModelServer {
    /// Becomes the model of the laboratory.
    pub(crate) async fn start(lab: &Lab, answers: Vec<Value>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        lab.write(
            ".openharness/models/m.yaml",
            &format!("m: {{ provider: openai-compatible, name: wire, url: '{url}', key: sk-hidden }}\n"),
        );
        let asked: Arc<Mutex<Vec<Value>>> = Arc::default();
        let (stop, next, noted) = (CancellationToken::new(), AtomicUsize::new(0), Arc::clone(&asked));
        TaskTracker::new().spawn(stop.clone().run_until_cancelled_owned(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let Some(body) = read(&mut stream).await else { continue };
                noted.lock().unwrap().push(body);
                let turn = next.fetch_add(1, Ordering::SeqCst).min(answers.len() - 1);
                // A client that has left is none of its concern.
                drop(stream.write_all(reply(&answers[turn]).as_bytes()).await);
            }
        }));
        Self { asked, _stop: stop.drop_guard() }
    }

    /// What was asked, in order.
    pub(crate) fn asked(&self) -> Vec<Value> {
        self.asked.lock().unwrap().clone()
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
