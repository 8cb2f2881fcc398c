//! Every reader gets every event once, in one order, and the same as all others.

use std::collections::HashMap;

use super::{Facts, Verdict, Violation};
use crate::history::{Reading, Seen};

pub(super) fn check(facts: &Facts<'_>, verdict: &mut Verdict) {
    for (session, stream) in &facts.history.streams {
        check_line(&format!("the replay of {session}"), 0, stream, verdict);
    }
    for reading in &facts.history.readings {
        check_reading(facts, reading, verdict);
    }
}

/// Cursors are contiguous.
fn check_line(who: &str, after: i64, events: &[Seen], verdict: &mut Verdict) {
    let mut last = after;
    for seen in events {
        if seen.cursor != last + 1 {
            verdict.found(Violation::CursorHole, format!("{who} got cursor {} after {last}", seen.cursor));
        }
        last = seen.cursor;
    }
}

fn check_reading(facts: &Facts<'_>, reading: &Reading, verdict: &mut Verdict) {
    let who = format!("{} of {}", reading.reader, reading.session);
    check_line(&who, reading.after, &reading.seen, verdict);
    for message in &reading.refused {
        let sentence = format!("{who} was told that its cursor lies in the future: {message}");
        verdict.found(Violation::CursorHole, sentence);
    }
    let Some(stream) = facts.history.streams.get(&reading.session) else { return };
    let known: HashMap<i64, &Seen> = stream.iter().map(|seen| (seen.cursor, seen)).collect();
    let differs = |seen: &&Seen| {
        known.get(&seen.cursor).is_none_or(|known| (known.kind, &known.run) != (seen.kind, &seen.run))
    };
    if let Some(seen) = reading.seen.iter().find(differs) {
        let sentence = format!("{who} knows cursor {} differently than the replay", seen.cursor);
        verdict.found(Violation::CursorHole, sentence);
    }
    let reached = reading.seen.last().map_or(reading.after, |seen| seen.cursor);
    let end = stream.last().map_or(0, |seen| seen.cursor);
    if reached < end {
        verdict.found(Violation::CursorHole, format!("{who} got stuck at cursor {reached} of {end}"));
    }
}
