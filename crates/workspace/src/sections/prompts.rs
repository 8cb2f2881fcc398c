//! Parses the composition of the system prompt: `.openharness/prompts.yaml`, or `system_prompt` in the settings.

use std::path::Path;

use crate::{
    definition_dir::Source,
    definition_files::is_descendant_path,
    environment::VariableSyntax,
    parse::{Fields, Node, Position, ScalarKind, Value},
    report::Reporter,
    settings::{PromptSettings, Segment},
};

const FILE: &str = ".openharness/prompts.yaml";

/// Reads `prompts.yaml`, the newer form, which replaces `older`.
pub(crate) fn read(source: Source<'_>, older: PromptSettings) -> PromptSettings {
    let reporter = Reporter::for_file(source.report, FILE);
    let Some(mut node) = source.yaml(Path::new(FILE), &reporter) else { return older };
    source.interpolate(&mut node, VariableSyntax::Native, &reporter);
    if older != PromptSettings::default() {
        reporter.warn(Position::FILE, "replaces `system_prompt` of .openharness/settings.yaml");
    }
    match Fields::from_node(&node, "prompts", &reporter) {
        Some(fields) => parse(source, &fields),
        None => older,
    }
}

/// Parses the fields, which both forms share.
pub(crate) fn parse(source: Source<'_>, fields: &Fields<'_>) -> PromptSettings {
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
                    models.reporter.error(entry.at, message);
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

/// Parses a text: a string, or a map with `inline` or with `file`, a path in the workspace.
fn text(source: Source<'_>, fields: &Fields<'_>, key: &str, node: &Node) -> Option<String> {
    if let Value::Scalar(scalar) = &node.value
        && matches!(scalar.kind(), ScalarKind::Text(_))
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
                parts
                    .reporter
                    .error(file.at, format!("{}: {} {message}", parts.name("file"), file.display()));
            };
            if !is_descendant_path(&file.text) {
                fail("is not a path inside the workspace".to_owned());
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
            parts.reporter.error(node.at, message);
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
            let hint = fields.reporter.suggestion(&text.text, known);
            let message =
                format!("{}: {} is not a prompt segment{hint}", fields.name("order"), text.display());
            fields.reporter.error(item.at, message);
            return None;
        };
        if order.contains(&segment) {
            fields
                .reporter
                .error(item.at, format!("{}: {} is listed twice", fields.name("order"), text.display()));
            return None;
        }
        order.push(segment);
    }
    Some(order)
}
