//! `WebFetch`: returns the text of a web page.

use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use remuda_domain::{
    error::{Error, Result},
    tool::{CallSubject, Effects, ForeignFormat, ResultBody, ResultDisplay, SimilarCalls, ToolDescriptor},
};
use remuda_egress::check_url;
use reqwest::Url;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::{
    arguments::{parse, schema_of},
    context::ToolContext,
    tool::{CallResult, Tool},
    web::{Content, Document, FetchResult, Fetcher, MediaType, URL_FIELD, WebOptions},
};

const MAX_CHARS: usize = 100_000;
/// Pages that are converted at the same time. Each needs a blocking thread, and memory for its text.
const MAX_CONVERSIONS: usize = 2;

#[derive(Clone, Debug)]
pub struct WebFetch {
    fetcher: Arc<Fetcher>,
    conversions: Arc<Semaphore>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The page, an absolute URL. http becomes https.
    #[schemars(length(min = 1))]
    url: String,
    /// What you want to know of the page. No model answers it yet: the answer is the text itself.
    #[serde(rename = "prompt")]
    _prompt: Option<String>,
}

impl Arguments {
    fn parse(arguments: &Value) -> Result<Url> {
        let arguments: Self = parse(arguments)?;
        check_url(URL_FIELD, &arguments.url)
    }
}

impl WebFetch {
    #[must_use]
    pub fn new(options: &WebOptions) -> Self {
        Self {
            fetcher: Arc::new(Fetcher::new(options.clone())),
            conversions: Arc::new(Semaphore::new(MAX_CONVERSIONS)),
        }
    }
}

#[async_trait]
impl Tool for WebFetch {
    fn descriptor(&self) -> &ToolDescriptor {
        static DESCRIPTOR: LazyLock<ToolDescriptor> = LazyLock::new(|| ToolDescriptor {
            permission: "webfetch".into(),
            subject: |arguments| CallSubject::Text {
                text: arguments["url"].as_str(),
                similar: SimilarCalls::SameSite,
            },
            foreign_names: &[
                (ForeignFormat::OpenHarness, "web_fetch"),
                (ForeignFormat::CodingCode, "fetch_url"),
            ],
            headline: |arguments| arguments.text("url"),
            result: |output| {
                let status = output.0["status"].as_u64().map(|status| status.to_string());
                let summary = [status, output.text("title"), output.text("redirect_to")];
                ResultDisplay::new(summary, ResultBody::OutputIfFull)
            },
            ..ToolDescriptor::new("WebFetch", Effects::ReadOnly)
        });
        &DESCRIPTOR
    }

    fn description(&self) -> &str {
        "Fetches a web page and returns its text, HTML as Markdown-like text, at most 100000 characters. Only public \
         addresses can be reached. A redirect to another host is not followed but returned as redirect_to: fetch that URL \
         if you trust it. Of content that is no text only media type and size are returned."
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
        let url = Arguments::parse(arguments)?;
        let mut context = context.clone();
        context.timeout = context.timeout.min(self.fetcher.timeout());
        Ok(context.within_limits(self.fetch(url)).await?)
    }
}

impl WebFetch {
    async fn fetch(&self, url: Url) -> Result<Value> {
        let FetchResult { url, status, content } = self.fetcher.fetch(url).await?;
        let mut answer = json!({ "url": url.as_str(), "status": status.as_u16() });
        match content {
            Content::RedirectToOtherHost(target) => answer["redirect_to"] = target.into(),
            Content::Binary { media_type, bytes } => {
                answer["content_type"] = media_type.name.into();
                answer["bytes"] = bytes.into();
            }
            Content::Body { media_type, bytes, truncated } => {
                answer["content_type"] = media_type.name.as_str().into();
                answer["bytes"] = bytes.len().into();
                let document = self.convert(media_type, bytes, url).await?;
                if let Some(document) = document {
                    answer["title"] = document.title.into();
                    answer["truncated"] = (truncated || document.truncated).into();
                    answer["text"] = document.text.into();
                }
            }
        }
        Ok(answer)
    }
    /// Parsing megabytes of hostile markup would block the async runtime. A conversion whose call has ended goes on until
    /// its own time limit, so it keeps its permit.
    async fn convert(&self, media_type: MediaType, bytes: Vec<u8>, url: Url) -> Result<Option<Document>> {
        let failed = |error| Error::internal("the page parser failed").with_source(error);
        let permit = Arc::clone(&self.conversions).acquire_owned().await;
        let permit =
            permit.map_err(|error| Error::internal("the page parser is closed").with_source(error))?;
        let convert = move || {
            let document = Document::read(&media_type, &bytes, &url, MAX_CHARS);
            drop(permit);
            document
        };
        tokio::task::spawn_blocking(convert).await.map_err(failed)
    }
}
