//! Size limits on what a caller may send, and checks that name the field.

use std::{
    collections::{BTreeSet, HashSet},
    time::Duration,
};

use crate::{
    error::{Code, Error, Result},
    message::{Image, Part},
    nearest,
    permission::SessionPermissions,
    run::{MessageInput, RunInput, ToolsInput},
    session::SessionRef,
};

/// Tool calls per run.
pub const MAX_CALLS: usize = 256;
/// JSON text of one call's arguments.
pub const MAX_ARGUMENTS_BYTES: usize = 1024 * 1024;
/// JSON text of all arguments of a run.
pub const MAX_INPUT_BYTES: usize = 4 * 1024 * 1024;
/// Texts and images per message.
pub const MAX_PARTS: usize = 64;
pub const MAX_URL_BYTES: usize = 4096;
/// Path of a workspace's directory.
pub const MAX_ROOT_BYTES: usize = 4096;
/// Image types that models accept.
pub const IMAGE_TYPES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];
/// Nesting depth of arguments: deeper JSON is a mistake or an attack.
pub const MAX_JSON_DEPTH: usize = 64;
/// Timeouts of runs and tool calls.
pub const MIN_TIMEOUT: Duration = Duration::from_millis(1);
pub const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
pub const DEFAULT_RUN_TIMEOUT: Duration = Duration::from_secs(60 * 60);
pub const DEFAULT_TOOL_TIMEOUT: Duration = Duration::from_secs(2 * 60);
/// Unfinished runs per session.
pub const MAX_PENDING_RUNS: i64 = 100_000;
/// Default number of workers a run may lose before it fails: the run may be what kills them.
pub const MAX_LOST_ATTEMPTS: u32 = 5;
/// Permission rules per session, and their parts.
pub const MAX_RULES: usize = 200;
pub const MAX_PATTERN_CHARS: usize = 512;
pub const MAX_APPROVERS: usize = 100;
/// Webhooks per session that have not ended, and event types per webhook.
pub const MAX_WEBHOOKS: usize = 16;
pub const MAX_WEBHOOK_TYPES: usize = 64;
/// Dead letters per webhook; the oldest are dropped.
pub const MAX_DEAD_LETTERS: u32 = 1000;
/// Names and keys.
pub const MAX_NAME_CHARS: usize = 128;
pub const MAX_TITLE_CHARS: usize = 256;
pub const MAX_IDEMPOTENCY_KEY_BYTES: usize = 128;
pub const MAX_REASON_CHARS: usize = 512;
/// Size of a gRPC message. Larger than [`MAX_INPUT_BYTES`], so that oversized input gets our own, clearer error.
pub const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

/// Checks the input of a run. `tools` are the names of all tools.
pub fn check_input(input: &RunInput, tools: &BTreeSet<String>) -> Result<()> {
    match input {
        RunInput::Tools(input) => check_tools(input, tools),
        RunInput::Message(message) => check_message(message),
    }
}

fn check_message(input: &MessageInput) -> Result<()> {
    if input.parts.is_empty() {
        return Err(Error::invalid("message", "expected a text or an image"));
    }
    if input.parts.len() > MAX_PARTS {
        return Err(too_large("message", input.parts.len(), MAX_PARTS, "parts"));
    }
    let mut images = 0;
    for part in &input.parts {
        match part {
            Part::Text { text } if text.trim().is_empty() => {
                return Err(Error::invalid("message.text", "expected a non-blank text"));
            }
            Part::Text { text } if text.contains('\0') => {
                return Err(Error::invalid("message.text", "expected a text without NUL characters"));
            }
            Part::Text { .. } => {}
            Part::Image { image } => {
                check_image(image, images)?;
                images += 1;
            }
            Part::Reasoning { .. }
            | Part::ToolUse { .. }
            | Part::ToolResult { .. }
            | Part::Summary { .. } => {
                return Err(Error::invalid("message", "expected texts and images only"));
            }
        }
    }
    input.agent.as_deref().map_or(Ok(()), |agent| check_name("message.agent", agent))
}

fn check_image(image: &Image, index: usize) -> Result<()> {
    let field = |name: &str| format!("message.images[{index}].{name}");
    match image {
        Image::Inline { media_type, data } => {
            if !IMAGE_TYPES.contains(&media_type.as_str()) {
                let expected = format!("expected one of {}", IMAGE_TYPES.join(", "));
                return Err(Error::invalid(field("media_type"), expected));
            }
            let base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
            if data.is_empty() || data.len() % 4 != 0 || !data.bytes().all(base64) {
                return Err(Error::invalid(field("data"), "expected the bytes of an image"));
            }
            Ok(())
        }
        Image::Url { url } => {
            let visible = url.len() <= MAX_URL_BYTES && url.bytes().all(|byte| byte.is_ascii_graphic());
            match url.strip_prefix("https://") {
                Some(rest) if visible && !rest.is_empty() && !rest.starts_with('/') => Ok(()),
                _ => Err(Error::invalid(field("url"), "expected an address that starts with https://")),
            }
        }
    }
}

fn check_tools(input: &ToolsInput, tools: &BTreeSet<String>) -> Result<()> {
    if input.calls.is_empty() {
        return Err(Error::invalid("tools.calls", "expected at least one call"));
    }
    if input.calls.len() > MAX_CALLS {
        return Err(too_large("tools.calls", input.calls.len(), MAX_CALLS, "calls"));
    }
    let mut ids = HashSet::with_capacity(input.calls.len());
    for (index, call) in input.calls.iter().enumerate() {
        let field = |name: &str| format!("tools.calls[{index}].{name}");
        if !ids.insert(call.id) {
            return Err(Error::invalid(field("id"), "expected an id that no other call of the run has"));
        }
        if call.tool.is_empty() {
            return Err(Error::invalid(field("tool"), "expected the name of a tool"));
        }
        if !tools.contains(&call.tool) {
            let shown: String = call.tool.chars().take(64).flat_map(char::escape_default).collect();
            let hint = nearest(&call.tool, tools.iter().map(String::as_str));
            let hint =
                hint.map_or("`remuda tools` lists them".to_owned(), |near| format!("did you mean {near}?"));
            let message = format!("there is no tool {shown}; {hint}");
            return Err(Error::new(Code::UnknownTool, message).at(field("tool")));
        }
        if !call.arguments.is_object() {
            return Err(Error::invalid(field("arguments"), "expected a JSON object"));
        }
        if depth(&call.arguments) > MAX_JSON_DEPTH {
            return Err(Error::invalid(
                field("arguments"),
                format!("expected at most {MAX_JSON_DEPTH} levels of nesting"),
            ));
        }
        if let Some(timeout) = call.timeout {
            check_timeout(&field("timeout"), timeout)?;
        }
    }
    Ok(())
}

fn depth(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        serde_json::Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Checks the permissions of a session as given by a caller.
pub fn check_permissions(permissions: &SessionPermissions) -> Result<()> {
    if permissions.rules.len() > MAX_RULES {
        return Err(too_large("permissions.rules", permissions.rules.len(), MAX_RULES, "rules"));
    }
    for (index, rule) in permissions.rules.iter().enumerate() {
        for (name, text) in [("permission", &rule.permission), ("pattern", &rule.pattern)] {
            let fits = (1..=MAX_PATTERN_CHARS).contains(&text.chars().count());
            if !fits || text.contains('\0') {
                return Err(Error::invalid(
                    format!("permissions.rules[{index}].{name}"),
                    format!("expected 1 to {MAX_PATTERN_CHARS} characters and no NUL"),
                ));
            }
        }
    }
    if permissions.approvers.len() > MAX_APPROVERS {
        return Err(too_large("permissions.approvers", permissions.approvers.len(), MAX_APPROVERS, "names"));
    }
    permissions
        .approvers
        .iter()
        .enumerate()
        .try_for_each(|(index, name)| check_name(&format!("permissions.approvers[{index}]"), name))
}

/// Parses the JSON text of one call's arguments.
pub fn parse_arguments(field: &str, text: &str) -> Result<serde_json::Value> {
    check_arguments_size(field, text.len())?;
    let arguments: serde_json::Value = serde_json::from_str(text)
        .map_err(|error| Error::invalid(field, format!("expected a JSON object: {error}")))?;
    if !arguments.is_object() {
        return Err(Error::invalid(field, "expected a JSON object"));
    }
    if depth(&arguments) > MAX_JSON_DEPTH {
        return Err(Error::invalid(field, format!("expected at most {MAX_JSON_DEPTH} levels of nesting")));
    }
    Ok(arguments)
}

/// Checks the size of one call's arguments before they are parsed.
pub fn check_arguments_size(field: &str, bytes: usize) -> Result<()> {
    if bytes > MAX_ARGUMENTS_BYTES {
        return Err(too_large(field, bytes, MAX_ARGUMENTS_BYTES, "bytes"));
    }
    Ok(())
}

pub fn check_input_size(bytes: usize) -> Result<()> {
    if bytes > MAX_INPUT_BYTES {
        return Err(too_large("tools.calls", bytes, MAX_INPUT_BYTES, "bytes of arguments"));
    }
    Ok(())
}

/// Checks the total size of a message's texts and images.
pub fn check_message_size(bytes: usize) -> Result<()> {
    if bytes > MAX_INPUT_BYTES {
        return Err(too_large("message", bytes, MAX_INPUT_BYTES, "bytes of text and images"));
    }
    Ok(())
}

fn too_large(field: &str, actual: usize, limit: usize, unit: &str) -> Error {
    Error::new(Code::TooLarge, format!("{actual} {unit}, at most {limit} are allowed")).at(field)
}

pub fn check_timeout(field: &str, timeout: Duration) -> Result<()> {
    if (MIN_TIMEOUT..=MAX_TIMEOUT).contains(&timeout) {
        return Ok(());
    }
    Err(Error::invalid(field, "expected 1 ms to 24 h"))
}

/// Checks a name chosen by the caller: short, printable, and not to be mistaken for an id.
pub fn check_name(field: &str, name: &str) -> Result<()> {
    let printable = name.chars().all(|c| !c.is_control() && c != '\u{feff}' && !is_bidi(c));
    if name.is_empty() || name.chars().count() > MAX_NAME_CHARS || !printable || name.trim() != name {
        return Err(Error::invalid(
            field,
            "expected 1 to 128 printable characters without spaces at the ends",
        ));
    }
    if name.starts_with("ses_") {
        return Err(Error::invalid(field, "expected a name that does not start like an id (ses_)"));
    }
    Ok(())
}

/// Checks the form of a model reference: `platform/<name>`, `workspace/<name>` or `<name>`. Workers check whether it
/// exists.
pub fn check_model(field: &str, model: &str) -> Result<()> {
    check_name(field, model)?;
    if matches!(model.split_once('/'), Some(("platform" | "workspace", ""))) {
        return Err(Error::invalid(field, "expected platform/<name>, workspace/<name> or <name>"));
    }
    Ok(())
}

/// Checks the directory of a workspace: an absolute, normalized path.
pub fn check_root(field: &str, root: &str) -> Result<()> {
    let normal = |rest: &str| rest.split('/').all(|part| !matches!(part, "" | "." | ".."));
    let absolute = root == "/" || root.strip_prefix('/').is_some_and(normal);
    if !absolute || root.len() > MAX_ROOT_BYTES || root.chars().any(char::is_control) {
        return Err(Error::invalid(
            field,
            "expected an absolute path of at most 4096 bytes, without . and .. and empty parts",
        ));
    }
    Ok(())
}

/// Characters that reorder text on a terminal.
fn is_bidi(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}')
}

pub fn check_text(field: &str, text: &str, max_chars: usize) -> Result<()> {
    if text.chars().count() > max_chars || text.contains('\0') {
        return Err(Error::invalid(field, format!("expected at most {max_chars} characters and no NUL")));
    }
    Ok(())
}

pub fn check_idempotency_key(key: &str) -> Result<()> {
    let printable = key.bytes().all(|byte| (0x21..=0x7e).contains(&byte));
    if key.is_empty() || key.len() > MAX_IDEMPOTENCY_KEY_BYTES || !printable {
        return Err(Error::invalid("idempotency_key", "expected 1 to 128 visible ASCII characters"));
    }
    Ok(())
}

/// Parses a session reference: an id (`ses_…`) or the session's name.
pub fn parse_session_ref(text: &str) -> Result<SessionRef> {
    if text.starts_with("ses_") {
        return text.parse().map(SessionRef::Id).map_err(|error: Error| error.at("session"));
    }
    check_name("session", text)?;
    Ok(SessionRef::Name(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{ids::ToolCallId, tool::ToolCall};

    fn input(calls: Vec<(&str, Value)>) -> RunInput {
        let calls = calls
            .into_iter()
            .map(|(tool, arguments)| ToolCall {
                id: ToolCallId::new(),
                tool: tool.to_owned(),
                arguments,
                parallel: false,
                timeout: None,
            })
            .collect();
        RunInput::Tools(ToolsInput { calls, continue_on_error: false, record: false })
    }

    fn rejected(input: &RunInput) -> (Code, String) {
        let error = check_input(input, &BTreeSet::from(["noop".to_owned()])).unwrap_err();
        (error.code(), error.field().unwrap_or_default().to_owned())
    }

    #[test]
    fn unknown_tool_gets_a_suggestion() {
        let tools = BTreeSet::from(["Bash".to_owned(), "Read".to_owned()]);
        let message = |tool| {
            let error = check_input(&input(vec![(tool, json!({}))]), &tools).unwrap_err();
            error.message().to_owned()
        };
        assert_eq!(message("Bsh"), "there is no tool Bsh; did you mean Bash?");
        assert_eq!(message("Teleport"), "there is no tool Teleport; `remuda tools` lists them");
    }

    #[test]
    fn invalid_tools_input_names_its_field() {
        assert_eq!(rejected(&input(vec![])), (Code::InvalidArgument, "tools.calls".into()));
        assert_eq!(
            rejected(&input(vec![("noop", json!({})), ("Nope", json!({}))])),
            (Code::UnknownTool, "tools.calls[1].tool".into())
        );
        assert_eq!(
            rejected(&input(vec![("noop", json!([1]))])),
            (Code::InvalidArgument, "tools.calls[0].arguments".into())
        );
        let deep = (0..100).fold(json!({}), |inner, _| json!({ "a": inner }));
        assert_eq!(
            rejected(&input(vec![("noop", deep)])),
            (Code::InvalidArgument, "tools.calls[0].arguments".into())
        );
        let many = input((0..300).map(|_| ("noop", json!({}))).collect());
        assert_eq!(rejected(&many), (Code::TooLarge, "tools.calls".into()));
    }

    #[test]
    fn confusing_names_are_rejected() {
        for bad in ["", " a", "a\n", "a\0b", "ses_x", "a\u{202e}b", &"x".repeat(129)] {
            assert!(check_name("name", bad).is_err(), "{bad:?}");
        }
        for good in ["s1", "build #7", "日本語", "a.b*>"] {
            assert!(check_name("name", good).is_ok(), "{good:?}");
        }
    }

    fn message(parts: Vec<Part>) -> RunInput {
        RunInput::Message(MessageInput { id: crate::ids::MessageId::new(), parts, agent: None })
    }

    fn inline(media_type: &str, data: &str) -> Part {
        Part::Image { image: Image::Inline { media_type: media_type.to_owned(), data: data.to_owned() } }
    }

    #[test]
    fn invalid_message_names_its_field() {
        let invalid = |field: &str| (Code::InvalidArgument, field.to_owned());
        let linked = |url: &str| Part::Image { image: Image::Url { url: url.to_owned() } };
        assert_eq!(rejected(&message(vec![])), invalid("message"));
        for text in [" \n", "a\0b"] {
            assert_eq!(rejected(&message(vec![Part::text(text)])), invalid("message.text"));
        }
        let second = |part| message(vec![Part::text("look"), inline("image/png", "AAAA"), part]);
        assert!(check_input(&second(linked("https://host/a.png")), &BTreeSet::new()).is_ok());
        let field = |name: &str| invalid(&format!("message.images[1].{name}"));
        assert_eq!(rejected(&second(inline("image/svg+xml", "AAAA"))), field("media_type"));
        for data in ["", "AAA", "AA\nA"] {
            assert_eq!(rejected(&second(inline("image/png", data))), field("data"));
        }
        for url in ["http://host/a", "https://", "https:///etc/passwd", "https://host/a b", "file:///x"] {
            assert_eq!(rejected(&second(linked(url))), field("url"), "{url}");
        }
        let many = message((0..=MAX_PARTS).map(|_| Part::text("a")).collect());
        assert_eq!(rejected(&many), (Code::TooLarge, "message".to_owned()));
    }

    #[test]
    fn model_references_and_roots_are_validated() {
        for good in ["gpt", "platform/gpt", "workspace/a/b"] {
            assert!(check_model("model", good).is_ok(), "{good}");
        }
        for bad in ["", "platform/", "workspace/", "a\n"] {
            assert!(check_model("model", bad).is_err(), "{bad:?}");
        }
        for good in ["/", "/srv/project", "/srv/a b/..c", "/日本"] {
            assert!(check_root("root", good).is_ok(), "{good}");
        }
        let long = format!("/{}", "x".repeat(MAX_ROOT_BYTES));
        for bad in
            ["", "srv", "./srv", "/srv/../etc", "/srv/.", "/srv//a", "/srv/", "//", "/a\0b", "/a\nb", &long]
        {
            assert!(check_root("root", bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn timeout_out_of_bounds_is_rejected() {
        assert!(check_timeout("timeout", Duration::ZERO).is_err());
        assert!(check_timeout("timeout", Duration::MAX).is_err());
        assert!(check_timeout("timeout", Duration::from_secs(5)).is_ok());
    }

    #[test]
    fn idempotency_keys_must_be_visible_ascii() {
        for bad in ["", "a b", "é", "a\n", &"k".repeat(129)] {
            assert!(check_idempotency_key(bad).is_err(), "{bad:?}");
        }
        assert!(check_idempotency_key("order-42/try:1").is_ok());
    }
}
