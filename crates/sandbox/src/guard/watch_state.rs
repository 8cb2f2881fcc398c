//! Protocol and state of the guard.
//!
//! One message per line: `+<group>` started, `-<group>` ended, `~<milliseconds>` feeds the watchdog: another
//! one must follow within that time. The guard replies to each `+<group>` with `=<group>` if it watches the
//! group, or `!<group>` if it killed it because the watchdog had expired.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use nix::unistd::Pid;

pub(super) fn started_message(group: Pid) -> String {
    format!("+{group}\n")
}

pub(super) fn ended_message(group: Pid) -> String {
    format!("-{group}\n")
}

pub(super) fn feed_message(time: Duration) -> String {
    format!("~{}\n", time.as_millis())
}

/// The guard's reply to a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegistrationReply {
    Watched(i32),
    Refused(i32),
}

impl RegistrationReply {
    pub(super) fn to_line(self) -> String {
        match self {
            Self::Watched(group) => format!("={group}\n"),
            Self::Refused(group) => format!("!{group}\n"),
        }
    }

    pub(super) fn parse(line: &str) -> Option<Self> {
        let parse = |prefix| line.strip_prefix(prefix).and_then(parse_group);
        parse('=').map(Self::Watched).or_else(|| parse('!').map(Self::Refused))
    }
}

/// State of the guard: the watched groups and the watchdog deadline.
#[derive(Debug, Default)]
pub(super) struct WatchState {
    groups: BTreeSet<i32>,
    /// Registrations without a reply yet.
    unanswered: Vec<i32>,
    deadline: Option<Instant>,
    partial: Vec<u8>,
}

impl WatchState {
    /// Processes bytes from the pipe, which may be split anywhere.
    pub(super) fn read(&mut self, bytes: &[u8], now: Instant) {
        for byte in bytes {
            if *byte != b'\n' {
                self.partial.push(*byte);
                continue;
            }
            let line = std::mem::take(&mut self.partial);
            self.apply(&line, now);
        }
    }

    fn apply(&mut self, line: &[u8], now: Instant) {
        let Ok(line) = std::str::from_utf8(line) else { return };
        if let Some(group) = line.strip_prefix('+').and_then(parse_group) {
            self.groups.insert(group);
            self.unanswered.push(group);
        } else if let Some(group) = line.strip_prefix('-').and_then(parse_group) {
            self.groups.remove(&group);
        } else if let Some(millis) = line.strip_prefix('~').and_then(|text| text.parse().ok()) {
            self.deadline = now.checked_add(Duration::from_millis(millis));
        }
    }

    /// How long to wait for the next message; `None` means without a timeout.
    pub(super) fn poll_timeout(&self, now: Instant) -> Option<Duration> {
        // Without groups there is nothing to kill, so the deadline does not matter.
        if self.groups.is_empty() {
            return None;
        }
        self.deadline.map(|deadline| deadline.saturating_duration_since(now))
    }

    /// Removes and returns the groups to kill now.
    pub(super) fn take_overdue(&mut self, now: Instant) -> BTreeSet<i32> {
        match self.deadline {
            Some(deadline) if deadline <= now => self.take_all(),
            _ => BTreeSet::new(),
        }
    }

    /// Replies to open registrations. Call it after the overdue groups were killed.
    pub(super) fn take_replies(&mut self) -> Vec<RegistrationReply> {
        let watched = |group: i32| self.groups.contains(&group);
        let reply = |group| {
            if watched(group) { RegistrationReply::Watched(group) } else { RegistrationReply::Refused(group) }
        };
        let replies = self.unanswered.iter().copied().map(reply).collect();
        self.unanswered.clear();
        replies
    }

    /// Removes and returns all groups.
    pub(super) fn take_all(&mut self) -> BTreeSet<i32> {
        std::mem::take(&mut self.groups)
    }
}

/// Parses a group id. Signalling group 0 would hit the guard itself, and group 1 every process.
fn parse_group(text: &str) -> Option<i32> {
    text.parse().ok().filter(|group| *group > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_watched_until_their_end_and_bad_lines_are_ignored() {
        let (mut watch_state, now) = (WatchState::default(), Instant::now());
        watch_state.read(b"+10\n+2", now);
        watch_state.read(b"0\n-10\nrubbish\n+0\n+1\n+-1\n\xff\n+30", now);
        assert_eq!(watch_state.poll_timeout(now), None);
        assert!(watch_state.take_overdue(now).is_empty());
        assert_eq!(watch_state.take_all(), BTreeSet::from([20]));
    }

    #[test]
    fn expired_watchdog_makes_all_groups_overdue_until_fed_again() {
        let (mut watch_state, now) = (WatchState::default(), Instant::now());
        watch_state.read(b"~1000\n+10\n", now);
        assert_eq!(watch_state.poll_timeout(now), Some(Duration::from_secs(1)));
        assert!(watch_state.take_overdue(now).is_empty());

        let later = now + Duration::from_secs(1);
        assert_eq!(watch_state.take_overdue(later), BTreeSet::from([10]));
        assert_eq!(watch_state.poll_timeout(later), None);
        watch_state.read(b"+11\n", later);
        assert_eq!(watch_state.poll_timeout(later), Some(Duration::ZERO));
        assert_eq!(watch_state.take_overdue(later), BTreeSet::from([11]));

        watch_state.read(b"+12\n~1000\n", later);
        assert!(watch_state.take_overdue(later).is_empty());
    }

    #[test]
    fn reply_says_whether_the_group_is_watched() {
        let (mut watch_state, now) = (WatchState::default(), Instant::now());
        watch_state.read(b"~1000\n+10\n", now);
        watch_state.take_overdue(now);
        assert_eq!(watch_state.take_replies(), [RegistrationReply::Watched(10)]);
        assert_eq!(watch_state.take_replies(), []);
        let later = now + Duration::from_secs(1);
        watch_state.read(b"+11\n+12\n", later);
        watch_state.take_overdue(later);
        assert_eq!(
            watch_state.take_replies(),
            [RegistrationReply::Refused(11), RegistrationReply::Refused(12)]
        );
        for reply in [RegistrationReply::Watched(7), RegistrationReply::Refused(8)] {
            assert_eq!(RegistrationReply::parse(reply.to_line().trim_end()), Some(reply));
        }
        assert_eq!(RegistrationReply::parse("ready"), None);
    }
}
