//! Test support: the transports under test.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use remuda_domain::{
    BusKeyId, Event, EventBody, EventId, MessageId, Pool, RunId, SessionId, TenantId,
    bus::{BusKey, BusSigner},
    error::Result,
    event::{Delta, DeltaKind, DeltaOf},
};
use remuda_testkit::NatsServer;
use remuda_transport::{
    BusSigning, KeySource, Memory, Nats, NatsOptions, Signing, SignsAs, Token, TokenSource, Transport,
    new_bus_secret,
};

/// Short, so that a dropped token is redelivered within a test.
pub(crate) const ACK_WAIT: Duration = Duration::from_millis(700);
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// Two handles to the same transport, as two processes would have.
pub(crate) struct TransportPair {
    pub(crate) one: Arc<dyn Transport>,
    pub(crate) other: Arc<dyn Transport>,
    pub(crate) pool: Pool,
    pub(crate) tenant: TenantId,
    _server: Option<Arc<NatsServer>>,
}

impl TransportPair {
    pub(crate) fn memory() -> Self {
        let memory = Memory::new();
        Self::new(Arc::new(memory.clone()), Arc::new(memory), None)
    }

    /// Two connections to the shared server of this binary, under a prefix of their own.
    pub(crate) async fn nats(binary: &Path) -> Self {
        let server = shared_server(binary);
        let (options, keys) = (options(&server.url()), Arc::new(Keys::new()));
        let connect = async || connect_signed(&options, &keys, Signing::Require, SignsAs::Installation).await;
        let (one, other) = (connect().await, connect().await);
        Self::new(Arc::new(one), Arc::new(other), Some(server))
    }

    fn new(one: Arc<dyn Transport>, other: Arc<dyn Transport>, server: Option<Arc<NatsServer>>) -> Self {
        Self { one, other, pool: Pool::default(), tenant: TenantId::new(), _server: server }
    }

    pub(crate) async fn publish(&self, session: SessionId) -> remuda_transport::Published {
        self.one.publish_token(&self.pool, self.tenant, session).await.unwrap()
    }

    pub(crate) async fn source(&self) -> Box<dyn TokenSource> {
        self.one.tokens(&self.pool).await.unwrap()
    }
}

/// The keys of an installation.
pub(crate) struct Keys(Mutex<Vec<BusKey>>);

impl Keys {
    pub(crate) fn new() -> Self {
        let signer = BusSigner::Installation(BusKeyId::new());
        Self(Mutex::new(vec![BusKey { signer, secret: new_bus_secret() }]))
    }

    pub(crate) fn add(&self, key: BusKey) {
        self.0.lock().unwrap().push(key);
    }
}

#[async_trait]
impl KeySource for Keys {
    async fn keys(&self) -> Result<Vec<BusKey>> {
        Ok(self.0.lock().unwrap().clone())
    }
}

pub(crate) async fn connect_signed(
    options: &NatsOptions,
    keys: &Arc<Keys>,
    signing: Signing,
    signs_as: SignsAs,
) -> Nats {
    let keys = Arc::clone(keys) as Arc<dyn KeySource>;
    let nats = Nats::connect_signed(options.clone(), BusSigning { signing, signs_as, keys }).await.unwrap();
    nats.provision(&pools()).await.unwrap();
    nats
}

pub(crate) async fn connect(options: &NatsOptions) -> Nats {
    let nats = Nats::connect(options.clone()).await.unwrap();
    nats.provision(&pools()).await.unwrap();
    nats
}

pub(crate) fn pools() -> [Pool; 2] {
    [Pool::default(), "gpu".parse().unwrap()]
}

pub(crate) fn options(url: &str) -> NatsOptions {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    NatsOptions {
        servers: vec![url.to_owned()],
        prefix: format!("t{}_{count}", std::process::id()),
        ack_wait: ACK_WAIT,
        ..NatsOptions::default()
    }
}

/// Tests that do not restart the server share one per binary, as long as any of them runs.
fn shared_server(binary: &Path) -> Arc<NatsServer> {
    static SERVERS: OnceLock<Mutex<HashMap<PathBuf, Weak<NatsServer>>>> = OnceLock::new();
    let mut servers = SERVERS.get_or_init(Mutex::default).lock().unwrap();
    if let Some(server) = servers.get(binary).and_then(Weak::upgrade) {
        return server;
    }
    let server = Arc::new(NatsServer::start(binary).unwrap());
    servers.insert(binary.to_owned(), Arc::downgrade(&server));
    server
}

/// Takes one token, retrying takes that return empty.
pub(crate) async fn take_one(source: &mut Box<dyn TokenSource>) -> Box<dyn Token> {
    let work = async {
        loop {
            if let Some(token) = source.take(1).await.unwrap().pop() {
                return token;
            }
        }
    };
    tokio::time::timeout(LONG, work).await.expect("a token should have come")
}

/// Whether no token arrives during the given time.
pub(crate) async fn stays_empty(source: &mut Box<dyn TokenSource>, during: Duration) -> bool {
    match tokio::time::timeout(during, source.take(1)).await {
        Ok(tokens) => tokens.unwrap().is_empty(),
        Err(_) => true,
    }
}

pub(crate) fn event(session: SessionId, cursor: i64) -> Event {
    let body = EventBody::RunQueued {
        seq: cursor,
        kind: "tools".to_owned(),
        pending: 1,
        labels: Default::default(),
    };
    Event { id: EventId::new(), cursor, session, run: None, at: chrono::Utc::now(), body }
}

/// A delta of one fixed message.
pub(crate) fn delta(number: i64) -> Delta {
    static MESSAGE: OnceLock<(RunId, MessageId)> = OnceLock::new();
    let (run, message) = *MESSAGE.get_or_init(|| (RunId::new(), MessageId::new()));
    let offset = number.unsigned_abs();
    Delta {
        run,
        of: DeltaOf::Message(message),
        kind: DeltaKind::Text,
        offset,
        text: format!("piece {number}"),
    }
}
