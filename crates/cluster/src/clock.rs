//! A wall clock that jumps, for one process: libfaketime, preloaded.

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

/// The clock of a process, as an offset from the real one in a file that the process looks at whenever it asks for the time.
#[derive(Debug)]
pub(crate) struct FakeClock {
    library: PathBuf,
    file: PathBuf,
}

impl FakeClock {
    /// A clock that is right until it is set.
    pub(crate) fn create(library: PathBuf, file: PathBuf) -> Result<Self> {
        let clock = Self { library, file };
        clock.set(0)?;
        Ok(clock)
    }

    /// Jumps to so many seconds before or after the real time. Replaces the file, so that nobody reads half of it.
    pub(crate) fn set(&self, seconds: i64) -> Result<()> {
        let new = self.file.with_extension("new");
        let write = || fs::write(&new, offset(seconds)).and_then(|()| fs::rename(&new, &self.file));
        write().with_context(|| format!("cannot set the clock in {}", self.file.display()))
    }

    /// What makes a process use this clock. Only the time of day: leases are measured on the monotonic clock, which no
    /// operator sets.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        let path = |path: &Path| path.display().to_string();
        let variables = [
            ("LD_PRELOAD", path(&self.library)),
            ("FAKETIME_TIMESTAMP_FILE", path(&self.file)),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            // As versions before 0.9.9 call it.
            ("DONT_FAKE_MONOTONIC", "1".to_owned()),
        ];
        variables.map(|(name, value)| (name.to_owned(), value)).into()
    }

    /// Removes what the library leaves in shared memory for a process that has ended.
    pub(crate) fn tidy_after(pid: u32) {
        for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
            // Other versions leave nothing.
            fs::remove_file(Path::new("/dev/shm").join(name)).ok();
        }
    }
}

/// As libfaketime reads it: with a sign, in seconds.
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
