//! A client of all control planes whose calls fail over from one to the next.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use remuda_client::{Client, ClientOptions};
use remuda_cluster::Cluster;
use remuda_domain::{Code, Error};
use tokio::time::{Instant, sleep, timeout_at};

use crate::observed_history::{Micros, now};

/// How long one attempt may take before the next server is tried.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// The limit of failed attempts kept for the timeline.
const MAX_ERRORS: usize = 1_000_000;

/// The URLs of the servers. Each list has at least one.
#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    pub(crate) control_planes: Vec<String>,
    pub(crate) streams: Vec<String>,
    pub(crate) api_key: Option<String>,
    /// To register workspaces. `None` where no keys are required.
    pub(crate) operator: Option<OperatorAccess>,
}

/// A key of the operator, and the tenant of the other key.
#[derive(Clone, Debug)]
pub(crate) struct OperatorAccess {
    pub(crate) key: String,
    pub(crate) tenant: String,
}

impl OperatorAccess {
    pub(crate) fn of(cluster: &Cluster) -> Self {
        Self { key: cluster.operator_key().to_owned(), tenant: Cluster::TENANT.to_owned() }
    }
}

/// Clients of all control planes.
#[derive(Clone, Debug)]
pub(crate) struct FailoverClient {
    clients: Arc<Vec<Client>>,
    next: Arc<AtomicUsize>,
    errors: Arc<Mutex<Vec<Micros>>>,
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) enum CallError {
    /// A server refused it, and a retry would not help.
    Refused(Error),
    /// No server answered in time.
    TimedOut(Error),
}

impl CallError {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Refused(error) | Self::TimedOut(error) => error,
        }
    }
}

impl FailoverClient {
    pub(crate) fn connect(addresses: &Addresses) -> anyhow::Result<Self> {
        anyhow::ensure!(!addresses.control_planes.is_empty(), "no control plane");
        let connect = |endpoint: &String| {
            Client::connect(ClientOptions {
                endpoint: endpoint.clone(),
                api_key: addresses.api_key.clone().map(Into::into),
                connect_timeout: Duration::from_secs(2),
                request_timeout: ATTEMPT_TIMEOUT,
                // Retries are made here, on the next server.
                give_up_after: Duration::ZERO,
                ..ClientOptions::default()
            })
        };
        let clients = addresses.control_planes.iter().map(connect).collect::<Result<_, _>>()?;
        Ok(Self { clients: Arc::new(clients), next: Arc::default(), errors: Arc::default() })
    }

    /// Tries one server after the other until one answers or the time is over.
    pub(crate) async fn call<T, F>(
        &self,
        within: Duration,
        attempt: impl Fn(Client) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let deadline = Instant::now() + within;
        let mut pause = FIRST_PAUSE;
        loop {
            let turn = self.next.fetch_add(1, Ordering::Relaxed);
            let client = self.clients[turn % self.clients.len()].clone();
            let error = match timeout_at(deadline, attempt(client)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => error,
                Err(_) => Error::new(Code::DeadlineExceeded, "no server answered in time"),
            };
            self.record_error();
            if !is_retryable(error.code()) {
                return Err(CallError::Refused(error));
            }
            if Instant::now() + pause >= deadline {
                return Err(CallError::TimedOut(error));
            }
            sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    fn record_error(&self) {
        let mut errors = self.errors.lock();
        if errors.len() < MAX_ERRORS {
            errors.push(now());
        }
    }

    /// The times of failed attempts.
    pub(crate) fn errors(&self) -> Vec<Micros> {
        self.errors.lock().clone()
    }
}

/// Whether another attempt or another server may succeed.
fn is_retryable(code: Code) -> bool {
    code.is_outage() || matches!(code, Code::DeadlineExceeded | Code::Overloaded | Code::Internal)
}
