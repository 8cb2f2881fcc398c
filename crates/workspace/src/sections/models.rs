//! Parses model registries: `models/*.yaml`, each with any number of entries.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

use remuda_domain::model::{ModelDefinition, ModelRef, ProviderKind, Registry, Secret};

use super::{model_limits, settings::parameters};
use crate::{
    definition_dir::Source,
    definition_files::is_descendant_path,
    environment::{Owner, VariableSyntax},
    parse::{Entry, Fields, LocatedText, Value, authority, is_model_name},
    report::Reporter,
};

pub(crate) type Models = BTreeMap<ModelRef, ModelDefinition>;

/// Reads the models of a directory.
pub(crate) fn read(source: Source<'_>, directory: &Path, models: &mut Models) {
    let registry = match source.owner() {
        Owner::Platform => Registry::Platform,
        Owner::Workspace => Registry::Workspace,
    };
    // Lowercase name to the file that defines it and the name as written there.
    let mut names: BTreeMap<String, (String, String)> = BTreeMap::new();
    for path in source.list(directory, ".yaml") {
        let shown = source.files.display_path(&path);
        let reporter = Reporter::for_file(source.report, &shown);
        let Some(mut node) = source.yaml(&path, &reporter) else { continue };
        let Value::Map(entries) = &mut node.value else {
            reporter.error(node.at, format!("expected a map of models by name, found {}", node.kind_name()));
            continue;
        };
        for entry in entries {
            let reporter = Reporter::for_definition(source.report, &shown, entry.key.clone());
            if !is_model_name(&entry.key) {
                let message = "expected a name of letters, digits, `.`, `_` and `-`, at most 64 characters";
                reporter.error(entry.at, format!("the model's name: {message}"));
                continue;
            }
            if let Some((file, twin)) = names.get(&entry.key.to_lowercase()) {
                let message = format!("the model `{}` is defined already, as `{twin}` in {file}", entry.key);
                reporter.error(entry.at, message);
                continue;
            }
            names.insert(entry.key.to_lowercase(), (shown.clone(), entry.key.clone()));
            let reference = ModelRef::new(registry, &entry.key);
            if let Some(model) = model(source, &path, reference.clone(), entry, &reporter) {
                models.insert(reference, model);
            }
        }
    }
}

fn model(
    source: Source<'_>,
    path: &Path,
    reference: ModelRef,
    entry: &mut Entry,
    reporter: &Reporter<'_>,
) -> Option<ModelDefinition> {
    source.interpolate(&mut entry.value, VariableSyntax::Native, reporter);
    let fields = Fields::from_node(&entry.value, &entry.key, reporter)?;
    let providers = ProviderKind::ALL.map(|kind| (kind.as_str(), kind));
    let provider = fields.choice("provider", &providers);
    if provider.is_none() && !reporter.failed() {
        reporter.error(
            entry.at,
            "provider: is missing, expected openai, openai-compatible, anthropic or scripted",
        );
    }
    let name = fields.required_text("name");
    let url = fields.text("url");
    let key = fields.secret("key").filter(|key| {
        let empty = key.trim().is_empty();
        if empty {
            reporter.warn(entry.at, "key: is empty and ignored");
        }
        !empty
    });
    let headers = headers(&fields);
    let own = parameters(&fields);
    let nested = fields.map("parameters").map(|fields| {
        let parameters = parameters(&fields);
        fields.finish();
        parameters
    });
    let metadata = match fields.map("metadata") {
        Some(metadata) => metadata.entries().iter().map(|e| (e.key.clone(), e.value.to_json())).collect(),
        None => serde_json::Map::new(),
    };
    let limits = model_limits::parse(&fields);
    fields.finish();

    if let Some(url) = &url {
        check_url(&fields, url);
    } else if provider == Some(ProviderKind::OpenAiCompatible) {
        reporter.error(entry.at, "url: is missing, an openai-compatible model needs one");
    }
    let mut name = name?;
    if name.text.trim().is_empty() {
        reporter.error(name.at, "name: expected the provider's name of the model, found an empty text");
    }
    if provider == Some(ProviderKind::Scripted) {
        name.text = scenario(source, path, &name, reporter)?;
    }
    let provider = provider.filter(|_| !reporter.failed())?;
    let mut model = ModelDefinition {
        reference,
        provider,
        name: name.text,
        url: url.map(|url| url.text.trim_end_matches('/').to_owned()),
        key: key.map(Secret::new),
        headers,
        parameters: own.or(nested.unwrap_or_default()),
        context_window: None,
        max_output_tokens: None,
        price: None,
        metadata,
    };
    limits.apply(&mut model);
    Some(model)
}

fn headers(fields: &Fields<'_>) -> BTreeMap<String, Secret> {
    let mut headers = BTreeMap::new();
    let Some(given) = fields.map("headers") else { return headers };
    for entry in given.entries() {
        let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        if entry.key.is_empty() || !entry.key.chars().all(token) {
            given.reporter.error(entry.at, "headers: expected the name of a header as key");
        } else if let Some(value) = given.as_secret(&entry.key, &entry.value) {
            if value.chars().any(char::is_control) {
                let message = format!("{}: expected one line of text", given.name(&entry.key));
                given.reporter.error(entry.value.at, message);
            }
            headers.insert(entry.key.clone(), Secret::new(value));
        }
    }
    headers
}

/// URLs are shown and stored, so they must not contain a password.
fn check_url(fields: &Fields<'_>, url: &LocatedText) {
    let message = match authority(&url.text) {
        None | Some("") => format!("url: expected https://… or http://…, found {}", url.display()),
        Some(authority) if authority.contains('@') => {
            "url: expected no user or password in the address: use `key` or `headers`".to_owned()
        }
        _ if url.text.contains(|c: char| c.is_whitespace() || c.is_control()) => {
            "url: expected no space in the address".to_owned()
        }
        _ if url.text.contains(['?', '#']) => "url: expected a base address without ? or #".to_owned(),
        _ => return,
    };
    fields.reporter.error(url.at, message);
}

/// Removes `..` from a path that is shown to users.
fn without_detours(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, component| {
        if component != Component::ParentDir || !path.pop() {
            path.push(component);
        }
        path
    })
}

/// The scenario file of a scripted model, relative to the registry file.
fn scenario(source: Source<'_>, path: &Path, name: &LocatedText, reporter: &Reporter<'_>) -> Option<String> {
    let given = Path::new(&name.text);
    let file: PathBuf = match source.owner() {
        Owner::Platform => path.parent()?.join(given),
        Owner::Workspace => {
            // `..` is allowed, because the kernel resolves the path beneath the root.
            let inside = is_descendant_path(&name.text.replace("../", "")) && !given.is_absolute();
            if !inside {
                reporter
                    .error(name.at, format!("name: {} is not a path inside the workspace", name.display()));
                return None;
            }
            path.parent()?.join(given)
        }
    };
    let file = without_detours(&file);
    match source.files.has_file(&file) {
        Ok(true) => Some(source.files.absolute(&file).display().to_string()),
        Ok(false) => {
            reporter.error(name.at, format!("name: the scenario {} does not exist", name.display()));
            None
        }
        Err(fault) => {
            reporter.error(name.at, format!("name: the scenario {} {}", name.display(), fault.message));
            None
        }
    }
}
