//! Processes of this machine, read from `/proc`.

use std::{collections::HashSet, fs, path::Path};

/// A process. Its start time distinguishes it from a later one with the same id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    pub pid: u32,
    /// In clock ticks since boot.
    pub start_time: u64,
    /// The arguments, separated by spaces.
    pub cmdline: String,
}

/// The used fields of `/proc/<pid>/stat`.
struct Stat {
    dead: bool,
    parent: u32,
    start_time: u64,
}

impl Stat {
    fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The program's name, in parentheses, may contain anything. The fields after it are: state, parent, and, as the twentieth,
    /// the start time.
    fn parse(stat: &str) -> Option<Self> {
        let mut fields = stat.rsplit(')').next()?.split_whitespace();
        let dead = matches!(fields.next()?, "Z" | "X");
        let parent = fields.next()?.parse().ok()?;
        let start_time = fields.nth(17)?.parse().ok()?;
        Some(Self { dead, parent, start_time })
    }
}

/// The living descendants of a process, children before grandchildren, without the process itself.
///
/// A process whose parent died has another parent: list the descendants before the parent is killed.
#[must_use]
pub fn processes_of(pid: u32) -> Vec<Process> {
    let everyone: Vec<(u32, Stat)> = pids().filter_map(|pid| Some((pid, Stat::of(pid)?))).collect();
    let mut found = Vec::new();
    let mut seen = HashSet::from([pid]);
    let mut parents = vec![pid];
    while !parents.is_empty() {
        let children: Vec<&(u32, Stat)> = everyone
            .iter()
            .filter(|(child, stat)| parents.contains(&stat.parent) && seen.insert(*child))
            .collect();
        parents = children.iter().map(|(child, _)| *child).collect();
        found.extend(children.iter().filter(|(_, stat)| !stat.dead).map(|(child, stat)| Process {
            pid: *child,
            start_time: stat.start_time,
            cmdline: cmdline(*child),
        }));
    }
    found
}

/// The process with this id, unless it is dead.
#[must_use]
pub fn process(pid: u32) -> Option<Process> {
    let stat = Stat::of(pid).filter(|stat| !stat.dead)?;
    Some(Process { pid, start_time: stat.start_time, cmdline: cmdline(pid) })
}

/// Those that are still alive. Zombies are not.
#[must_use]
pub fn still_alive(processes: &[Process]) -> Vec<Process> {
    let lives = |process: &&Process| {
        Stat::of(process.pid).is_some_and(|stat| !stat.dead && stat.start_time == process.start_time)
    };
    processes.iter().filter(lives).cloned().collect()
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(Path::new("/proc")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn cmdline(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim_end_matches('\0').replace('\0', " ")
}

#[cfg(test)]
mod tests {
    use std::{process::Stdio, time::Duration};

    use super::*;
    use crate::{Child, find_program, wait_until};

    #[test]
    fn descendants_are_found_until_they_die() {
        let shell = find_program("sh").unwrap();
        let mut child = Child::start(&shell, None, |command| {
            command.args(["-c", "sh -c 'sleep 61 & wait' & wait"]).stdout(Stdio::null());
        })
        .unwrap();
        let pid = child.pid();
        let found = wait_until(Duration::from_secs(10), || {
            let found = processes_of(pid);
            found.iter().any(|process| process.cmdline == "sleep 61").then_some(found)
        })
        .unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(still_alive(&found), found);
        let imposters: Vec<Process> =
            found.iter().map(|process| Process { start_time: 1, ..process.clone() }).collect();
        assert_eq!(still_alive(&imposters), []);

        let orphans = found;
        child.kill().unwrap();
        assert_eq!(process(pid), None);
        assert_eq!(still_alive(&orphans), orphans, "they have another parent, but are alive");
        for orphan in &orphans {
            let pid = nix::unistd::Pid::from_raw(i32::try_from(orphan.pid).unwrap());
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
        }
        wait_until(Duration::from_secs(10), || still_alive(&orphans).is_empty().then_some(())).unwrap();
    }

    #[test]
    fn stat_is_parsed_despite_parentheses_in_the_name() {
        let stat = "7 (a) Z b) S 3 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 9001 2 3";
        let stat = Stat::parse(stat).unwrap();
        assert_eq!((stat.dead, stat.parent, stat.start_time), (false, 3, 9001));
        assert!(Stat::parse("7 (x) Z 3").is_none());
    }
}
