//! The Anthropic messages API.

mod answer;
mod body;

use async_trait::async_trait;
use remuda_domain::{
    error::{Code, Error, Result},
    model::ModelDefinition,
};
use reqwest::{Url, header::HeaderValue};

use answer::Gathering;
use body::Dialect;

use crate::{
    AttemptError, OnDelta, Provider, Request, Response,
    http::{self, Answer, Target},
};

const BASE: &str = "https://api.anthropic.com";
const VERSION: HeaderValue = HeaderValue::from_static("2023-06-01");

/// Asks one model.
#[derive(Debug)]
pub(crate) struct Anthropic {
    target: Target,
    dialect: Dialect,
    /// As registries name it.
    reference: String,
}

impl Anthropic {
    /// Where a model is asked.
    pub(crate) fn address(model: &ModelDefinition) -> Result<Url> {
        if model.url.is_none() && model.key.is_none() && model.headers.is_empty() {
            return Err(Error::new(Code::ModelKeyRefused, "expected a key").at("key"));
        }
        let base = http::base(model.url.as_deref().unwrap_or(BASE))?;
        Ok(http::under(base, |path| match path {
            path if path.ends_with("/messages") => path.to_owned(),
            path if path.ends_with("/v1") => format!("{path}/messages"),
            path => format!("{path}/v1/messages"),
        }))
    }

    pub(crate) fn new(model: &ModelDefinition, mut target: Target) -> Result<Self> {
        target.headers.insert("anthropic-version", VERSION);
        if let Some(key) = &model.key {
            target.headers.insert("x-api-key", http::secret_header("key", key.expose().trim())?);
        }
        http::add_headers(&mut target.headers, model)?;
        Ok(Self { target, dialect: Dialect::of(model)?, reference: model.reference.to_string() })
    }
}

#[async_trait]
impl Provider for Anthropic {
    async fn generate(&self, request: &Request, on_delta: OnDelta<'_>) -> Result<Response, AttemptError> {
        let mut gathering = Gathering::new(&self.target.faults, on_delta);
        match self.target.post(&self.dialect.body(request), request.trace).await? {
            Answer::Whole(value) => gathering.take_whole(&value)?,
            Answer::Events(mut events) => {
                while !gathering.has_ended()
                    && let Some(event) = events.next().await?
                {
                    match event.data.trim() {
                        "" => {}
                        // Not in this format, but in the habit of some who translate into it.
                        "[DONE]" => break,
                        _ => gathering.take(&event.name, &events.json(&event)?)?,
                    }
                }
                events.close().await;
            }
        }
        gathering.finish(&self.reference)
    }
}

#[cfg(test)]
mod tests {
    use remuda_domain::model::{ProviderKind, Secret};

    use super::*;

    #[test]
    fn addresses_are_completed() {
        let mut model = ModelDefinition {
            reference: "platform/m".parse().unwrap(),
            provider: ProviderKind::Anthropic,
            name: "m".to_owned(),
            url: None,
            key: Some(Secret::new("key")),
            headers: Default::default(),
            parameters: Default::default(),
            metadata: Default::default(),
            context_window: None,
            max_output_tokens: None,
            price: None,
        };
        let table = [
            (None, "https://api.anthropic.com/v1/messages"),
            (Some("https://host"), "https://host/v1/messages"),
            (Some("https://host/v1/"), "https://host/v1/messages"),
            (Some("https://host/anthropic"), "https://host/anthropic/v1/messages"),
            (Some("https://host/anthropic/v1/messages"), "https://host/anthropic/v1/messages"),
        ];
        for (url, expected) in table {
            model.url = url.map(str::to_owned);
            assert_eq!(Anthropic::address(&model).unwrap().as_str(), expected);
        }
        (model.url, model.key) = (None, None);
        assert_eq!(Anthropic::address(&model).unwrap_err().code(), Code::ModelKeyRefused);
    }
}
