//! Signals to workers and notices to all processes, over core NATS. They share the connection with tokens: both are few
//! and urgent.

use remuda_domain::{WorkerId, error::Result, logs::Notice, worker::Signal};

use super::{Shared, messages::to_json};

/// Sends a signal. A worker that misses it finds the request in the store.
pub(super) async fn send(shared: &Shared, worker: WorkerId, signal: &Signal) -> Result<()> {
    let subject = shared.subjects.control(worker);
    let message = shared.envelope.seal(&subject, to_json(signal)?, None);
    shared.control.send("send signal", subject, message).await?;
    // The sender may be a command that exits now.
    shared.control.flush().await
}

/// Sends a notice to all processes that are subscribed now.
pub(super) async fn broadcast(shared: &Shared, notice: &Notice) -> Result<()> {
    let subject = shared.subjects.notices();
    let message = shared.envelope.seal(&subject, to_json(notice)?, None);
    shared.control.send("send notice", subject, message).await?;
    shared.control.flush().await
}
