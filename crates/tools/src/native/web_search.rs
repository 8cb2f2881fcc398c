//! `WebSearch`: finds web pages with the provider that the operator has configured.

use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use remuda_domain::{
    error::{Code, Error, Result},
    tool::{CallSubject, Effects, ForeignFormat, ResultDisplay, SimilarCalls, ToolDescriptor},
};
use remuda_egress::{is_host_name, normalize_host};
use reqwest::Url;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    arguments::{field, parse, schema_of},
    context::ToolContext,
    tool::{CallResult, Tool},
    web::{SearchHit, SearchProvider, SearchQuery, truncate_chars},
};

const MAX_QUERY_CHARS: usize = 400;
const MAX_DOMAINS: usize = 50;
const MAX_RESULTS: usize = 10;
const MAX_TITLE_CHARS: usize = 300;
const MAX_SNIPPET_CHARS: usize = 1000;
const MAX_URL_CHARS: usize = 2000;

#[derive(Clone, Debug)]
pub struct WebSearch(Option<Arc<dyn SearchProvider>>);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// What to search for.
    #[schemars(length(min = 1, max = MAX_QUERY_CHARS))]
    query: String,
    /// Only results of these domains and those beneath them.
    #[serde(default)]
    #[schemars(length(max = MAX_DOMAINS))]
    allowed_domains: Vec<String>,
    /// No results of these domains and those beneath them.
    #[serde(default)]
    #[schemars(length(max = MAX_DOMAINS))]
    blocked_domains: Vec<String>,
}

impl Arguments {
    fn parse(arguments: &Value) -> Result<Self> {
        let mut arguments: Self = parse(arguments)?;
        let length = arguments.query.chars().count();
        if arguments.query.trim().is_empty() || length > MAX_QUERY_CHARS {
            return Err(Error::invalid(
                field("query"),
                format!("expected 1 to {MAX_QUERY_CHARS} characters"),
            ));
        }
        let lists = [
            ("allowed_domains", &mut arguments.allowed_domains),
            ("blocked_domains", &mut arguments.blocked_domains),
        ];
        for (name, domains) in lists {
            if domains.len() > MAX_DOMAINS
                || !domains.iter().all(|domain| is_host_name(&normalize_host(domain)))
            {
                let message = format!("expected at most {MAX_DOMAINS} domain names such as example.org");
                return Err(Error::invalid(field(name), message));
            }
            domains.iter_mut().for_each(|domain| *domain = normalize_host(domain));
        }
        Ok(arguments)
    }

    /// The query for the provider. A single allowed domain is passed on; several are only filtered
    /// afterwards.
    fn text(&self) -> String {
        match self.allowed_domains.as_slice() {
            [only] => format!("{} site:{only}", self.query),
            _ => self.query.clone(),
        }
    }

    fn accepts(&self, hit: &SearchHit) -> bool {
        let Ok(url) = Url::parse(&hit.url) else { return false };
        let Some(host) = url.host_str().map(normalize_host) else { return false };
        let beneath = |domain: &String| {
            host.strip_suffix(domain.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        matches!(url.scheme(), "http" | "https")
            && (self.allowed_domains.is_empty() || self.allowed_domains.iter().any(beneath))
            && !self.blocked_domains.iter().any(beneath)
    }
}

impl WebSearch {
    #[must_use]
    pub fn new(provider: Option<Arc<dyn SearchProvider>>) -> Self {
        Self(provider)
    }
}

#[async_trait]
impl Tool for WebSearch {
    fn descriptor(&self) -> &ToolDescriptor {
        static DESCRIPTOR: LazyLock<ToolDescriptor> = LazyLock::new(|| ToolDescriptor {
            permission: "websearch".into(),
            subject: |arguments| CallSubject::Text {
                text: arguments["query"].as_str(),
                similar: SimilarCalls::All,
            },
            foreign_names: &[
                (ForeignFormat::OpenHarness, "web_search"),
                (ForeignFormat::CodingCode, "web_search"),
            ],
            headline: |arguments| arguments.text("query"),
            result: |output| {
                let field = |hit: &Value, name: &str| hit[name].as_str().unwrap_or_default().to_owned();
                let hits = |hit: &Value| format!("{}  {}", field(hit, "title"), field(hit, "url"));
                ResultDisplay::new([output.length("results", "result")], output.lines("results", hits))
            },
            ..ToolDescriptor::new("WebSearch", Effects::ReadOnly)
        });
        &DESCRIPTOR
    }

    fn description(&self) -> &str {
        "Searches the web and returns titles, URLs and excerpts of at most 10 pages, best first. Read a page with WebFetch."
    }

    fn schema(&self) -> Value {
        static SCHEMA: LazyLock<Value> = LazyLock::new(schema_of::<Arguments>);
        SCHEMA.clone()
    }

    fn validate(&self, arguments: &Value) -> Result<()> {
        Arguments::parse(arguments).map(drop)
    }

    fn needs_sandbox(&self) -> bool {
        false
    }

    async fn call(&self, arguments: &Value, context: &ToolContext) -> CallResult {
        let arguments = Arguments::parse(arguments)?;
        let Some(provider) = &self.0 else {
            let message =
                "no search provider is set up: the operator can name a SearXNG instance in tools.search.url";
            return Err(Error::new(Code::NotConfigured, message).into());
        };
        let query = SearchQuery { text: arguments.text(), limit: MAX_RESULTS };
        let hits = context.within_limits(provider.search(&query)).await?;
        let wanted: Vec<Value> =
            hits.iter().filter(|hit| arguments.accepts(hit)).take(MAX_RESULTS).map(to_json).collect();
        Ok(json!({ "query": arguments.query, "results": wanted }))
    }
}

fn to_json(hit: &SearchHit) -> Value {
    let short = |text: &str, limit| truncate_chars(text.trim(), limit).0.replace('\0', "\u{fffd}");
    json!({
        "title": short(&hit.title, MAX_TITLE_CHARS),
        "url": short(&hit.url, MAX_URL_CHARS),
        "snippet": short(&hit.snippet, MAX_SNIPPET_CHARS),
    })
}
