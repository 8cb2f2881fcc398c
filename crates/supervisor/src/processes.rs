//! Finds and kills the descendants of this process.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::AsFd,
    time::{Duration, Instant},
};

use nix::{
    poll::PollFlags,
    sys::{
        signal::{Signal, kill},
        signalfd::SignalFd,
    },
    unistd::Pid,
};

use crate::kernel::{self, ExitedChild, Reaped};

/// Killing takes several rounds when processes are started in the meantime. After this time, processes that
/// fork faster than they are killed, and processes stuck in the kernel, are given up.
const SWEEP_TIME: Duration = Duration::from_secs(2);
/// Pause between rounds, unless a child exits earlier.
const ROUND_TIME: Duration = Duration::from_millis(10);

/// Result of a sweep.
#[derive(Debug, Default)]
pub(crate) struct SweepResult {
    /// Processes that were killed.
    pub(crate) killed: BTreeSet<i32>,
    /// Children that were reaped.
    pub(crate) reaped: Vec<ExitedChild>,
    /// Whether no process is left.
    pub(crate) clean: bool,
}

/// Kills and reaps every descendant, except the `spared` processes and their descendants.
pub(crate) fn sweep(signals: &SignalFd, spared: &BTreeSet<i32>) -> SweepResult {
    let mut result = SweepResult::default();
    let deadline = Instant::now() + SWEEP_TIME;
    loop {
        match kernel::reap_child() {
            Reaped::Child(child) => {
                result.reaped.push(child);
                continue;
            }
            Reaped::NoChildren => {
                result.clean = true;
                return result;
            }
            Reaped::NoneExited => {}
        }
        let found = kill_descendants(spared, &mut result.killed);
        if !found && !spared.is_empty() {
            result.clean = true;
            return result;
        }
        if Instant::now() >= deadline {
            return result;
        }
        pause(signals);
    }
}

/// One round. Parents are killed before their children and each process as soon as it is found, because some
/// programs fork from process to process faster than a complete list can be made. Returns whether any living
/// process was found.
fn kill_descendants(spared: &BTreeSet<i32>, killed: &mut BTreeSet<i32>) -> bool {
    let mut found = false;
    let mut tree = ProcessTree::of(own_id());
    let mut pending = tree.children(own_id());
    while let Some(process) = pending.pop() {
        if spared.contains(&process) {
            continue;
        }
        pending.extend(tree.children(process));
        if is_alive(process) {
            found = true;
            // It may have exited by now; its id is not reused before its parent has reaped it.
            if kill(Pid::from_raw(process), Signal::SIGKILL).is_ok() {
                killed.insert(process);
            }
        }
    }
    found
}

/// Waits briefly for a child to exit.
fn pause(signals: &SignalFd) {
    let until = Instant::now() + ROUND_TIME;
    // Neither result matters: the pause may be shorter or longer.
    let _either = kernel::wait(&[((), signals.as_fd(), PollFlags::POLLIN)], Some(until));
    while let Ok(Some(_)) = signals.read_signal() {}
}

pub(crate) fn own_id() -> i32 {
    Pid::this().as_raw()
}

/// Source of parent-child relations.
enum ProcessTree {
    /// Read per process from `/proc/<pid>/task/*/children`.
    PerProcess,
    /// Kernels without that file: one scan over all processes.
    Scanned(BTreeMap<i32, Vec<i32>>),
}

impl ProcessTree {
    fn of(process: i32) -> Self {
        if children_of(process).is_some() { Self::PerProcess } else { Self::Scanned(children_by_parent()) }
    }

    /// In a scan each child is returned once, so that ids reused in the meantime cannot cause a cycle.
    fn children(&mut self, parent: i32) -> Vec<i32> {
        match self {
            Self::PerProcess => children_of(parent).unwrap_or_default(),
            Self::Scanned(children) => children.remove(&parent).unwrap_or_default(),
        }
    }
}

fn children_of(parent: i32) -> Option<Vec<i32>> {
    let mut children = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{parent}/task")).ok()?.flatten() {
        let listed = std::fs::read_to_string(thread.path().join("children")).ok()?;
        children.extend(listed.split_ascii_whitespace().filter_map(|process| process.parse::<i32>().ok()));
    }
    Some(children)
}

fn children_by_parent() -> BTreeMap<i32, Vec<i32>> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some((parent, _)) = stat(process) {
            children.entry(parent).or_default().push(process);
        }
    }
    children
}

fn is_alive(process: i32) -> bool {
    stat(process).is_some_and(|(_, alive)| alive)
}

/// The parent of a process and whether the process is alive.
fn stat(process: i32) -> Option<(i32, bool)> {
    parse_stat(&std::fs::read(format!("/proc/{process}/stat")).ok()?)
}

fn parse_stat(stat: &[u8]) -> Option<(i32, bool)> {
    // The name, in parentheses, may contain any character, including parentheses. State and parent follow it.
    let after = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = std::str::from_utf8(&stat[after..]).ok()?.split_ascii_whitespace();
    let alive = !matches!(fields.next()?, "Z" | "X" | "x");
    Some((fields.next()?.parse().ok()?, alive))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_names_with_any_bytes_are_parsed() {
        assert_eq!(parse_stat(b"7 (a) Z 1 (b) S 42 7 7 0"), Some((42, true)));
        assert_eq!(parse_stat(b"7 (\xff\n) Z 1 7"), Some((1, false)));
        assert_eq!(parse_stat(b"7 (a"), None);
        assert_eq!(parse_stat(b""), None);
    }

    #[test]
    fn both_sources_list_this_process_as_child_of_its_parent() {
        let parent = Pid::parent().as_raw();
        assert!(is_alive(own_id()));
        for mut tree in [ProcessTree::of(parent), ProcessTree::Scanned(children_by_parent())] {
            assert!(tree.children(parent).contains(&own_id()));
            assert!(!tree.children(own_id()).contains(&parent));
        }
    }
}
