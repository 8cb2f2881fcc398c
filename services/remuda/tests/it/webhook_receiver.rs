//! An HTTP server that receives webhook deliveries.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use remuda_testkit::wait_for;
use ring::hmac;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::harness::TIMEOUT;

/// One received delivery.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    headers: HashMap<String, String>,
    pub(crate) body: String,
}

impl Delivery {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(String::as_str).unwrap_or_default()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    pub(crate) fn kind(&self) -> String {
        self.json()["type"].as_str().unwrap().to_owned()
    }

    /// Whether one of its signatures is valid.
    pub(crate) fn is_signed_with(&self, secret: &str) -> bool {
        let secret = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
        let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
        let signed =
            format!("{}.{}.{}", self.header("webhook-id"), self.header("webhook-timestamp"), self.body);
        let signatures = self.header("webhook-signature").split(' ').filter_map(|it| it.strip_prefix("v1,"));
        signatures
            .filter_map(|it| STANDARD.decode(it).ok())
            .any(|it| hmac::verify(&key, signed.as_bytes(), &it).is_ok())
    }
}

/// The response to a delivery: a status line with headers, or none at all.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Status(&'static str),
    Silence,
}

#[derive(Debug)]
struct ReceiverState {
    deliveries: Mutex<Vec<Delivery>>,
    reply: Mutex<Reply>,
    open: AtomicUsize,
    max_open: AtomicUsize,
}

/// A webhook receiver. It stops when it is dropped.
#[derive(Debug)]
pub(crate) struct WebhookReceiver {
    address: SocketAddr,
    state: Arc<ReceiverState>,
    stop: CancellationToken,
}

impl WebhookReceiver {
    pub(crate) async fn start(reply: Reply) -> Self {
        Self::start_on(0, reply).await
    }

    pub(crate) async fn start_on(port: u16, reply: Reply) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(ReceiverState {
            deliveries: Mutex::default(),
            reply: Mutex::new(reply),
            open: AtomicUsize::new(0),
            max_open: AtomicUsize::new(0),
        });
        let (stop, tasks, shared) = (CancellationToken::new(), TaskTracker::new(), Arc::clone(&state));
        let (stopped, spawner) = (stop.clone(), tasks.clone());
        tasks.spawn(stop.clone().run_until_cancelled_owned(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&shared);
                // A client that disconnects is no error here.
                let connection = async move { drop(serve_connection(stream, &state).await) };
                spawner.spawn(stopped.clone().run_until_cancelled_owned(connection));
            }
        }));
        Self { address, state, stop }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// Its address, in the form of the setting `webhooks.allowed`.
    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn set_reply(&self, reply: Reply) {
        *self.state.reply.lock().unwrap() = reply;
    }

    pub(crate) fn deliveries(&self) -> Vec<Delivery> {
        self.state.deliveries.lock().unwrap().clone()
    }

    pub(crate) fn kinds(&self) -> Vec<String> {
        self.deliveries().iter().map(Delivery::kind).collect()
    }

    /// The highest number of deliveries that were open at the same time.
    pub(crate) fn max_concurrent(&self) -> usize {
        self.state.max_open.load(Ordering::SeqCst)
    }

    pub(crate) async fn wait_for_deliveries(&self, count: usize) -> Vec<Delivery> {
        let what = format!("{count} deliveries");
        wait_for(&what, TIMEOUT, || {
            let deliveries = self.deliveries();
            std::future::ready((deliveries.len() >= count).then_some(deliveries))
        })
        .await
    }
}

impl Drop for WebhookReceiver {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn serve_connection(stream: TcpStream, state: &ReceiverState) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut headers = HashMap::new();
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        loop {
            line.clear();
            stream.read_line(&mut line).await?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let open = state.open.fetch_add(1, Ordering::SeqCst) + 1;
        state.max_open.fetch_max(open, Ordering::SeqCst);
        let body = String::from_utf8(body).unwrap();
        state.deliveries.lock().unwrap().push(Delivery { headers, body });
        let reply = state.reply.lock().unwrap().clone();
        if let Reply::Status(status) = reply {
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\nok");
            stream.write_all(head.as_bytes()).await?;
        } else {
            // Until the client gives up.
            drop(stream.read_u8().await);
        }
        state.open.fetch_sub(1, Ordering::SeqCst);
    }
}
