//! Finds the tool processes of a test in `/proc`.
//!
//! The text of a script contains the key of its run, and so does every process that the shell forks for it.

use std::{
    collections::{HashMap, HashSet},
    fs, str,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::observed_history::{Lifetime, now};

/// Short enough to date the end of a process, long enough to be cheap.
const SCAN_INTERVAL: Duration = Duration::from_millis(100);

/// A process of a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ToolProcess {
    pub(crate) pid: i32,
    pub(crate) key: String,
}

/// Finds the processes whose command line has a key that begins with `prefix`.
pub(crate) fn tool_processes(prefix: &str) -> Vec<ToolProcess> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    // A process that ends during the scan is skipped, and a zombie has no command line.
    pids.filter_map(|pid| {
        let command_line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        Some(ToolProcess { pid, key: key_in(&command_line, prefix)? })
    })
    .collect()
}

fn key_in(command_line: &[u8], prefix: &str) -> Option<String> {
    let start = command_line.windows(prefix.len()).position(|window| window == prefix.as_bytes())?;
    let rest = &command_line[start..];
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
    let end = rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len());
    str::from_utf8(&rest[..end]).ok().map(str::to_owned)
}

/// Records when processes of each run existed.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProcessWatch {
    lifetimes: Arc<Mutex<HashMap<String, Lifetime>>>,
}

impl ProcessWatch {
    /// Scans periodically until `stop`.
    pub(crate) async fn run(self, prefix: String, stop: CancellationToken) {
        let mut interval = tokio::time::interval(SCAN_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut alive = HashSet::new();
        while !stop.is_cancelled() {
            tokio::select! {
                _ = interval.tick() => {}
                () = stop.cancelled() => {}
            }
            alive = self.scan(&prefix, &alive);
        }
    }

    /// Scans once and returns the found keys; `alive` are those of the previous scan.
    fn scan(&self, prefix: &str, alive: &HashSet<String>) -> HashSet<String> {
        let scanned = now();
        let found = tool_processes(prefix);
        let mut lifetimes = self.lifetimes.lock();
        for process in &found {
            let lifetime = Lifetime { pid: process.pid, last_seen: scanned, gone_by: None };
            lifetimes.insert(process.key.clone(), lifetime);
        }
        let found: HashSet<String> = found.into_iter().map(|process| process.key).collect();
        for key in alive.difference(&found) {
            if let Some(lifetime) = lifetimes.get_mut(key) {
                lifetime.gone_by = Some(now());
            }
        }
        found
    }

    pub(crate) fn lifetimes(&self) -> HashMap<String, Lifetime> {
        self.lifetimes.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    struct KilledOnDrop(Child);

    impl Drop for KilledOnDrop {
        fn drop(&mut self) {
            self.0.kill().and_then(|()| self.0.wait()).unwrap();
        }
    }

    #[test]
    fn finds_processes_by_the_key_in_their_script() {
        let prefix = format!("lt-test-{}-", std::process::id());
        let script = format!("echo {prefix}42 there; read -r forever; exit 0");
        let mut bash = Command::new("bash");
        bash.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::null());
        let child = KilledOnDrop(bash.spawn().unwrap());

        let watch = ProcessWatch::default();
        // The child may not have become bash yet.
        let mut alive = HashSet::new();
        while alive.is_empty() {
            alive = watch.scan(&prefix, &alive);
        }
        let key = format!("{prefix}42");
        assert_eq!(alive, HashSet::from([key.clone()]));
        let pid = watch.lifetimes()[&key].pid;
        assert_eq!(u32::try_from(pid).unwrap(), child.0.id());
        assert_eq!(watch.lifetimes()[&key].gone_by, None);

        drop(child);
        assert!(watch.scan(&prefix, &alive).is_empty());
        let lifetime = watch.lifetimes()[&key];
        assert!(lifetime.gone_by.is_some_and(|gone| gone >= lifetime.last_seen));
    }
}
