//! Renders a tool's result as text for the model.

use remuda_domain::{
    message::Image,
    tool::{CallStatus, ToolOutcome},
};
use serde_json::{Map, Value};

/// The text of a result: short values as `key: value`, then longer texts under their names.
pub(super) fn result_text(outcome: &ToolOutcome) -> String {
    let mut text = String::new();
    if let Some(failure) = &outcome.failure {
        text.push_str(&format!("error: {} ({})", failure.message, failure.code));
    } else if outcome.status != CallStatus::Completed {
        text.push_str(&format!("error: the call is {}", outcome.status.as_str()));
    }
    let output = match &outcome.output {
        Value::Null => String::new(),
        Value::String(output) => output.clone(),
        Value::Object(fields) => object_text(fields),
        other => other.to_string(),
    };
    if !text.is_empty() && !output.is_empty() {
        text.push_str("\n\n");
    }
    text.push_str(&output);
    if text.is_empty() { "(no output)".to_owned() } else { text }
}

fn object_text(fields: &Map<String, Value>) -> String {
    let is_image = fields.get("kind").is_some_and(|kind| kind == "image");
    let fields = || fields.iter().filter(|(name, _)| !(is_image && *name == "data"));
    let is_long = |value: &Value| {
        matches!(value, Value::String(text) if text.contains('\n'))
            || matches!(value, Value::Array(items) if !items.is_empty())
    };
    let header = fields().filter(|(_, value)| !is_long(value) && !value.is_null());
    let header: Vec<String> = header.map(|(name, value)| format!("{name}: {}", short(value))).collect();
    let sections = fields().filter(|(_, value)| is_long(value));
    let sections = sections.map(|(name, value)| format!("{name}:\n{}", long(value).trim_end_matches('\n')));
    let blocks: Vec<String> =
        std::iter::once(header.join("\n")).filter(|header| !header.is_empty()).chain(sections).collect();
    blocks.join("\n\n")
}

fn short(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn long(value: &Value) -> String {
    match value {
        Value::Array(items) => items.iter().map(short).collect::<Vec<_>>().join("\n"),
        other => short(other),
    }
}

/// The image of an image result.
pub(super) fn result_image(outcome: &ToolOutcome) -> Option<Image> {
    let fields = outcome.output.as_object()?;
    if fields.get("kind")? != "image" {
        return None;
    }
    let text = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
    Some(Image::Inline { media_type: text("media_type")?, data: text("data")? })
}

#[cfg(test)]
mod tests {
    use remuda_domain::{Code, ToolCallId, run::Failure, tool::ToolCall};
    use serde_json::json;

    use super::*;

    fn outcome(status: CallStatus, output: Value) -> ToolOutcome {
        let call = ToolCall {
            id: ToolCallId::new(),
            tool: "Bash".into(),
            arguments: json!({}),
            parallel: false,
            timeout: None,
        };
        ToolOutcome { output, ..ToolOutcome::without_result(&call, status, None) }
    }

    #[test]
    fn results_are_rendered_as_text() {
        let output = json!({ "exit_code": 1, "stdout": "a\nb\n", "stderr": "", "files": ["x", "y"] });
        assert_eq!(
            result_text(&outcome(CallStatus::Completed, output)),
            "exit_code: 1\nstderr: \n\nfiles:\nx\ny\n\nstdout:\na\nb"
        );
        assert_eq!(result_text(&outcome(CallStatus::Completed, json!("plain"))), "plain");
        assert_eq!(result_text(&outcome(CallStatus::Completed, Value::Null)), "(no output)");
    }

    #[test]
    fn failures_show_the_reason_and_the_output() {
        let mut failed = outcome(CallStatus::TimedOut, json!({ "stdout": "so far" }));
        failed.failure = Some(Failure::new(Code::ToolTimedOut, "too slow"));
        assert_eq!(result_text(&failed), "error: too slow (tool_timed_out)\n\nstdout: so far");
        let skipped = outcome(CallStatus::Skipped, Value::Null);
        assert_eq!(result_text(&skipped), "error: the call is skipped");
    }

    #[test]
    fn image_results_are_shown_as_images() {
        let picture = json!({ "kind": "image", "media_type": "image/png", "data": "AAAA", "bytes": 3 });
        let picture = outcome(CallStatus::Completed, picture);
        assert_eq!(result_text(&picture), "bytes: 3\nkind: image\nmedia_type: image/png");
        assert!(result_image(&picture).is_some());
    }
}
