//! All servers of one installation: calls that fail over from one to the next.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use remuda_client::{Client, ClientOptions};
use remuda_domain::{Code, Error};
use tokio::time::{Instant, sleep, timeout_at};

use crate::history::{Micros, now};

/// How long one attempt may take before the next server is asked.
const ATTEMPT: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Failed attempts that are remembered for the timeline. More would tell nothing new.
const MAX_ERRORS: usize = 1_000_000;

/// Where the servers are. Each list has at least one.
#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    pub(crate) control_planes: Vec<String>,
    pub(crate) streams: Vec<String>,
    pub(crate) api_key: Option<String>,
}

/// Clients of all control planes.
#[derive(Clone, Debug)]
pub(crate) struct Fleet {
    clients: Arc<Vec<Client>>,
    next: Arc<AtomicUsize>,
    errors: Arc<Mutex<Vec<Micros>>>,
}

/// Why a call gave nothing.
#[derive(Debug)]
pub(crate) enum CallError {
    /// A server said no, and would say so again.
    Refused(Error),
    /// Nobody gave an answer in time.
    NoAnswer(Error),
}

impl CallError {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Refused(error) | Self::NoAnswer(error) => error,
        }
    }
}

impl Fleet {
    pub(crate) fn connect(addresses: &Addresses) -> anyhow::Result<Self> {
        anyhow::ensure!(!addresses.control_planes.is_empty(), "there is no control plane to talk to");
        let connect = |endpoint: &String| {
            Client::connect(ClientOptions {
                endpoint: endpoint.clone(),
                api_key: addresses.api_key.clone().map(Into::into),
                connect_timeout: Duration::from_secs(2),
                request_timeout: ATTEMPT,
                // Whether and where to try again is decided here.
                give_up_after: Duration::ZERO,
                ..ClientOptions::default()
            })
        };
        let clients = addresses.control_planes.iter().map(connect).collect::<Result<_, _>>()?;
        Ok(Self { clients: Arc::new(clients), next: Arc::default(), errors: Arc::default() })
    }

    /// Asks one server after the other until one gives an answer or the time is over.
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
            self.note_error();
            if !may_pass(error.code()) {
                return Err(CallError::Refused(error));
            }
            if Instant::now() + pause >= deadline {
                return Err(CallError::NoAnswer(error));
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn note_error(&self) {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        if errors.len() < MAX_ERRORS {
            errors.push(now());
        }
    }

    /// When attempts failed.
    pub(crate) fn errors(&self) -> Vec<Micros> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Whether another attempt, or another server, may do better.
fn may_pass(code: Code) -> bool {
    matches!(code, Code::Unavailable | Code::DeadlineExceeded | Code::Overloaded | Code::Internal)
}
