//! Finding and killing what was started.

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

use crate::kernel::{self, Collected, Gone};

/// Killing takes a few rounds when processes are started meanwhile. Those who start them faster than they are killed, and
/// those stuck in the kernel, are not waited for any longer.
const SWEEP_TIME: Duration = Duration::from_secs(2);
/// Between rounds, unless a child ends earlier.
const ROUND_TIME: Duration = Duration::from_millis(10);

/// How a sweep went.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    /// Those that were killed.
    pub(crate) killed: BTreeSet<i32>,
    /// Those that were collected.
    pub(crate) gone: Vec<Gone>,
    /// Whether nobody is left.
    pub(crate) clean: bool,
}

/// Kills every descendant but those `spared` and their descendants, and collects them.
pub(crate) fn sweep(signals: &SignalFd, spared: &BTreeSet<i32>) -> Swept {
    let mut swept = Swept::default();
    let deadline = Instant::now() + SWEEP_TIME;
    loop {
        match kernel::collect() {
            Collected::Gone(gone) => {
                swept.gone.push(gone);
                continue;
            }
            Collected::Childless => {
                swept.clean = true;
                return swept;
            }
            Collected::Nobody => {}
        }
        let found = kill_descendants(spared, &mut swept.killed);
        if !found && !spared.is_empty() {
            swept.clean = true;
            return swept;
        }
        if Instant::now() >= deadline {
            return swept;
        }
        pause(signals);
    }
}

/// One round: parents before their children, each as soon as it is found, because some hop from process to process faster
/// than a list of all can be made. Whether there was anyone.
fn kill_descendants(spared: &BTreeSet<i32>, killed: &mut BTreeSet<i32>) -> bool {
    let mut found = false;
    let mut family = Family::of(own_id());
    let mut next = family.children(own_id());
    while let Some(process) = next.pop() {
        if spared.contains(&process) {
            continue;
        }
        next.extend(family.children(process));
        if is_alive(process) {
            found = true;
            // It may have ended by now; only its parent, once it has collected it, gives its id free.
            if kill(Pid::from_raw(process), Signal::SIGKILL).is_ok() {
                killed.insert(process);
            }
        }
    }
    found
}

/// Waits for the end of a child, briefly.
fn pause(signals: &SignalFd) {
    let until = Instant::now() + ROUND_TIME;
    // Nothing depends on how long it really was.
    let _either = kernel::wait(&[((), signals.as_fd(), PollFlags::POLLIN)], Some(until));
    while let Ok(Some(_)) = signals.read_signal() {}
}

pub(crate) fn own_id() -> i32 {
    Pid::this().as_raw()
}

/// Who is whose child.
enum Family {
    /// The kernel says it, process by process.
    Asked,
    /// A kernel that does not: from a list of all processes.
    Listed(BTreeMap<i32, Vec<i32>>),
}

impl Family {
    fn of(process: i32) -> Self {
        if ask(process).is_some() { Self::Asked } else { Self::Listed(list()) }
    }

    /// Each is given once, so that ids which are given anew meanwhile cannot lead around in circles.
    fn children(&mut self, parent: i32) -> Vec<i32> {
        match self {
            Self::Asked => ask(parent).unwrap_or_default(),
            Self::Listed(children) => children.remove(&parent).unwrap_or_default(),
        }
    }
}

fn ask(parent: i32) -> Option<Vec<i32>> {
    let mut children = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{parent}/task")).ok()?.flatten() {
        let listed = std::fs::read_to_string(thread.path().join("children")).ok()?;
        children.extend(listed.split_ascii_whitespace().filter_map(|process| process.parse::<i32>().ok()));
    }
    Some(children)
}

fn list() -> BTreeMap<i32, Vec<i32>> {
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

/// The parent of a process, and whether it lives.
fn stat(process: i32) -> Option<(i32, bool)> {
    parse_stat(&std::fs::read(format!("/proc/{process}/stat")).ok()?)
}

fn parse_stat(stat: &[u8]) -> Option<(i32, bool)> {
    // Its name, in parentheses, may hold anything, also parentheses; what follows is: state, parent.
    let after = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = std::str::from_utf8(&stat[after..]).ok()?.split_ascii_whitespace();
    let alive = !matches!(fields.next()?, "Z" | "X" | "x");
    Some((fields.next()?.parse().ok()?, alive))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        assert_eq!(parse_stat(b"7 (a) Z 1 (b) S 42 7 7 0"), Some((42, true)));
        assert_eq!(parse_stat(b"7 (\xff\n) Z 1 7"), Some((1, false)));
        assert_eq!(parse_stat(b"7 (a"), None);
        assert_eq!(parse_stat(b""), None);
    }

    #[test]
    fn this_process_is_a_child_of_its_parent_either_way() {
        let parent = Pid::parent().as_raw();
        assert!(is_alive(own_id()));
        for mut family in [Family::of(parent), Family::Listed(list())] {
            assert!(family.children(parent).contains(&own_id()));
            assert!(!family.children(own_id()).contains(&parent));
        }
    }
}
