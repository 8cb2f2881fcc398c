//! What the guard is told and what it concludes.
//!
//! One message per line: `+<group>` started, `-<group>` ended, `~<milliseconds>` promises another message within
//! that time. The guard answers each `+<group>`, with `=<group>` if it watches the group, and with `!<group>` if it
//! had to kill it, because the promise was not kept.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use nix::unistd::Pid;

pub(super) fn started(group: Pid) -> String {
    format!("+{group}\n")
}

pub(super) fn ended(group: Pid) -> String {
    format!("-{group}\n")
}

pub(super) fn fed(time: Duration) -> String {
    format!("~{}\n", time.as_millis())
}

/// What the guard answers to a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Watched(i32),
    Refused(i32),
}

impl Answer {
    pub(super) fn line(self) -> String {
        match self {
            Self::Watched(group) => format!("={group}\n"),
            Self::Refused(group) => format!("!{group}\n"),
        }
    }

    pub(super) fn parse(line: &str) -> Option<Self> {
        let known = |prefix| line.strip_prefix(prefix).and_then(group);
        known('=').map(Self::Watched).or_else(|| known('!').map(Self::Refused))
    }
}

/// The guard's knowledge.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    groups: BTreeSet<i32>,
    /// Registrations that were not answered yet.
    asked: Vec<i32>,
    deadline: Option<Instant>,
    partial: Vec<u8>,
}

impl Ledger {
    /// Takes bytes from the pipe, cut anywhere.
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
        if let Some(group) = line.strip_prefix('+').and_then(group) {
            self.groups.insert(group);
            self.asked.push(group);
        } else if let Some(group) = line.strip_prefix('-').and_then(group) {
            self.groups.remove(&group);
        } else if let Some(millis) = line.strip_prefix('~').and_then(|text| text.parse().ok()) {
            self.deadline = now.checked_add(Duration::from_millis(millis));
        }
    }

    /// How long to wait for the next message; `None` is forever.
    pub(super) fn patience(&self, now: Instant) -> Option<Duration> {
        // Past the deadline and with nothing to kill there is nothing to wake up for.
        if self.groups.is_empty() {
            return None;
        }
        self.deadline.map(|deadline| deadline.saturating_duration_since(now))
    }

    /// The groups to kill now, which are forgotten.
    pub(super) fn overdue(&mut self, now: Instant) -> BTreeSet<i32> {
        match self.deadline {
            Some(deadline) if deadline <= now => self.all(),
            _ => BTreeSet::new(),
        }
    }

    /// What to answer, once what is overdue was killed.
    pub(super) fn answers(&mut self) -> Vec<Answer> {
        let watched = |group: i32| self.groups.contains(&group);
        let answer = |group| if watched(group) { Answer::Watched(group) } else { Answer::Refused(group) };
        let answers = self.asked.iter().copied().map(answer).collect();
        self.asked.clear();
        answers
    }

    /// Every group, which are forgotten.
    pub(super) fn all(&mut self) -> BTreeSet<i32> {
        std::mem::take(&mut self.groups)
    }
}

/// Signalling group 0 would hit the guard itself, and group 1 everyone.
fn group(text: &str) -> Option<i32> {
    text.parse().ok().filter(|group| *group > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn started_and_not_ended_is_left() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        ledger.read(b"+10\n+2", now);
        ledger.read(b"0\n-10\nrubbish\n+0\n+1\n+-1\n\xff\n+30", now);
        assert_eq!(ledger.patience(now), None);
        assert!(ledger.overdue(now).is_empty());
        assert_eq!(ledger.all(), BTreeSet::from([20]));
    }

    #[test]
    fn unfed_everything_is_overdue_until_fed_again() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        ledger.read(b"~1000\n+10\n", now);
        assert_eq!(ledger.patience(now), Some(Duration::from_secs(1)));
        assert!(ledger.overdue(now).is_empty());

        let later = now + Duration::from_secs(1);
        assert_eq!(ledger.overdue(later), BTreeSet::from([10]));
        assert_eq!(ledger.patience(later), None);
        ledger.read(b"+11\n", later);
        assert_eq!(ledger.patience(later), Some(Duration::ZERO));
        assert_eq!(ledger.overdue(later), BTreeSet::from([11]));

        ledger.read(b"+12\n~1000\n", later);
        assert!(ledger.overdue(later).is_empty());
    }

    #[test]
    fn a_registration_is_answered_by_whether_it_is_watched() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        ledger.read(b"~1000\n+10\n", now);
        ledger.overdue(now);
        assert_eq!(ledger.answers(), [Answer::Watched(10)]);
        assert_eq!(ledger.answers(), []);
        let later = now + Duration::from_secs(1);
        ledger.read(b"+11\n+12\n", later);
        ledger.overdue(later);
        assert_eq!(ledger.answers(), [Answer::Refused(11), Answer::Refused(12)]);
        for answer in [Answer::Watched(7), Answer::Refused(8)] {
            assert_eq!(Answer::parse(answer.line().trim_end()), Some(answer));
        }
        assert_eq!(Answer::parse("ready"), None);
    }
}
