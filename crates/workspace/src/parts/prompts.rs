//! How the system prompt is put together: `.openharness/prompts.yaml`, or `system_prompt` in the settings.

use std::path::Path;

use crate::{
    environment::Notation,
    files::is_inside,
    report::Place,
    settings::{PromptSettings, Segment},
    source::Source,
    text::{Fields, Kind, Node, Position, Value},
};

const FILE: &str = ".openharness/prompts.yaml";

/// The newer form, which replaces the older one.
pub(crate) fn read(source: Source<'_>, older: PromptSettings) -> PromptSettings {
    let place = Place::new(source.report, FILE);
    let Some(mut node) = source.yaml(Path::new(FILE), &place) else { return older };
    source.interpolate(&mut node, Notation::Ours, &place);
    if older != PromptSettings::default() {
        place.warn(Position::FILE, "replaces `system_prompt` of .openharness/settings.yaml");
    }
    match Fields::of(&node, "prompts", &place) {
        Some(fields) => take(source, &fields),
        None => older,
    }
}

/// Both forms have the same fields.
pub(crate) fn take(source: Source<'_>, fields: &Fields<'_>) -> PromptSettings {
    let mut prompt = PromptSettings::default();
    if let Some(node) = fields.get("base") {
        prompt.base = text(source, fields, "base", node);
    }
    if let Some(optimized) = fields.map("llm_optimized") {
        if let Some(providers) = optimized.map("providers") {
            for entry in providers.entries() {
                if let Some(text) = text(source, &providers, &entry.key, &entry.value) {
                    prompt.by_provider.insert(entry.key.clone(), text);
                }
            }
        }
        if let Some(models) = optimized.map("models") {
            for entry in models.entries() {
                if entry.key.parse::<remuda_domain::model::ModelRef>().is_err() {
                    let message =
                        format!("{}: expected platform/<name> or workspace/<name> as key", models.name("…"));
                    models.place.error(entry.at, message);
                } else if let Some(text) = text(source, &models, &entry.key, &entry.value) {
                    prompt.by_model.insert(entry.key.clone(), text);
                }
            }
        }
        optimized.finish();
    }
    if let Some(compose) = fields.map("compose") {
        if let Some(order) = compose.get("order").and_then(|node| order(&compose, node)) {
            prompt.order = order;
        }
        prompt.include_environment = compose.boolean("include_environment").unwrap_or(false);
        compose.finish();
    }
    fields.finish();
    prompt
}

/// A text, `inline`, or in a `file` of the workspace.
fn text(source: Source<'_>, fields: &Fields<'_>, key: &str, node: &Node) -> Option<String> {
    if let Value::Scalar(scalar) = &node.value
        && matches!(scalar.kind(), Kind::Text(_))
    {
        return fields.as_text(key, node).map(|text| text.text);
    }
    let parts = fields.as_map(key, node)?;
    let (inline, file) = (parts.text("inline"), parts.text("file"));
    parts.finish();
    match (inline, file) {
        (Some(inline), None) => Some(inline.text),
        (None, Some(file)) => {
            let fail = |message: String| {
                parts.place.error(file.at, format!("{}: {} {message}", parts.name("file"), file.shown()));
            };
            if !is_inside(&file.text) {
                fail("is no path within the workspace".to_owned());
                return None;
            }
            match source.files.read(Path::new(&file.text)) {
                Ok(Some(text)) => return Some(text.trim().to_owned()),
                Ok(None) => fail("does not exist".to_owned()),
                Err(fault) => fail(fault.message),
            }
            None
        }
        _ => {
            let message = format!("{}: expected either `inline` or `file`", fields.name(key));
            parts.place.error(node.at, message);
            None
        }
    }
}

fn order(fields: &Fields<'_>, node: &Node) -> Option<Vec<Segment>> {
    let Value::List(items) = &node.value else {
        fields.expected("order", node, "a list");
        return None;
    };
    let mut order = Vec::new();
    for item in items {
        let text = fields.as_text("order", item)?;
        let known = Segment::DEFAULT_ORDER;
        let Some(segment) = known.into_iter().find(|segment| segment.as_str() == text.text) else {
            let known = known.map(Segment::as_str);
            let hint = fields.place.hint(&text.text, known);
            let message = format!("{}: {} is no part of a prompt{hint}", fields.name("order"), text.shown());
            fields.place.error(item.at, message);
            return None;
        };
        if order.contains(&segment) {
            fields.place.error(item.at, format!("{}: {} is there twice", fields.name("order"), text.shown()));
            return None;
        }
        order.push(segment);
    }
    Some(order)
}
