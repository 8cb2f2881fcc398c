//! Checks dashboards and rules of `deploy/observability` against the metric registry: all queried metrics exist, and all
//! metrics are on a panel. Prometheus' `promtool` checks rules and queries and tests all alerts.

mod files;
mod promql;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use remuda_telemetry::metrics::registry::{ALL, Kind, Metric};
use serde_json::Value;

use crate::{
    files::{dashboards, directory, filled_in, panels, queries, rules, string, text, yaml},
    promql::{QueryUsage, read},
};

/// Labels that Prometheus adds to every scraped series.
const TARGET: [&str; 2] = ["job", "instance"];
const SEVERITIES: [&str; 3] = ["critical", "warning", "info"];

/// All series that can be queried, with their labels and their metric.
fn series() -> BTreeMap<String, (BTreeSet<String>, Option<&'static Metric>)> {
    let mut series = BTreeMap::new();
    let owned = |labels: &[&str]| labels.iter().chain(&TARGET).map(|&label| label.to_owned()).collect();
    for metric in ALL {
        let (name, labels): (_, BTreeSet<String>) = (metric.prometheus_name(), owned(metric.labels));
        if metric.kind == Kind::Histogram {
            let mut with_bounds = labels.clone();
            with_bounds.insert("le".to_owned());
            series.insert(format!("{name}_bucket"), (with_bounds, Some(metric)));
            series.insert(format!("{name}_sum"), (labels.clone(), Some(metric)));
            series.insert(format!("{name}_count"), (labels, Some(metric)));
        } else {
            series.insert(name, (labels, Some(metric)));
        }
    }
    series.insert("up".to_owned(), (owned(&[]), None));
    // A recorded series has the labels that its rule groups by.
    for rule in rules() {
        if let Some(record) = rule.record {
            series.insert(record, (read(&rule.expr).grouping, None));
        }
    }
    series
}

/// Checks a query, and returns the metrics it uses.
fn check(location: &str, query: &str) -> (QueryUsage, Vec<&'static str>) {
    let (series, used) = (series(), read(&filled_in(query)));
    assert!(!used.selectors.is_empty(), "{location}: {query} asks for nothing");
    let (mut known, mut metrics) = (BTreeSet::new(), Vec::new());
    for selector in &used.selectors {
        let name = &selector.metric;
        let (labels, metric) =
            series.get(name).unwrap_or_else(|| panic!("{location}: no metric {name}: {query}"));
        for label in &selector.labels {
            assert!(labels.contains(label), "{location}: {name} has no label {label}: {query}");
        }
        known.extend(labels.clone());
        metrics.extend(metric.map(|metric| metric.name));
    }
    for label in &used.grouping {
        assert!(known.contains(label), "{location}: nothing has the label {label}: {query}");
    }
    (used, metrics)
}

#[test]
fn panels_query_existing_metrics() {
    for (file, dashboard) in dashboards() {
        for (query, legend) in queries(&dashboard) {
            let (used, _) = check(&file, query);
            for label in legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next()) {
                assert!(used.grouping.contains(label), "{file}: {label} of the legend {legend}: {query}");
            }
        }
        for variable in dashboard["templating"]["list"].as_array().unwrap() {
            let Some(definition) = variable["definition"].as_str() else { continue };
            let asked =
                definition.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')')).unwrap();
            let (metric, label) = asked.split_once(", ").unwrap();
            check(&file, &format!("{metric}{{{label}=\"\"}}"));
        }
    }
}

#[test]
fn every_metric_is_on_a_panel() {
    let mut shown = BTreeSet::new();
    for (file, dashboard) in dashboards() {
        for panel in panels(&dashboard) {
            for target in panel["targets"].as_array().into_iter().flatten() {
                shown.extend(check(&file, string(target, "expr")).1);
            }
        }
    }
    let missing: Vec<&str> =
        ALL.iter().map(|metric| metric.name).filter(|name| !shown.contains(name)).collect();
    assert!(missing.is_empty(), "on no panel: {missing:?}");
}

#[test]
fn panels_have_descriptions_and_do_not_overlap() {
    let dashboards = dashboards();
    assert_eq!(dashboards.len(), 6);
    for (file, dashboard) in &dashboards {
        assert!(dashboard["schemaVersion"].as_u64() >= Some(39), "{file}");
        assert_eq!(format!("{}.json", string(dashboard, "uid")), *file);
        let all = dashboard["panels"].as_array().unwrap();
        let ids: BTreeSet<u64> = all.iter().filter_map(|panel| panel["id"].as_u64()).collect();
        assert_eq!(ids.len(), all.len(), "{file}: ids of panels");
        let mut cells = BTreeSet::new();
        for panel in all {
            let place = |name: &str| panel["gridPos"][name].as_u64().unwrap();
            assert!(place("x") + place("w") <= 24, "{file}: {panel}");
            for x in place("x")..place("x") + place("w") {
                for y in place("y")..place("y") + place("h") {
                    assert!(cells.insert((x, y)), "{file}: {} lies over another", string(panel, "title"));
                }
            }
        }
        for panel in panels(dashboard) {
            assert!(
                !string(panel, "title").is_empty() && !string(panel, "description").is_empty(),
                "{file}: {panel}"
            );
            if panel["type"] != "alertlist" {
                assert_eq!(string(&panel["datasource"], "uid"), "${datasource}", "{file}");
                assert!(!string(&panel["fieldConfig"]["defaults"], "unit").is_empty(), "{file}: {panel}");
                assert!(!panel["targets"].as_array().unwrap().is_empty(), "{file}: {panel}");
            }
        }
    }
}

#[test]
fn rules_query_existing_metrics() {
    for rule in rules() {
        check(rule.alert.as_deref().or(rule.record.as_deref()).unwrap(), &rule.expr);
    }
}

/// The anchors of a document's headings.
fn anchors(document: &str) -> BTreeSet<String> {
    let headings = document.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let words = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        words.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, '-' | '_')).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn alerts_have_severity_runbook_and_tests() {
    let anchors = anchors(&text("docs/observability.md"));
    let tests: Value = yaml("deploy/observability/rules_test.yml");
    let cases: Vec<&Value> = tests["tests"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|test| test["promql_expr_test"].as_array().unwrap())
        .collect();
    let mut alerts = 0;
    for rule in rules() {
        let Some(alert) = &rule.alert else { continue };
        alerts += 1;
        let severity = rule.labels.get("severity").map(String::as_str);
        assert!(severity.is_some_and(|it| SEVERITIES.contains(&it)), "{alert} has severity {severity:?}");
        for annotation in ["summary", "description"] {
            assert!(
                rule.annotations.get(annotation).is_some_and(|text| text.len() > 10),
                "{alert}: {annotation}"
            );
        }
        let runbook = rule.annotations.get("runbook_url").unwrap_or_else(|| panic!("{alert} has no runbook"));
        let anchor =
            runbook.strip_prefix("docs/observability.md#").unwrap_or_else(|| panic!("{alert}: {runbook}"));
        assert!(anchors.contains(anchor), "{alert}: docs/observability.md has no heading for {anchor}");
        // Tested both firing and quiet.
        let asked = format!("alertname=\"{alert}\"");
        let of_it: Vec<&&Value> = cases.iter().filter(|case| string(case, "expr").contains(&asked)).collect();
        assert!(
            of_it.iter().any(|case| case["exp_samples"].is_array()),
            "{alert} never fires in rules_test.yml"
        );
        assert!(
            of_it.iter().any(|case| case["exp_samples"].is_null()),
            "{alert} is never quiet in rules_test.yml"
        );
    }
    assert!(alerts >= 15, "only {alerts} alerts");
}

#[test]
fn collector_pipelines_refer_to_defined_components() {
    let collector: Value = yaml("deploy/observability/collector.yaml");
    for (name, pipeline) in collector["service"]["pipelines"].as_object().unwrap() {
        for kind in ["receivers", "processors", "exporters"] {
            for part in pipeline[kind].as_array().unwrap() {
                let part = part.as_str().unwrap();
                assert!(collector[kind].get(part).is_some(), "{name}: there are no {kind} {part}");
            }
        }
        assert_eq!(pipeline["processors"][0], "memory_limiter", "{name}: memory comes first");
    }
}

fn promtool(arguments: &[&str], at: &Path) {
    let program = remuda_testkit::find_program("promtool").unwrap_or_else(|| {
        panic!("promtool not found; install the package prometheus, or run `cargo xtask test`")
    });
    let output = Command::new(program).args(arguments).current_dir(at).output();
    let output = output.unwrap_or_else(|error| panic!("promtool: {error}"));
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "promtool {}:\n{said}", arguments.join(" "));
    assert!(said.contains("SUCCESS") && !said.contains("FAILED"), "{said}");
}

#[test]
fn promtool_accepts_config_and_rules() {
    promtool(&["check", "config", "prometheus.yml"], &directory());
    promtool(&["check", "rules", "rules.yml"], &directory());
}

#[test]
fn alert_tests_pass() {
    promtool(&["test", "rules", "rules_test.yml"], &directory());
}

/// Each query is checked as a recording rule.
#[test]
fn promtool_accepts_every_dashboard_query() {
    let scratch = tempfile::tempdir().unwrap();
    let mut rules = Vec::new();
    for (_, dashboard) in dashboards() {
        for (query, _) in queries(&dashboard) {
            let record = format!("panel:{}", rules.len());
            rules.push(serde_json::json!({ "record": record, "expr": filled_in(query) }));
        }
    }
    assert!(rules.len() > 80, "{} queries", rules.len());
    let file = serde_json::json!({ "groups": [{ "name": "panels", "rules": rules }] });
    fs::write(scratch.path().join("panels.yml"), file.to_string()).unwrap();
    promtool(&["check", "rules", "panels.yml"], scratch.path());
}
