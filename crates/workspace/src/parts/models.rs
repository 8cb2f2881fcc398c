//! Registries of models: `models/*.yaml`, each with any number of entries.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

use remuda_domain::model::{ModelDefinition, ModelRef, ProviderKind, Registry, Secret};

use super::{price, settings::parameters};
use crate::{
    environment::{Notation, Owner},
    files::is_inside,
    report::Place,
    source::Source,
    text::{Entry, Fields, Text, Value, authority, is_model_name},
};

pub(crate) type Models = BTreeMap<ModelRef, ModelDefinition>;

/// Reads a directory into a registry.
pub(crate) fn read(source: Source<'_>, directory: &Path, models: &mut Models) {
    let registry = match source.owner() {
        Owner::Platform => Registry::Platform,
        Owner::Workspace => Registry::Workspace,
    };
    // By name in small letters: which file has it, as it is written there.
    let mut names: BTreeMap<String, (String, String)> = BTreeMap::new();
    for path in source.list(directory, ".yaml") {
        let shown = source.files.shown(&path);
        let place = Place::new(source.report, &shown);
        let Some(mut node) = source.yaml(&path, &place) else { continue };
        let Value::Map(entries) = &mut node.value else {
            place.error(node.at, format!("expected a map of models by name, found {}", node.kind_name()));
            continue;
        };
        for entry in entries {
            let place = Place::of(source.report, &shown, entry.key.clone());
            if !is_model_name(&entry.key) {
                let message = "expected a name of letters, digits, `.`, `_` and `-`, at most 64 characters";
                place.error(entry.at, format!("the model's name: {message}"));
                continue;
            }
            if let Some((file, twin)) = names.get(&entry.key.to_lowercase()) {
                let message = format!("the model `{}` is defined already, as `{twin}` in {file}", entry.key);
                place.error(entry.at, message);
                continue;
            }
            names.insert(entry.key.to_lowercase(), (shown.clone(), entry.key.clone()));
            let reference = ModelRef::new(registry, &entry.key);
            if let Some(model) = model(source, &path, reference.clone(), entry, &place) {
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
    place: &Place<'_>,
) -> Option<ModelDefinition> {
    source.interpolate(&mut entry.value, Notation::Ours, place);
    let fields = Fields::of(&entry.value, &entry.key, place)?;
    let providers = ProviderKind::ALL.map(|kind| (kind.as_str(), kind));
    let provider = fields.choice("provider", &providers);
    if provider.is_none() && !place.failed() {
        place.error(
            entry.at,
            "provider: is missing, expected openai, openai-compatible, anthropic or scripted",
        );
    }
    let name = fields.required("name");
    let url = fields.text("url");
    let key = fields.secret("key").filter(|key| {
        let empty = key.trim().is_empty();
        if empty {
            place.warn(entry.at, "key: is empty and ignored");
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
    let capacity = price::take(&fields);
    fields.finish();

    if let Some(url) = &url {
        check_url(&fields, url);
    } else if provider == Some(ProviderKind::OpenAiCompatible) {
        place.error(entry.at, "url: is missing, an openai-compatible model needs one");
    }
    let mut name = name?;
    if name.text.trim().is_empty() {
        place.error(name.at, "name: expected what the provider calls the model, found an empty text");
    }
    if provider == Some(ProviderKind::Scripted) {
        name.text = scenario(source, path, &name, place)?;
    }
    let provider = provider.filter(|_| !place.failed())?;
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
    capacity.apply(&mut model);
    Some(model)
}

fn headers(fields: &Fields<'_>) -> BTreeMap<String, Secret> {
    let mut headers = BTreeMap::new();
    let Some(given) = fields.map("headers") else { return headers };
    for entry in given.entries() {
        let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        if entry.key.is_empty() || !entry.key.chars().all(token) {
            given.place.error(entry.at, "headers: expected the name of a header as key");
        } else if let Some(value) = given.as_secret(&entry.key, &entry.value) {
            if value.chars().any(char::is_control) {
                let message = format!("{}: expected one line of text", given.name(&entry.key));
                given.place.error(entry.value.at, message);
            }
            headers.insert(entry.key.clone(), Secret::new(value));
        }
    }
    headers
}

/// Addresses are shown and stored, so they must not hold a password.
fn check_url(fields: &Fields<'_>, url: &Text) {
    let message = match authority(&url.text) {
        None | Some("") => format!("url: expected https://… or http://…, found {}", url.shown()),
        Some(authority) if authority.contains('@') => {
            "url: expected no user or password in the address: use `key` or `headers`".to_owned()
        }
        _ if url.text.contains(|c: char| c.is_whitespace() || c.is_control()) => {
            "url: expected no space in the address".to_owned()
        }
        _ if url.text.contains(['?', '#']) => "url: expected a base address without ? or #".to_owned(),
        _ => return,
    };
    fields.place.error(url.at, message);
}

/// The same path without `..`: it is shown to people.
fn without_detours(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, component| {
        if component != Component::ParentDir || !path.pop() {
            path.push(component);
        }
        path
    })
}

/// The scenario of a scripted model is a file beside the one that names it.
fn scenario(source: Source<'_>, path: &Path, name: &Text, place: &Place<'_>) -> Option<String> {
    let given = Path::new(&name.text);
    let file: PathBuf = match source.owner() {
        Owner::Platform => path.parent()?.join(given),
        Owner::Workspace => {
            // From the registry's directory it may be reached through `..`: the kernel keeps it beneath the root.
            let inside = is_inside(&name.text.replace("../", "")) && !given.is_absolute();
            if !inside {
                place.error(name.at, format!("name: {} is no path within the workspace", name.shown()));
                return None;
            }
            path.parent()?.join(given)
        }
    };
    let file = without_detours(&file);
    match source.files.has_file(&file) {
        Ok(true) => Some(source.files.absolute(&file).display().to_string()),
        Ok(false) => {
            place.error(name.at, format!("name: the scenario {} does not exist", name.shown()));
            None
        }
        Err(fault) => {
            place.error(name.at, format!("name: the scenario {} {}", name.shown(), fault.message));
            None
        }
    }
}
