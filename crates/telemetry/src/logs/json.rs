//! One JSON object per line, for log collectors.

use super::{
    fields::Value,
    record::{Record, name_of, words},
    text::push_quoted,
};

/// The longest line, in bytes. Fields that no longer fit are counted, not shown.
pub(super) const MAX_LINE: usize = 64 * 1024;

/// `service` is what every line of this process has, as [`service`] writes it.
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

/// The part that says whose line it is.
pub(super) fn service(name: &str, instance: &str) -> String {
    let mut out = r#","service":"#.to_owned();
    push_quoted(&mut out, name);
    out.push_str(r#","instance":"#);
    push_quoted(&mut out, instance);
    out
}

/// Adds a field, unless the line would be too long with it.
fn push_field(out: &mut String, name: &'static str, value: &Value) -> bool {
    let before = out.len();
    let (name, taken) = name_of(name);
    out.push(',');
    push_quoted(out, &format!("{name}{taken}"));
    out.push(':');
    match value {
        Value::Text(_) => push_quoted(out, &words(value)),
        // JSON has no word for what is no number.
        Value::Float(number) if !number.is_finite() => push_quoted(out, &number.to_string()),
        Value::Signed(_) | Value::Unsigned(_) | Value::Float(_) | Value::Bool(_) => {
            out.push_str(&words(value))
        }
    }
    // Room for the count and the end.
    let fits = out.len() + 64 <= MAX_LINE;
    if !fits {
        out.truncate(before);
    }
    fits
}
