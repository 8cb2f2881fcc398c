//! An async wrapper around the blocking servers of the testkit.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context as _, Result};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Semaphore;

/// PostgreSQL or nats-server.
#[derive(Debug)]
pub(crate) struct Server<S> {
    inner: Arc<Mutex<S>>,
    address: SocketAddr,
    /// Held by the fault that uses the server: one at a time.
    pub(crate) fault_lock: Semaphore,
}

impl<S: Send + 'static> Server<S> {
    /// Starts a server and reads its address with `address`.
    pub(crate) async fn start(
        start: impl FnOnce() -> Result<S> + Send + 'static,
        address: impl FnOnce(&S) -> SocketAddr,
    ) -> Result<Self> {
        let server = tokio::task::spawn_blocking(start).await.context("the start of a server panicked")??;
        let address = address(&server);
        Ok(Self { inner: Arc::new(Mutex::new(server)), address, fault_lock: Semaphore::new(1) })
    }

    /// The address, which stays the same over restarts.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Runs `work` on the server in a blocking thread.
    pub(crate) async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut S) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let server = Arc::clone(&self.inner);
        tokio::task::spawn_blocking(move || work(&mut server.lock()))
            .await
            .context("work on a server panicked")?
    }

    /// Locks the server, for `Drop`, which may block: waits for running [`Server::with`] calls.
    pub(crate) fn lock(&self) -> MutexGuard<'_, S> {
        self.inner.lock()
    }
}
