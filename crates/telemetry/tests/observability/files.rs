//! Loads the files of deploy/observability.

use std::{collections::BTreeMap, fs, path::PathBuf};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

#[derive(Debug, Deserialize)]
pub(crate) struct Rules {
    pub(crate) groups: Vec<Group>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Group {
    pub(crate) rules: Vec<Rule>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Rule {
    pub(crate) record: Option<String>,
    pub(crate) alert: Option<String>,
    pub(crate) expr: String,
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) annotations: BTreeMap<String, String>,
}

pub(crate) fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(crate) fn directory() -> PathBuf {
    repository().join("deploy/observability")
}

pub(crate) fn text(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

pub(crate) fn yaml<T: DeserializeOwned>(path: &str) -> T {
    serde_saphyr::from_str(&text(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

pub(crate) fn rules() -> Vec<Rule> {
    let rules: Rules = yaml("deploy/observability/rules.yml");
    rules.groups.into_iter().flat_map(|group| group.rules).collect()
}

/// The dashboards by file name.
pub(crate) fn dashboards() -> BTreeMap<String, Value> {
    let entries = fs::read_dir(directory().join("grafana/dashboards")).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let read = |name: String| {
        let json = text(&format!("deploy/observability/grafana/dashboards/{name}"));
        let value = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, value)
    };
    names.map(read).collect()
}

/// The panels of a dashboard, without rows.
pub(crate) fn panels(dashboard: &Value) -> Vec<&Value> {
    list(&dashboard["panels"]).iter().filter(|panel| panel["type"] != "row").collect()
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}"))
}

pub(crate) fn string<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("no {name} in {value}"))
}

/// All queries of a dashboard with their legends: of panels and annotations.
pub(crate) fn queries(dashboard: &Value) -> Vec<(&str, &str)> {
    let mut all = Vec::new();
    for panel in panels(dashboard) {
        for target in panel["targets"].as_array().into_iter().flatten() {
            all.push((string(target, "expr"), string(target, "legendFormat")));
        }
    }
    for annotation in list(&dashboard["annotations"]["list"]) {
        all.push((string(annotation, "expr"), ""));
    }
    all
}

/// A query with Grafana's variables replaced by values.
pub(crate) fn filled_in(query: &str) -> String {
    let filled = ["$__rate_interval", "$__interval"]
        .iter()
        .fold(query.to_owned(), |text, name| text.replace(name, "5m"));
    let filled = filled.replace("$pool", ".*").replace("$tenant", ".*");
    assert!(!filled.contains('$'), "an unknown variable in {query}");
    filled
}
