//! The OpenAI chat API, at home and wherever else it is spoken.

mod answer;
mod body;

use async_trait::async_trait;
use remuda_domain::{
    error::{Code, Error, Result},
    model::{ModelDefinition, ProviderKind},
};
use reqwest::{Url, header::AUTHORIZATION};
use serde_json::Value;

use answer::Gathering;
use body::Dialect;
pub(crate) use body::extra_body;

use crate::{
    AttemptError, OnDelta, Provider, Request, Response,
    http::{self, Answer, Target},
};

const BASE: &str = "https://api.openai.com/v1";

/// Asks one model.
#[derive(Debug)]
pub(crate) struct OpenAi {
    target: Target,
    dialect: Dialect,
    /// As registries name it.
    reference: String,
}

impl OpenAi {
    /// Where a model is asked.
    pub(crate) fn address(model: &ModelDefinition) -> Result<Url> {
        let base = match (&model.url, model.provider) {
            (Some(url), _) => http::base(url)?,
            (None, ProviderKind::OpenAiCompatible) => {
                return Err(Error::invalid("url", "expected the address of an OpenAI-compatible server"));
            }
            (None, _) if model.key.is_none() && model.headers.is_empty() => {
                return Err(Error::new(Code::ModelKeyRefused, "expected a key").at("key"));
            }
            (None, _) => http::base(BASE)?,
        };
        Ok(http::under(base, |path| match path {
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
        Ok(Self { target, dialect: Dialect::of(model)?, reference: model.reference.to_string() })
    }
}

#[async_trait]
impl Provider for OpenAi {
    async fn generate(&self, request: &Request, on_delta: OnDelta<'_>) -> Result<Response, AttemptError> {
        let faults = &self.target.faults;
        let mut gathering = Gathering::new(faults, on_delta);
        match self.target.post(&self.dialect.body(request), request.trace).await? {
            Answer::Whole(value) => {
                gathering.take(&value)?;
                gathering.end();
            }
            Answer::Events(mut events) => {
                while let Some(event) = events.next().await? {
                    if event.data.trim() == "[DONE]" {
                        gathering.end();
                        break;
                    }
                    if event.data.trim().is_empty() {
                        continue;
                    }
                    let value: Value = events.json(&event)?;
                    if event.name == "error" {
                        return Err(faults.reported(&value));
                    }
                    gathering.take(&value)?;
                }
                events.close().await;
            }
        }
        gathering.finish(&self.reference)
    }
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
    fn addresses_are_completed() {
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
            assert_eq!(OpenAi::address(&model(ProviderKind::OpenAi, url)).unwrap().as_str(), expected);
        }
        let error = OpenAi::address(&model(ProviderKind::OpenAiCompatible, None)).unwrap_err();
        assert_eq!(error.field(), Some("url"));
        let keyless = ModelDefinition { key: None, ..model(ProviderKind::OpenAi, None) };
        assert_eq!(OpenAi::address(&keyless).unwrap_err().code(), Code::ModelKeyRefused);
    }
}
