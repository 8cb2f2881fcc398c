//! The provider for OpenAI's Chat Completions API and compatible servers.

mod request_body;
mod response;

use async_trait::async_trait;
use remuda_domain::{
    error::{Code, Error, Result},
    model::{ModelDefinition, ProviderKind},
};
use reqwest::{Url, header::AUTHORIZATION};
use serde_json::Value;

use request_body::RequestEncoder;
pub(crate) use request_body::extra_body;
use response::ResponseBuilder;

use crate::{
    AttemptError, OnDelta, Provider, Request, Response,
    http::{self, HttpResponse, Target},
    provider_error::ErrorMapper,
};

const DEFAULT_BASE_URL: &str = "https://api.openai.com/v1";

/// Calls one model.
#[derive(Debug)]
pub(crate) struct OpenAi {
    target: Target,
    encoder: RequestEncoder,
    /// The model's name in registries.
    reference: String,
}

impl OpenAi {
    /// The URL of a model's endpoint.
    pub(crate) fn endpoint_url(model: &ModelDefinition) -> Result<Url> {
        let base = match (&model.url, model.provider) {
            (Some(url), _) => http::base_url(url)?,
            (None, ProviderKind::OpenAiCompatible) => {
                return Err(Error::invalid("url", "expected the address of an OpenAI-compatible server"));
            }
            (None, _) if model.key.is_none() && model.headers.is_empty() => {
                return Err(Error::new(Code::ModelKeyRefused, "expected a key").at("key"));
            }
            (None, _) => http::base_url(DEFAULT_BASE_URL)?,
        };
        Ok(http::with_path(base, |path| match path {
            "" => "/v1/chat/completions".to_owned(),
            path if path.ends_with("/chat/completions") => path.to_owned(),
            path => format!("{path}/chat/completions"),
        }))
    }

    pub(crate) fn new(model: &ModelDefinition, mut target: Target) -> Result<Self> {
        if let Some(key) = &model.key {
            let value = http::secret_header("key", &format!("Bearer {}", key.expose().trim()))?;
            target.headers.insert(AUTHORIZATION, value);
        }
        http::add_headers(&mut target.headers, model)?;
        Ok(Self { target, encoder: RequestEncoder::of(model)?, reference: model.reference.to_string() })
    }
}

#[async_trait]
impl Provider for OpenAi {
    async fn generate(&self, request: &Request, on_delta: OnDelta<'_>) -> Result<Response, AttemptError> {
        let errors = &self.target.errors;
        let mut response = ResponseBuilder::new(errors, on_delta);
        match self.target.post(&self.encoder.body(request), request.trace).await? {
            HttpResponse::Json(value) => {
                response.apply(&value)?;
                response.end();
            }
            HttpResponse::Events(mut events) => {
                while let Some(event) = events.next().await? {
                    if event.data.trim() == "[DONE]" {
                        response.end();
                        break;
                    }
                    if event.data.trim().is_empty() {
                        continue;
                    }
                    let value: Value = events.json(&event)?;
                    if event.name == "error" {
                        return Err(errors.stream_error(&value));
                    }
                    response.apply(&value)?;
                }
                events.close().await;
            }
        }
        response.finish(&self.reference)
    }
}

/// Reads the events of a stream that did not come from a server.
pub(crate) fn read_events(
    errors: &ErrorMapper,
    values: impl Iterator<Item = Value>,
) -> Result<Response, AttemptError> {
    let mut response = ResponseBuilder::new(errors, &|_| {});
    for value in values {
        response.apply(&value)?;
    }
    response.end();
    response.finish("fuzzing/model")
}

#[cfg(test)]
mod tests {
    use remuda_domain::model::Secret;

    use super::*;

    fn model(provider: ProviderKind, url: Option<&str>) -> ModelDefinition {
        ModelDefinition {
            reference: "platform/m".parse().unwrap(),
            provider,
            name: "m".to_owned(),
            url: url.map(str::to_owned),
            key: Some(Secret::new("key")),
            headers: Default::default(),
            parameters: Default::default(),
            metadata: Default::default(),
            context_window: None,
            max_output_tokens: None,
            price: None,
        }
    }

    #[test]
    fn endpoint_urls_are_completed() {
        let table = [
            (None, "https://api.openai.com/v1/chat/completions"),
            (Some("https://host"), "https://host/v1/chat/completions"),
            (Some("https://host/"), "https://host/v1/chat/completions"),
            (Some("https://host/v1"), "https://host/v1/chat/completions"),
            (Some("https://host/v1/"), "https://host/v1/chat/completions"),
            (Some("https://host/api/v3"), "https://host/api/v3/chat/completions"),
            (Some("https://host/v1/chat/completions"), "https://host/v1/chat/completions"),
            (
                Some("https://host/openai/deployments/d?api-version=1"),
                "https://host/openai/deployments/d/chat/completions?api-version=1",
            ),
        ];
        for (url, expected) in table {
            assert_eq!(OpenAi::endpoint_url(&model(ProviderKind::OpenAi, url)).unwrap().as_str(), expected);
        }
        let error = OpenAi::endpoint_url(&model(ProviderKind::OpenAiCompatible, None)).unwrap_err();
        assert_eq!(error.field(), Some("url"));
        let keyless = ModelDefinition { key: None, ..model(ProviderKind::OpenAi, None) };
        assert_eq!(OpenAi::endpoint_url(&keyless).unwrap_err().code(), Code::ModelKeyRefused);
    }
}
