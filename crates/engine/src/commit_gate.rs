//! The gate that holds back a run which executes ahead of its turn.

use tokio_util::sync::CancellationToken;

/// Closed until the preceding run is committed. Cheap to clone; the default gate is open.
///
/// A run behind a closed gate may read and compute. Its commits wait, and so does every call that changes anything,
/// even a repeatable one: the run may turn out not to be next in its session.
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

    /// Waits until the gate is open.
    pub async fn wait_open(&self) {
        if let Some(gate) = &self.0 {
            gate.cancelled().await;
        }
    }
}
