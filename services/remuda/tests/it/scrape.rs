//! Scrapes and parses the Prometheus metrics of a process.

use std::collections::{BTreeMap, BTreeSet};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// The parsed result of one scrape.
#[derive(Clone, Debug)]
pub(crate) struct Scrape {
    pub(crate) text: String,
    series: Vec<Series>,
}

#[derive(Clone, Debug)]
struct Series {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Scrape {
    /// Scrapes a URL as Prometheus does.
    pub(crate) async fn fetch(url: &str) -> Self {
        let (address, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("GET /{path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let (_, text) = answer.split_once("\r\n\r\n").unwrap();
        Self { text: text.to_owned(), series: text.lines().filter_map(series).collect() }
    }

    /// The names of all metrics with a value, without the suffixes of histograms.
    pub(crate) fn names(&self) -> BTreeSet<&str> {
        let kinds = self.text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        kinds.filter(|(name, _)| self.series.iter().any(|it| it.is_of(name))).map(|(name, _)| name).collect()
    }

    /// The sum of all series with this name and these labels.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.series.iter().filter(|it| it.name == name && it.has(labels)).map(|it| it.value).sum()
    }

    /// All values of a label over all metrics.
    pub(crate) fn values(&self, label: &str) -> BTreeSet<&str> {
        self.series.iter().filter_map(|it| it.labels.get(label)).map(String::as_str).collect()
    }

    /// The label names of a metric, without the bucket label of histograms.
    pub(crate) fn labels(&self, name: &str) -> BTreeSet<&str> {
        let labels = self.series.iter().filter(|it| it.is_of(name)).flat_map(|it| it.labels.keys());
        labels.map(String::as_str).filter(|label| *label != "le").collect()
    }

    /// The number of series.
    pub(crate) fn len(&self) -> usize {
        self.series.len()
    }
}

impl Series {
    fn is_of(&self, name: &str) -> bool {
        let rest = self.name.strip_prefix(name);
        rest.is_some_and(|rest| matches!(rest, "" | "_bucket" | "_sum" | "_count"))
    }

    fn has(&self, labels: &[(&str, &str)]) -> bool {
        labels.iter().all(|(name, value)| self.labels.get(*name).is_some_and(|it| it == value))
    }
}

fn series(line: &str) -> Option<Series> {
    let line = Some(line).filter(|line| !line.is_empty() && !line.starts_with('#'))?;
    let (left, value) = line.rsplit_once(' ').unwrap();
    let (name, labels) = left.split_once('{').unwrap_or((left, ""));
    let pairs = labels.trim_end_matches('}').split("\",").filter(|pair| !pair.is_empty());
    let label = |pair: &str| {
        let (name, value) = pair.split_once("=\"").unwrap();
        (name.to_owned(), value.trim_end_matches('"').to_owned())
    };
    Some(Series { name: name.to_owned(), labels: pairs.map(label).collect(), value: value.parse().unwrap() })
}
