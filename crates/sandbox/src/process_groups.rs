//! Kills process groups led by supervisors.

use std::time::{Duration, Instant};

use nix::{
    poll::poll,
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};

/// How long supervisors may take to kill everything. Shorter than the remaining time of a lease.
const SUPERVISOR_TIME: Duration = Duration::from_millis(500);
const POLL_MILLIS: u8 = 5;

/// Tells each supervisor to kill everything, including processes that left its group, then kills the rest of
/// the groups. Blocks for a bounded, short time.
pub(crate) fn kill_groups(groups: impl IntoIterator<Item = i32>) {
    let groups: Vec<Pid> = groups.into_iter().map(Pid::from_raw).collect();
    for group in &groups {
        abandon(*group);
    }
    let deadline = Instant::now() + SUPERVISOR_TIME;
    while groups.iter().any(|group| is_running(*group)) && Instant::now() < deadline {
        let _pause = poll(&mut [], POLL_MILLIS);
    }
    for group in groups {
        let _ignored = killpg(group, Signal::SIGKILL);
    }
}

/// Tells a supervisor to kill everything. SIGCONT wakes one that its command has stopped.
pub(crate) fn abandon(supervisor: Pid) {
    for signal in [Signal::SIGUSR2, Signal::SIGCONT] {
        // The only likely failure is that it has exited.
        let _ignored = kill(supervisor, signal);
    }
}

/// Whether the process is alive. Zombies remain until the worker, which may be stopped, reaps them.
fn is_running(process: Pid) -> bool {
    std::fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| {
        let state = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().next());
        !matches!(state, Some("Z" | "X"))
    })
}
