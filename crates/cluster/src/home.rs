//! The cluster's directory, which is removed even when this process cannot do it.

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

/// Waits until its input ends, which happens however this process does, and removes the directory, unless told to keep it.
/// Tries again while processes that are on their way out still write.
const JANITOR: &str = r#"
trap '' INT TERM HUP
IFS= read -r word
[ "$word" = keep ] && exit
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    rm -rf -- "$1" 2>/dev/null && exit
    sleep 0.25
done
"#;
const JANITOR_TIMEOUT: Duration = Duration::from_secs(10);
const LOGS: &str = "logs";

#[derive(Debug)]
pub(crate) struct Home {
    path: PathBuf,
    janitor: Child,
}

impl Home {
    pub(crate) fn create() -> Result<Self> {
        let shell = find_program("sh").context("no shell found")?;
        let directory = tempfile::Builder::new().prefix("remuda-cluster-").tempdir()?;
        let janitor = Command::new(shell)
            .args(["-c", JANITOR, "remuda-cluster-janitor"])
            .arg(directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C in the terminal is not meant for it.
            .process_group(0)
            .spawn()
            .context("cannot start the janitor")?;
        let home = Self { path: directory.keep(), janitor };
        // PostgreSQL runs as another user when this process is root, and has to get through.
        fs::set_permissions(&home.path, fs::Permissions::from_mode(0o711))?;
        home.directory(LOGS)?;
        Ok(home)
    }

    /// A directory below this one, which is made if it is missing.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(path)
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.path.join(LOGS)
    }

    /// Keeps the logs, with those of the servers, and removes the rest.
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

impl Drop for Home {
    fn drop(&mut self) {
        drop(self.janitor.stdin.take());
        let ended = wait_until(JANITOR_TIMEOUT, || self.janitor.try_wait().ok().flatten());
        if ended.is_none() {
            tracing::warn!(directory = %self.path.display(), "the janitor does not end");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_goes_but_logs_that_are_kept() {
        for keep in [false, true] {
            let mut home = Home::create().unwrap();
            let (path, logs) = (home.path.clone(), home.logs());
            fs::write(logs.join("one"), "said").unwrap();
            let server = home.directory("server").unwrap().join("log");
            fs::write(&server, "served").unwrap();
            if keep {
                home.keep_logs(&[("server", server), ("absent", path.join("absent"))]).unwrap();
            }
            drop(home);
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
