//! What a run that is executed ahead of time has to wait for.

use tokio_util::sync::CancellationToken;

/// Closed until the run before is committed. Cheap to clone; the default one is open.
///
/// A run behind it may read and compute. Whatever it wants to commit waits here, and so does every call that changes anything, even if it
/// could be repeated: the run may turn out not to be next in line.
#[derive(Clone, Debug, Default)]
pub struct Gate(Option<CancellationToken>);

impl Gate {
    #[must_use]
    pub fn closed() -> Self {
        Self(Some(CancellationToken::new()))
    }

    pub fn open(&self) {
        if let Some(gate) = &self.0 {
            gate.cancel();
        }
    }

    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.as_ref().is_none_or(CancellationToken::is_cancelled)
    }

    /// Waits until it is open.
    pub async fn passed(&self) {
        if let Some(gate) = &self.0 {
            gate.cancelled().await;
        }
    }
}
