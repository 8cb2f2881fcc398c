//! Parses tool servers: `tools/settings.yaml`.

use std::{collections::BTreeMap, path::Path, time::Duration};

use remuda_domain::model::Secret;

use crate::{
    definition_dir::Source,
    definitions::{ToolServer, ToolTransport},
    environment::VariableSyntax,
    parse::{Entry, Fields, Value, authority, is_name},
    report::Reporter,
};

pub(crate) type ToolServers = BTreeMap<String, ToolServer>;

/// Adds the servers of a file. They replace servers of the same name.
pub(crate) fn read(source: Source<'_>, path: &Path, servers: &mut ToolServers) {
    let shown = source.files.display_path(path);
    let reporter = Reporter::for_file(source.report, &shown);
    let Some(mut node) = source.yaml(path, &reporter) else { return };
    let Value::Map(entries) = &mut node.value else {
        reporter
            .error(node.at, format!("expected a map of tool servers by name, found {}", node.kind_name()));
        return;
    };
    for entry in entries {
        let reporter = Reporter::for_definition(source.report, &shown, entry.key.clone());
        // An invalid server must not silently fall back to another one of the same name.
        servers.remove(&entry.key);
        if let Some(server) = server(source, entry, &reporter) {
            servers.insert(server.name.clone(), server);
        }
    }
}

fn server(source: Source<'_>, entry: &mut Entry, reporter: &Reporter<'_>) -> Option<ToolServer> {
    if !is_name(&entry.key) {
        reporter.error(entry.at, "the server's name: expected letters, digits, `.`, `_` and `-`, at most 64");
        return None;
    }
    source.interpolate(&mut entry.value, VariableSyntax::Native, reporter);
    let fields = Fields::from_node(&entry.value, &entry.key, reporter)?;
    let (command, url) = (fields.text("command"), fields.text("url"));
    let transport = match (command, url) {
        (Some(command), None) if !command.text.trim().is_empty() => {
            Some(ToolTransport::Command { command: command.text })
        }
        (None, Some(url)) => match authority(&url.text) {
            None | Some("") => {
                reporter
                    .error(url.at, format!("url: expected https://… or http://…, found {}", url.display()));
                None
            }
            Some(authority) if authority.contains('@') => {
                reporter.error(url.at, "url: expected no user or password in the address: use `headers`");
                None
            }
            Some(_) => Some(ToolTransport::Url { url: url.text }),
        },
        _ if reporter.failed() => None,
        _ => {
            reporter.error(entry.at, "expected either `command` or `url`");
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
        reporter.error(oauth.at, "oauth: is not supported");
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
    let transport = transport.filter(|_| !reporter.failed())?;
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

/// Parses a map of strings that may be secrets.
pub(super) fn secrets(fields: &Fields<'_>, key: &'static str) -> BTreeMap<String, Secret> {
    let Some(given) = fields.map(key) else { return BTreeMap::new() };
    let secret = |entry: &Entry| {
        let value = given.as_secret(&entry.key, &entry.value)?;
        Some((entry.key.clone(), Secret::new(value)))
    };
    given.entries().iter().filter_map(secret).collect()
}
