//! Checks that `docs/metrics.md` lists all metrics. With `REMUDA_WRITE_DOCS=1` the test rewrites the table.

use std::{fmt::Write as _, fs};

use super::registry::{ALL, Kind, Metric};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
const HEAD: &str = "| metric | kind | unit | labels | meaning |\n| --- | --- | --- | --- | --- |\n";

fn row(metric: &Metric) -> String {
    let kind = match metric.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    let unit = match metric.unit {
        "s" => "seconds",
        "By" => "bytes",
        counted => counted.trim_matches(['{', '}']),
    };
    let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
    let (name, labels, meaning) = (metric.prometheus_name(), labels.join(" "), metric.description);
    format!("| `{name}` | {kind} | {unit} | {labels} | {meaning} |\n")
}

#[test]
fn documentation_lists_every_metric() {
    let mut table = HEAD.to_owned();
    ALL.iter().for_each(|metric| table.write_str(&row(metric)).unwrap());
    let page = fs::read_to_string(PAGE).unwrap();
    let begin = page.find(HEAD).unwrap();
    let length = page[begin..].find("\n\n").unwrap() + 1;
    if std::env::var_os("REMUDA_WRITE_DOCS").is_some() {
        let page = format!("{}{table}{}", &page[..begin], &page[begin + length..]);
        return fs::write(PAGE, page).unwrap();
    }
    assert_eq!(&page[begin..begin + length], table, "REMUDA_WRITE_DOCS=1 cargo test -p remuda-telemetry");
}
