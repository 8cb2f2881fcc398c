//! Formats log lines for people.

use tracing::Level;

use super::{
    json::MAX_LINE,
    record::{Record, format_value, name_of},
    text::{is_harmful, push_clean, push_quoted},
};

const RESET: &str = "\u{1b}[0m";
const DIM: &str = "\u{1b}[2m";
/// Characters shown of the end of an id, which is the part that differs.
const TAIL: usize = 6;

/// Writes `12:00:00.123 INFO worker::session: message key=value  run=run_01k… session=ses_…2b4c6d`.
pub(super) fn write(out: &mut String, record: &Record<'_>, time: &str, ansi: bool) {
    let paint = |out: &mut String, style: &str, text: &str| {
        if ansi {
            out.push_str(style);
        }
        push_clean(out, text);
        if ansi {
            out.push_str(RESET);
        }
    };
    // Without date and microseconds.
    paint(out, DIM, time.get(11..23).unwrap_or(time));
    out.push(' ');
    let level = record.metadata.level();
    paint(out, colour(level), &format!("{:>5}", level.as_str()));
    out.push(' ');
    let target = record.target.strip_prefix("remuda_").unwrap_or(&record.target);
    paint(out, DIM, target);
    out.push_str(": ");
    push_clean(out, &record.message);
    let mut omitted = 0usize;
    for (name, value) in &record.rest {
        let before = out.len();
        let (name, taken) = name_of(name);
        out.push(' ');
        paint(out, DIM, &format!("{name}{taken}="));
        push_word(out, &format_value(value));
        if out.len() > MAX_LINE {
            out.truncate(before);
            omitted += 1;
        }
    }
    if omitted > 0 {
        out.push_str(&format!(" ({omitted} fields more)"));
    }
    let mut separator = "  ";
    for (index, (name, value)) in record.ids().enumerate() {
        let id = format_value(value);
        // The first id is complete, so that it can be copied; the others only distinguish lines.
        let id = if index == 0 { id } else { short(&id) };
        let name = name.strip_suffix("_id").unwrap_or(name);
        out.push_str(separator);
        paint(out, DIM, &format!("{name}={id}"));
        separator = " ";
    }
}

/// Quotes a value that is not a single word.
fn push_word(out: &mut String, word: &str) {
    let plain =
        !word.is_empty() && !word.chars().any(|c| c == '"' || c == '=' || c.is_whitespace() || is_harmful(c));
    if plain { out.push_str(word) } else { push_quoted(out, word) }
}

/// `ses_…2b4c6d`
fn short(id: &str) -> String {
    let start = id.find('_').map_or(0, |at| at + 1);
    let tail = id.char_indices().rev().nth(TAIL - 1).map_or(0, |(at, _)| at);
    if tail > start + 3 { format!("{}…{}", &id[..start], &id[tail..]) } else { id.to_owned() }
}

fn colour(level: &Level) -> &'static str {
    match *level {
        Level::ERROR => "\u{1b}[31m",
        Level::WARN => "\u{1b}[33m",
        Level::INFO => "\u{1b}[32m",
        Level::DEBUG => "\u{1b}[34m",
        Level::TRACE => "\u{1b}[35m",
    }
}
