//! Formats log lines as JSON objects, for log collectors.

use super::{
    fields::Value,
    record::{Record, format_value, name_of},
    text::push_quoted,
};

/// Bytes per line. Fields that do not fit are only counted.
pub(super) const MAX_LINE: usize = 64 * 1024;

/// Writes a line. `service` is the common part of all lines of this process, made by [`service`].
pub(super) fn write(out: &mut String, record: &Record<'_>, time: &str, service: &str) {
    out.push_str(&format!(r#"{{"timestamp":"{time}","level":"{}","target":"#, record.metadata.level()));
    push_quoted(out, &record.target);
    out.push_str(r#","message":"#);
    push_quoted(out, &record.message);
    let mut omitted = 0usize;
    for (name, value) in record.ids() {
        omitted += usize::from(!push_field(out, name, value));
    }
    out.push_str(service);
    for (name, value) in &record.rest {
        omitted += usize::from(!push_field(out, name, value));
    }
    if omitted > 0 {
        out.push_str(&format!(r#","omitted_fields":{omitted}"#));
    }
    out.push('}');
}

/// The fields that identify the process.
pub(super) fn service(name: &str, instance: &str) -> String {
    let mut out = r#","service":"#.to_owned();
    push_quoted(&mut out, name);
    out.push_str(r#","instance":"#);
    push_quoted(&mut out, instance);
    out
}

/// Adds a field, unless the line would become too long.
fn push_field(out: &mut String, name: &'static str, value: &Value) -> bool {
    let before = out.len();
    let (name, taken) = name_of(name);
    out.push(',');
    push_quoted(out, &format!("{name}{taken}"));
    out.push(':');
    match value {
        Value::Text(_) => push_quoted(out, &format_value(value)),
        // JSON cannot represent NaN and infinity.
        Value::Float(number) if !number.is_finite() => push_quoted(out, &number.to_string()),
        Value::Signed(_) | Value::Unsigned(_) | Value::Float(_) | Value::Bool(_) => {
            out.push_str(&format_value(value))
        }
    }
    // Leave space for the count and the closing brace.
    let fits = out.len() + 64 <= MAX_LINE;
    if !fits {
        out.truncate(before);
    }
    fits
}
