//! Parses actions: commands of a workspace, each defined by an `ACTION.yaml`.

use std::{collections::BTreeMap, path::Path, time::Duration};

use super::tools::secrets;
use crate::{
    definition_dir::Source,
    definition_files::is_descendant_path,
    definitions::{Action, RetryPolicy},
    environment::VariableSyntax,
    parse::{Fields, Position, Value, is_name},
    report::Reporter,
};

pub(crate) type Actions = BTreeMap<String, Action>;

pub(crate) fn read(source: Source<'_>, directory: &Path, actions: &mut Actions) {
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    for folder in source.list(directory, "") {
        let path = folder.join("ACTION.yaml");
        let shown = source.files.display_path(&path);
        let stem = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let reporter = Reporter::for_definition(source.report, &shown, stem);
        match source.files.has_file(&path) {
            Ok(true) => {}
            Ok(false) => continue,
            Err(fault) => {
                reporter.fault(fault);
                continue;
            }
        }
        let Some(action) = action(source, &folder, &path, &reporter) else { continue };
        if let Some(twin) = names.get(&action.name.to_lowercase()) {
            reporter
                .error(Position::FILE, format!("the action `{}` is defined already, in {twin}", action.name));
            continue;
        }
        names.insert(action.name.to_lowercase(), shown.clone());
        actions.insert(action.name.clone(), action);
    }
}

fn action(source: Source<'_>, folder: &Path, path: &Path, reporter: &Reporter<'_>) -> Option<Action> {
    let Some(mut node) = source.yaml(path, reporter) else {
        if !reporter.failed() {
            reporter.error(Position::FILE, "is empty: expected `name` and `entry`");
        }
        return None;
    };
    source.interpolate(&mut node, VariableSyntax::Native, reporter);
    let fields = Fields::from_node(&node, "action", reporter)?;
    let name = fields.required_text("name");
    if let Some(name) = name.as_ref().filter(|name| !is_name(&name.text)) {
        let expected = "letters, digits, `.`, `_` and `-`, at most 64 characters";
        reporter.error(name.at, format!("name: expected {expected}, found {}", name.display()));
    }
    let description = fields.text("description").map(|text| text.text).unwrap_or_default();
    let mut action = Action {
        name: name.map(|name| name.text).unwrap_or_default(),
        description,
        directory: folder.to_owned(),
        command: String::new(),
        environment: BTreeMap::new(),
        cwd: None,
        timeout: None,
        to_llm: true,
        callable_by_user: true,
        callable_by_api: true,
        retry: RetryPolicy::Manual,
        input_schema: None,
    };
    match fields.map("entry") {
        Some(entry) => {
            action.command = entry.required_text("command").map(|text| text.text).unwrap_or_default();
            action.environment = secrets(&entry, "environment");
            action.timeout = entry
                .integer("timeout_seconds", 1, 24 * 60 * 60)
                .map(|seconds| Duration::from_secs(seconds.into()));
            if let Some(cwd) = entry.text("cwd") {
                if !is_descendant_path(&cwd.text) {
                    reporter.error(cwd.at, format!("entry.cwd: {} leads out of the action", cwd.display()));
                }
                action.cwd = Some(cwd.text);
            }
            entry.finish();
        }
        None if !reporter.failed() => {
            reporter.error(fields.at, "entry: is missing, expected a map with `command`")
        }
        None => {}
    }
    if let Some(expose) = fields.map("expose") {
        action.to_llm = expose.boolean("to_llm").unwrap_or(true);
        action.callable_by_user = expose.boolean("callable_by_user").unwrap_or(true);
        action.callable_by_api = expose.boolean("callable_by_api").unwrap_or(true);
        expose.finish();
    }
    if let Some(recovery) = fields.map("recovery") {
        let policies = [("manual", RetryPolicy::Manual), ("safe", RetryPolicy::Safe)];
        action.retry = recovery.choice("retry_policy", &policies).unwrap_or_default();
        recovery.finish();
    }
    if let Some(schema) = fields.get("input_schema") {
        match schema.value {
            Value::Map(_) => action.input_schema = Some(schema.to_json()),
            _ => fields.expected("input_schema", schema, "a map"),
        }
    }
    fields.finish();
    (!reporter.failed()).then_some(action)
}
