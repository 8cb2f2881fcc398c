//! Killing process groups that supervisors lead.

use std::time::{Duration, Instant};

use nix::{
    poll::poll,
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};

/// How long supervisors may take to end everything. It is short of what is left of a lease.
const LEADER_TIME: Duration = Duration::from_millis(500);
const LOOK_MILLIS: u8 = 5;

/// Has each supervisor end everything, also what left its group, and then kills what there is of the groups. Blocks, but
/// not for long.
pub(crate) fn kill_groups(groups: impl IntoIterator<Item = i32>) {
    let groups: Vec<Pid> = groups.into_iter().map(Pid::from_raw).collect();
    for group in &groups {
        abandon(*group);
    }
    let deadline = Instant::now() + LEADER_TIME;
    while groups.iter().any(|group| runs(*group)) && Instant::now() < deadline {
        let _time_passes = poll(&mut [], LOOK_MILLIS);
    }
    for group in groups {
        let _gone = killpg(group, Signal::SIGKILL);
    }
}

/// Tells a supervisor, also one that its command has stopped, to kill everything.
pub(crate) fn abandon(supervisor: Pid) {
    for signal in [Signal::SIGUSR2, Signal::SIGCONT] {
        // The only likely failure is that it is gone.
        let _gone = kill(supervisor, signal);
    }
}

/// The dead are still there until the worker, which may be stopped, collects them.
fn runs(process: Pid) -> bool {
    std::fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| {
        let state = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().next());
        !matches!(state, Some("Z" | "X"))
    })
}
