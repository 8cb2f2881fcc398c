//! Whether the database's disk had room for the last writes.

use std::sync::atomic::{AtomicBool, Ordering};

use remuda_domain::{Code, error::Result};

/// Remembers that a write found the disk full, until a test finds room again.
#[derive(Debug, Default)]
pub(crate) struct DiskRoom {
    is_full: AtomicBool,
}

impl DiskRoom {
    /// Takes note of the outcome of a write.
    pub(crate) fn observe<T>(&self, outcome: Result<T>) -> Result<T> {
        if matches!(&outcome, Err(error) if error.code() == Code::StorageFull)
            && !self.is_full.swap(true, Ordering::Relaxed)
        {
            tracing::error!("the database's disk is full: nothing can be stored until there is room");
        }
        outcome
    }

    /// Fails while the disk is full. `test` writes something, and is called only if a write has failed before.
    pub(crate) async fn check(&self, test: impl Future<Output = Result<()>>) -> Result<()> {
        // Taken back before the test, so that a write that fails meanwhile is not forgotten.
        if !self.is_full.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        match test.await {
            Err(error) if error.code() == Code::StorageFull => {
                self.is_full.store(true, Ordering::Relaxed);
                Err(error)
            }
            // Another failure says nothing about the disk. If it is still full, the next write finds it out.
            _ => {
                tracing::info!("the database's disk has room again");
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use remuda_domain::Error;

    use super::*;
    use crate::error::storage_full;

    #[tokio::test]
    async fn is_full_from_a_failed_write_to_a_successful_test() {
        let room = DiskRoom::default();
        let full = || Err(storage_full("no space left on device"));
        assert!(room.observe(Err::<(), _>(Error::unavailable("down"))).is_err());
        room.check(async { panic!("no test without a full disk") }).await.unwrap();
        assert!(room.observe::<()>(full()).is_err());
        for _ in 0..2 {
            assert_eq!(room.check(ready(full())).await.unwrap_err().code(), Code::StorageFull);
        }
        room.observe(Ok(())).unwrap();
        assert!(room.check(ready(full())).await.is_err(), "a small write may succeed on a full disk");
        room.check(ready(Ok(()))).await.unwrap();
        room.check(async { panic!("no test without a full disk") }).await.unwrap();
    }
}
