//! A fake wall clock for one process, by preloading libfaketime.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use remuda_testkit::faketime_library;

/// The library that fakes the clock.
pub(crate) fn library() -> Result<PathBuf> {
    faketime_library().context("libfaketime not found; install the package faketime")
}

/// The clock of a process: an offset from the real time, in a file that the process reads whenever it reads the time.
#[derive(Debug)]
pub(crate) struct FakeClock {
    library: PathBuf,
    file: PathBuf,
}

impl FakeClock {
    /// Creates a clock that shows the real time until it is set.
    pub(crate) fn create(library: PathBuf, file: PathBuf) -> Result<Self> {
        let clock = Self { library, file };
        clock.set(0)?;
        Ok(clock)
    }

    /// Sets the offset from the real time in seconds. Replaces the file atomically.
    pub(crate) fn set(&self, seconds: i64) -> Result<()> {
        let new = self.file.with_extension("new");
        let write = || fs::write(&new, offset(seconds)).and_then(|()| fs::rename(&new, &self.file));
        write().with_context(|| format!("cannot set the clock in {}", self.file.display()))
    }

    /// The environment that makes a process use this clock. Only the wall clock is faked: leases use the monotonic clock, which
    /// cannot be set.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        let path = |path: &Path| path.display().to_string();
        let variables = [
            ("LD_PRELOAD", path(&self.library)),
            ("FAKETIME_TIMESTAMP_FILE", path(&self.file)),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            // The name in versions before 0.9.9.
            ("DONT_FAKE_MONOTONIC", "1".to_owned()),
        ];
        variables.map(|(name, value)| (name.to_owned(), value)).into()
    }

    /// Removes the shared memory files that the library leaves for a process that has ended.
    pub(crate) fn remove_shared_memory(pid: u32) {
        for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
            // Some versions leave none.
            fs::remove_file(Path::new("/dev/shm").join(name)).ok();
        }
    }
}

/// The offset in libfaketime's format: seconds with a sign.
fn offset(seconds: i64) -> String {
    format!("{seconds:+}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_have_a_sign() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("clock");
        let clock = FakeClock::create("/lib".into(), file.clone()).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "+0\n");
        clock.set(-3600).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "-3600\n");
        clock.set(60).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "+60\n");
    }
}
