//! A server of the testkit, whose methods block, in an asynchronous cluster.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context as _, Result};
use tokio::sync::Semaphore;

/// PostgreSQL or nats-server.
#[derive(Debug)]
pub(crate) struct Server<S> {
    inner: Arc<Mutex<S>>,
    address: SocketAddr,
    /// Held by the fault that plays with it: one at a time.
    pub(crate) turn: Semaphore,
}

impl<S: Send + 'static> Server<S> {
    /// Starts a server that listens on the address that `address` reads from it.
    pub(crate) async fn start(
        start: impl FnOnce() -> Result<S> + Send + 'static,
        address: impl FnOnce(&S) -> SocketAddr,
    ) -> Result<Self> {
        let server = tokio::task::spawn_blocking(start).await.context("a server's start was cut short")??;
        let address = address(&server);
        Ok(Self { inner: Arc::new(Mutex::new(server)), address, turn: Semaphore::new(1) })
    }

    /// Stays the same over restarts.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Works on the server in a thread that may block.
    pub(crate) async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut S) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let server = Arc::clone(&self.inner);
        tokio::task::spawn_blocking(move || work(&mut lock(&server)))
            .await
            .context("work on a server was cut short")?
    }

    /// For `Drop`, which may block: waits for what [`Server::with`] has under way.
    pub(crate) fn lock(&self) -> MutexGuard<'_, S> {
        lock(&self.inner)
    }
}

fn lock<S>(server: &Mutex<S>) -> MutexGuard<'_, S> {
    server.lock().unwrap_or_else(PoisonError::into_inner)
}
