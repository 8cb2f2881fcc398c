//! The provider for Anthropic's Messages API.

mod request_body;
mod response;

use async_trait::async_trait;
use remuda_domain::{
    error::{Code, Error, Result},
    model::ModelDefinition,
};
use reqwest::{Url, header::HeaderValue};

use serde_json::Value;

use request_body::RequestEncoder;
use response::ResponseBuilder;

use crate::{
    AttemptError, OnDelta, Provider, Request, Response,
    http::{self, HttpResponse, Target},
    provider_error::ErrorMapper,
};

const DEFAULT_BASE_URL: &str = "https://api.anthropic.com";
const VERSION: HeaderValue = HeaderValue::from_static("2023-06-01");

/// Calls one model.
#[derive(Debug)]
pub(crate) struct Anthropic {
    target: Target,
    encoder: RequestEncoder,
    /// The model's name in registries.
    reference: String,
}

impl Anthropic {
    /// The URL of a model's endpoint.
    pub(crate) fn endpoint_url(model: &ModelDefinition) -> Result<Url> {
        if model.url.is_none() && model.key.is_none() && model.headers.is_empty() {
            return Err(Error::new(Code::ModelKeyRefused, "expected a key").at("key"));
        }
        let base = http::base_url(model.url.as_deref().unwrap_or(DEFAULT_BASE_URL))?;
        Ok(http::with_path(base, |path| match path {
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
        Ok(Self { target, encoder: RequestEncoder::of(model)?, reference: model.reference.to_string() })
    }
}

#[async_trait]
impl Provider for Anthropic {
    async fn generate(&self, request: &Request, on_delta: OnDelta<'_>) -> Result<Response, AttemptError> {
        let mut response = ResponseBuilder::new(&self.target.errors, on_delta);
        match self.target.post(&self.encoder.body(request), request.trace).await? {
            HttpResponse::Json(value) => response.apply_whole(&value)?,
            HttpResponse::Events(mut events) => {
                while !response.has_ended()
                    && let Some(event) = events.next().await?
                {
                    match event.data.trim() {
                        "" => {}
                        // Not part of this format, but some gateways that translate into it send it.
                        "[DONE]" => break,
                        _ => response.apply(&event.name, &events.json(&event)?)?,
                    }
                }
                events.close().await;
            }
        }
        response.finish(&self.reference)
    }
}

/// Reads the events of a stream that did not come from a server.
pub(crate) fn read_events<'e>(
    errors: &ErrorMapper,
    values: impl Iterator<Item = (&'e str, Value)>,
) -> Result<Response, AttemptError> {
    let mut response = ResponseBuilder::new(errors, &|_| {});
    for (name, value) in values {
        response.apply(name, &value)?;
    }
    response.finish("fuzzing/model")
}

#[cfg(test)]
mod tests {
    use remuda_domain::model::{ProviderKind, Secret};

    use super::*;

    #[test]
    fn endpoint_urls_are_completed() {
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
            assert_eq!(Anthropic::endpoint_url(&model).unwrap().as_str(), expected);
        }
        (model.url, model.key) = (None, None);
        assert_eq!(Anthropic::endpoint_url(&model).unwrap_err().code(), Code::ModelKeyRefused);
    }
}
