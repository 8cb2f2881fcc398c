//! Every reader gets every event once, in order, and all readers get the same events.

use std::collections::HashMap;

use super::{HistoryIndex, Verdict, Violation};
use crate::observed_history::{ObservedEvent, ReaderLog};

pub(super) fn check(index: &HistoryIndex<'_>, verdict: &mut Verdict) {
    for (session, stream) in &index.history.streams {
        check_contiguous(&format!("the replay of {session}"), 0, stream, verdict);
    }
    for log in &index.history.reader_logs {
        check_reading(index, log, verdict);
    }
}

/// Checks that cursors are contiguous.
fn check_contiguous(who: &str, after: i64, events: &[ObservedEvent], verdict: &mut Verdict) {
    let mut last = after;
    for seen in events {
        if seen.cursor != last + 1 {
            verdict.record(Violation::CursorHole, format!("{who} got cursor {} after {last}", seen.cursor));
        }
        last = seen.cursor;
    }
}

fn check_reading(index: &HistoryIndex<'_>, log: &ReaderLog, verdict: &mut Verdict) {
    let who = format!("{} of {}", log.reader, log.session);
    check_contiguous(&who, log.after, &log.events, verdict);
    for refusal in &log.refused {
        let message = format!("the cursor of {who} was refused as out of range: {refusal}");
        verdict.record(Violation::CursorHole, message);
    }
    let Some(stream) = index.history.streams.get(&log.session) else { return };
    let known: HashMap<i64, &ObservedEvent> = stream.iter().map(|seen| (seen.cursor, seen)).collect();
    let differs = |seen: &&ObservedEvent| {
        known.get(&seen.cursor).is_none_or(|known| (known.kind, &known.run) != (seen.kind, &seen.run))
    };
    if let Some(seen) = log.events.iter().find(differs) {
        let message = format!("{who} got another event at cursor {} than the replay", seen.cursor);
        verdict.record(Violation::CursorHole, message);
    }
    let reached = log.events.last().map_or(log.after, |seen| seen.cursor);
    let end = stream.last().map_or(0, |seen| seen.cursor);
    if reached < end {
        verdict.record(Violation::CursorHole, format!("{who} got stuck at cursor {reached} of {end}"));
    }
}
