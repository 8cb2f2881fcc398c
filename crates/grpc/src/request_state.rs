//! What the server knows about the request that the current task handles: its sender, its caller, the memory of its body.
//!
//! A task-local value, so that it costs a request neither an allocation nor a lock.

use std::{
    cell::{Cell, OnceCell, RefCell},
    future::Future,
    net::{IpAddr, Ipv4Addr},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use remuda_domain::{Code, Error, error::Result};
use tokio::time::timeout;

use crate::{
    auth::Caller,
    body_budget::{BodyBudget, Reservation},
    key_validity::KeyValidity,
};

/// A request that takes longer than this ends when its caller's key does. A key is cached longer than this, so that
/// shorter requests need no watch.
const UNWATCHED: Duration = Duration::from_secs(1);
/// Limit of the body of a request without a caller, such as a health check or reflection.
const MAX_ANONYMOUS_BODY: usize = 16 << 10;
/// The first bytes of such a body are not counted: health checks work even if the memory for bodies is used up.
const UNCOUNTED: usize = 256;

tokio::task_local! {
    static CURRENT: RequestState;
}

/// The state of one request. What it reserves is released when it is dropped.
#[derive(Debug)]
pub struct RequestState {
    peer: IpAddr,
    caller: OnceCell<Arc<Caller>>,
    /// Bytes of the body that have arrived.
    received: Cell<usize>,
    body: RefCell<Reservation>,
}

impl RequestState {
    /// The state of a request on a connection from this address.
    #[must_use]
    pub(crate) fn new(peer: IpAddr, budget: &BodyBudget) -> Self {
        let body = RefCell::new(Reservation::new(budget.clone()));
        Self { peer: peer.to_canonical(), caller: OnceCell::new(), received: Cell::new(0), body }
    }

    /// Handles the request with this state.
    pub async fn scope<T>(self, work: impl Future<Output = T>) -> T {
        CURRENT.scope(self, work).await
    }
}

/// The address of the peer; unspecified outside of a request.
pub(crate) fn peer() -> IpAddr {
    CURRENT.try_with(|state| state.peer).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
}

/// The caller, once the request is authenticated.
pub(crate) fn caller() -> Option<Arc<Caller>> {
    CURRENT.try_with(|state| state.caller.get().cloned()).ok().flatten()
}

/// Remembers the caller of the current request.
pub(crate) fn set_caller(caller: &Arc<Caller>) {
    // Outside of a request nothing remembers it, and a request has one caller.
    CURRENT.try_with(|state| state.caller.set(Arc::clone(caller)).ok()).ok();
}

/// Reserves memory for a further piece of the request's body, until the request is over. On failure it releases what the
/// body has: its reader drops it.
pub(crate) fn reserve(bytes: usize) -> Result<()> {
    let reserve = |state: &RequestState| {
        let received = state.received.get().saturating_add(bytes);
        state.received.set(received);
        let mut body = state.body.borrow_mut();
        let reserved = match state.caller.get() {
            Some(caller) => body.grow(Some(caller.memory()), bytes),
            None if received <= MAX_ANONYMOUS_BODY => {
                body.grow(None, bytes.min(received.saturating_sub(UNCOUNTED)))
            }
            None => {
                let message = format!("expected at most {MAX_ANONYMOUS_BODY} bytes without an API key");
                Err(Error::new(Code::TooLarge, message).at("body"))
            }
        };
        reserved.inspect_err(|_| body.release())
    };
    CURRENT.try_with(reserve).unwrap_or(Ok(()))
}

/// Runs the work of a request. Fails after `limit`, and when the caller's key ends before the work does.
pub async fn within_limits<T>(limit: Duration, work: impl Future<Output = T>) -> Result<T> {
    let mut work = pin!(work);
    if let Ok(outcome) = timeout(limit.min(UNWATCHED), &mut work).await {
        return Ok(outcome);
    }
    let key = caller().map_or_else(KeyValidity::default, |caller| caller.validity());
    tokio::select! {
        outcome = timeout(limit.saturating_sub(UNWATCHED), work) => {
            outcome.map_err(|_| Error::new(Code::DeadlineExceeded, format!("no answer within {limit:?}")))
        }
        error = key.ended() => Err(error),
    }
}
