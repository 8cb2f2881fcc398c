//! Parses `.openharness/settings.yaml`.

use std::path::Path;

use remuda_domain::{
    execution::{BackendKind, ExecutionChoice, WorkspaceAccess},
    model::ModelParameters,
};

use super::{memory, permissions, prompts};
use crate::{
    definition_dir::Source,
    environment::VariableSyntax,
    parse::{Fields, LocatedText, Node, Position, ScalarKind, Value, is_model_name},
    report::Reporter,
    settings::{ModelAlias, Settings, WorkspaceContext, WorkspaceKind},
};

pub(crate) const FILE: &str = ".openharness/settings.yaml";

/// The settings, with the values that can only be checked when all definitions are loaded.
#[derive(Default)]
pub(crate) struct SettingsFile {
    pub settings: Settings,
    pub default_agent: Option<LocatedText>,
    pub skill_directories: Vec<LocatedText>,
    /// The references of the aliases.
    pub aliased: Vec<LocatedText>,
    /// The model for summaries.
    pub summary_model: Option<LocatedText>,
    /// The position of the key `memory`.
    pub memory_position: Option<Position>,
}

pub(crate) fn read(source: Source<'_>) -> SettingsFile {
    let reporter = Reporter::for_file(source.report, FILE);
    let mut file = SettingsFile::default();
    let node = source.yaml(Path::new(FILE), &reporter).map(|mut node| {
        source.interpolate(&mut node, VariableSyntax::Native, &reporter);
        node
    });
    let Some(fields) = node.as_ref().and_then(|node| Fields::from_node(node, "settings", &reporter)) else {
        if reporter.failed() {
            permissions::deny_everything(&mut file.settings, &reporter, Position::FILE);
        }
        return file;
    };

    let kinds = [("project", WorkspaceKind::Project), ("chat", WorkspaceKind::Chat)];
    file.settings.kind = fields.choice("kind", &kinds).unwrap_or_default();
    file.default_agent = fields.text("default_agent");
    file.settings.default_agent = file.default_agent.as_ref().map(|name| name.text.clone());
    let template = fields.text("template").or_else(|| fields.text("runtime"));
    file.settings.template = template.map(|template| template.text);
    file.skill_directories = fields.texts("skill_dirs").unwrap_or_default();
    aliases(&fields, &mut file);
    if let Some(prompt) = fields.map("system_prompt") {
        file.settings.prompt = prompts::parse(source, &prompt);
    }
    file.settings.execution = fields.map("execution").map(|fields| execution(&fields)).unwrap_or_default();
    permissions::parse(source, &fields, &mut file.settings);
    if let Some(fields) = fields.map("memory") {
        file.settings.memory = memory::settings(&fields);
        file.memory_position = Some(fields.at);
    }
    if let Some(fields) = fields.map("context") {
        file.summary_model = fields.text("model").filter(|model| !model.text.trim().is_empty());
        let model = file.summary_model.as_ref().map(|model| model.text.trim().to_owned());
        file.settings.context = WorkspaceContext { summarize: fields.boolean("summarize"), model };
        fields.finish();
    }
    // Records of the template that created the workspace; not used.
    let _ = (fields.get("template_imports"), fields.get("imports"));
    fields.finish();
    file
}

fn aliases(fields: &Fields<'_>, file: &mut SettingsFile) {
    let Some(aliases) = fields.map("models") else { return };
    for entry in aliases.entries() {
        if !is_model_name(&entry.key) {
            let message = "expected a name of letters, digits, `.`, `_` and `-`, at most 64 characters";
            aliases.reporter.error(entry.at, format!("{}: {message}", aliases.name("…")));
            continue;
        }
        let Some(alias) = model(&aliases, &entry.key, &entry.value) else { continue };
        let (reference, parameters) = alias;
        let alias = ModelAlias { reference: reference.text.clone(), parameters };
        file.settings.models.insert(entry.key.clone(), alias);
        file.aliased.push(reference);
    }
}

/// Parses a reference to a model: a string, or a map with parameters.
pub(crate) fn model(fields: &Fields<'_>, key: &str, node: &Node) -> Option<(LocatedText, ModelParameters)> {
    let reference = match &node.value {
        Value::Scalar(scalar) if matches!(scalar.kind(), ScalarKind::Text(_)) => fields.as_text(key, node)?,
        Value::Map(_) => {
            let model = fields.as_map(key, node)?;
            let reference = model.text("model_ref").or_else(|| model.text("ref"));
            let parameters = parameters(&model);
            model.finish();
            return match reference {
                Some(reference) if !reference.text.trim().is_empty() => Some((reference, parameters)),
                _ => {
                    model
                        .reporter
                        .error(node.at, format!("{}: is missing, expected text", model.name("model_ref")));
                    None
                }
            };
        }
        Value::Unusable => return None,
        _ => {
            fields.expected(key, node, "the name of a model, or a map with `model_ref`");
            return None;
        }
    };
    if reference.text.trim().is_empty() {
        fields.expected(key, node, "the name of a model");
        return None;
    }
    Some((reference, ModelParameters::default()))
}

pub(crate) fn parameters(fields: &Fields<'_>) -> ModelParameters {
    ModelParameters {
        temperature: fields.number("temperature", 0.0, 2.0),
        top_p: fields.number("top_p", 0.0, 1.0),
        max_tokens: fields.integer("max_tokens", 1, 10_000_000),
    }
}

fn execution(fields: &Fields<'_>) -> ExecutionChoice {
    let backends = BackendKind::ALL.map(|kind| (kind.as_str(), kind));
    let accesses = [WorkspaceAccess::Mount, WorkspaceAccess::Copy].map(|access| (access.as_str(), access));
    let choice = ExecutionChoice {
        backend: fields.choice("backend", &backends),
        image: fields.text("image").map(|image| image.text),
        network: fields.text("network").map(|network| network.text),
        workspace: fields.choice("workspace", &accesses),
    };
    fields.finish();
    choice
}
