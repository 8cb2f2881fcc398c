//! Servers of tools: `tools/settings.yaml`.

use std::{collections::BTreeMap, path::Path, time::Duration};

use remuda_domain::model::Secret;

use crate::{
    definitions::{ToolServer, ToolTransport},
    environment::Notation,
    report::Place,
    source::Source,
    text::{Entry, Fields, Value, authority, is_name},
};

pub(crate) type ToolServers = BTreeMap<String, ToolServer>;

/// Adds the servers of a file, replacing those of the same name.
pub(crate) fn read(source: Source<'_>, path: &Path, servers: &mut ToolServers) {
    let shown = source.files.shown(path);
    let place = Place::new(source.report, &shown);
    let Some(mut node) = source.yaml(path, &place) else { return };
    let Value::Map(entries) = &mut node.value else {
        place.error(node.at, format!("expected a map of tool servers by name, found {}", node.kind_name()));
        return;
    };
    for entry in entries {
        let place = Place::of(source.report, &shown, entry.key.clone());
        // A server that is broken must not silently be another one of the same name.
        servers.remove(&entry.key);
        if let Some(server) = server(source, entry, &place) {
            servers.insert(server.name.clone(), server);
        }
    }
}

fn server(source: Source<'_>, entry: &mut Entry, place: &Place<'_>) -> Option<ToolServer> {
    if !is_name(&entry.key) {
        place.error(entry.at, "the server's name: expected letters, digits, `.`, `_` and `-`, at most 64");
        return None;
    }
    source.interpolate(&mut entry.value, Notation::Ours, place);
    let fields = Fields::of(&entry.value, &entry.key, place)?;
    let (command, url) = (fields.text("command"), fields.text("url"));
    let transport = match (command, url) {
        (Some(command), None) if !command.text.trim().is_empty() => {
            Some(ToolTransport::Command { command: command.text })
        }
        (None, Some(url)) => match authority(&url.text) {
            None | Some("") => {
                place.error(url.at, format!("url: expected https://… or http://…, found {}", url.shown()));
                None
            }
            Some(authority) if authority.contains('@') => {
                place.error(url.at, "url: expected no user or password in the address: use `headers`");
                None
            }
            Some(_) => Some(ToolTransport::Url { url: url.text }),
        },
        _ if place.failed() => None,
        _ => {
            place.error(entry.at, "expected either `command` or `url`");
            None
        }
    };
    let enabled = fields.boolean("enabled").unwrap_or(true);
    let environment = secrets(&fields, "environment");
    let headers = secrets(&fields, "headers");
    let timeout = fields.integer("timeout", 1, 24 * 60 * 60 * 1000);
    if let Some(oauth) = fields.get("oauth")
        && !matches!(&oauth.value, Value::Scalar(scalar) if scalar.text == "false")
    {
        place.error(oauth.at, "oauth: is not supported");
    }
    let (mut prefix, mut include, mut exclude) = (None, None, Vec::new());
    if let Some(expose) = fields.map("expose") {
        prefix = expose.text("tool_prefix").map(|prefix| prefix.text);
        let texts = |key| {
            let texts = expose.texts(key)?;
            Some(texts.into_iter().map(|text| text.text).collect::<Vec<_>>())
        };
        include = texts("include");
        exclude = texts("exclude").unwrap_or_default();
        expose.finish();
    }
    fields.finish();
    let transport = transport.filter(|_| !place.failed())?;
    Some(ToolServer {
        name: entry.key.clone(),
        enabled,
        transport,
        environment,
        headers,
        timeout: timeout.map(|millis| Duration::from_millis(millis.into())),
        prefix,
        include,
        exclude,
    })
}

/// A map of texts that may be secrets.
pub(super) fn secrets(fields: &Fields<'_>, key: &'static str) -> BTreeMap<String, Secret> {
    let Some(given) = fields.map(key) else { return BTreeMap::new() };
    let secret = |entry: &Entry| {
        let value = given.as_secret(&entry.key, &entry.value)?;
        Some((entry.key.clone(), Secret::new(value)))
    };
    given.entries().iter().filter_map(secret).collect()
}
