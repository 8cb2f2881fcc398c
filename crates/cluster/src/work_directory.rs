//! The directory of a cluster, which is removed even if this process is killed.

use std::{
    fs,
    io::{self, Write},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result};
use remuda_testkit::{find_program, wait_until};

/// A shell process that waits for the end of its stdin, which comes however this process ends, and then removes the directory
/// unless it has read `keep`. It retries while ending processes still write.
const JANITOR: &str = r#"
trap '' INT TERM HUP
IFS= read -r word
umount -l -- "$1/disk" 2>/dev/null
[ "$word" = keep ] && exit
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    rm -rf -- "$1" 2>/dev/null && exit
    sleep 0.25
done
"#;
const JANITOR_TIMEOUT: Duration = Duration::from_secs(10);
const LOGS: &str = "logs";
/// The directory on which a disk may be mounted.
pub(crate) const DISK: &str = "disk";

#[derive(Debug)]
pub(crate) struct WorkDirectory {
    path: PathBuf,
    janitor: Child,
}

impl WorkDirectory {
    pub(crate) fn create() -> Result<Self> {
        let shell = find_program("sh").context("no shell found")?;
        let directory = tempfile::Builder::new().prefix("remuda-cluster-").tempdir()?;
        let janitor = Command::new(shell)
            .args(["-c", JANITOR, "remuda-cluster-janitor"])
            .arg(directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C in the terminal must not reach it.
            .process_group(0)
            .spawn()
            .context("cannot start the janitor")?;
        let directory = Self { path: directory.keep(), janitor };
        // If this process is root, PostgreSQL runs as another user and needs access.
        fs::set_permissions(&directory.path, fs::Permissions::from_mode(0o711))?;
        directory.directory(LOGS)?;
        Ok(directory)
    }

    /// Returns a subdirectory, created if missing.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(path)
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.path.join(LOGS)
    }

    /// Keeps the logs, including those of the servers, and removes the rest.
    pub(crate) fn keep_logs(&mut self, of_servers: &[(&str, PathBuf)]) -> io::Result<()> {
        let logs = self.logs();
        for (name, path) in of_servers {
            fs::copy(path, logs.join(name)).map(drop).or_else(missing_is_fine)?;
        }
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path != logs {
                remove(&path).or_else(missing_is_fine)?;
            }
        }
        match &mut self.janitor.stdin {
            Some(input) => input.write_all(b"keep\n"),
            None => Ok(()),
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

fn missing_is_fine(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

impl Drop for WorkDirectory {
    fn drop(&mut self) {
        drop(self.janitor.stdin.take());
        let ended = wait_until(JANITOR_TIMEOUT, || self.janitor.try_wait().ok().flatten());
        if ended.is_none() {
            tracing::warn!(directory = %self.path.display(), "janitor process did not end");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drop_removes_everything_except_kept_logs() {
        for keep in [false, true] {
            let mut directory = WorkDirectory::create().unwrap();
            let (path, logs) = (directory.path.clone(), directory.logs());
            fs::write(logs.join("one"), "said").unwrap();
            let server = directory.directory("server").unwrap().join("log");
            fs::write(&server, "served").unwrap();
            if keep {
                directory.keep_logs(&[("server", server), ("absent", path.join("absent"))]).unwrap();
            }
            drop(directory);
            assert_eq!(path.try_exists().unwrap(), keep);
            if keep {
                assert_eq!(fs::read_to_string(logs.join("one")).unwrap(), "said");
                assert_eq!(fs::read_to_string(logs.join("server")).unwrap(), "served");
                assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
                fs::remove_dir_all(&path).unwrap();
            }
        }
    }
}
