//! Models: references, definitions and parameters.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::{
    budget::Price,
    error::{Error, Result},
};

/// The wire protocol of a model's provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProviderKind {
    /// The OpenAI chat API at its default address.
    #[serde(rename = "openai")]
    OpenAi,
    /// The same API elsewhere; requires a URL.
    #[serde(rename = "openai-compatible")]
    OpenAiCompatible,
    Anthropic,
    /// Replays a scenario from a file: for demos and tests.
    Scripted,
}

impl ProviderKind {
    pub const ALL: [Self; 4] = [Self::OpenAi, Self::OpenAiCompatible, Self::Anthropic, Self::Scripted];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::OpenAiCompatible => "openai-compatible",
            Self::Anthropic => "anthropic",
            Self::Scripted => "scripted",
        }
    }
}

/// A model in a registry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelDefinition {
    pub reference: ModelRef,
    pub provider: ProviderKind,
    /// The provider's name for the model. For `scripted`: the scenario file, relative to the file that names it when
    /// loaded, absolute here.
    pub name: String,
    /// Base URL; the provider's default if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Never serialized: a deserialized definition has to get it from the registry.
    #[serde(skip)]
    pub key: Option<Secret>,
    /// Additional request headers. Values may be secrets, so they are not serialized either.
    #[serde(skip)]
    pub headers: BTreeMap<String, Secret>,
    #[serde(default)]
    pub parameters: ModelParameters,
    /// Maximum number of tokens of a request and its response together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_window: Option<u64>,
    /// Maximum number of tokens of a response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Price>,
    /// Any other settings.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

/// Reference to a model in a registry: `platform/<name>` or `workspace/<name>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ModelRef {
    pub registry: Registry,
    pub name: String,
}

/// Which registry a model is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Registry {
    Platform,
    Workspace,
}

impl Registry {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Platform => "platform",
            Self::Workspace => "workspace",
        }
    }
}

impl ModelRef {
    #[must_use]
    pub fn new(registry: Registry, name: impl Into<String>) -> Self {
        Self { registry, name: name.into() }
    }
}

impl fmt::Display for ModelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry.as_str(), self.name)
    }
}

impl From<ModelRef> for String {
    fn from(reference: ModelRef) -> Self {
        reference.to_string()
    }
}

impl TryFrom<String> for ModelRef {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl std::str::FromStr for ModelRef {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let registry = match text.split_once('/') {
            Some(("platform", name)) if !name.is_empty() => Self::new(Registry::Platform, name),
            Some(("workspace", name)) if !name.is_empty() => Self::new(Registry::Workspace, name),
            _ => return Err(Error::invalid("model", "expected platform/<name> or workspace/<name>")),
        };
        Ok(registry)
    }
}

/// Parameters of a model call. Missing values are the provider's defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelParameters {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
}

impl ModelParameters {
    /// These parameters, with missing values from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            temperature: self.temperature.or(other.temperature),
            top_p: self.top_p.or(other.top_p),
            max_tokens: self.max_tokens.or(other.max_tokens),
        }
    }
}

/// Token usage of a model call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// Part of the input that was read from the provider's cache.
    pub cached_input_tokens: u64,
    /// Part of the input that was written to the provider's cache.
    pub cache_write_tokens: u64,
    /// Part of the output that was reasoning.
    pub reasoning_tokens: u64,
}

impl std::ops::Add for Usage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            cached_input_tokens: self.cached_input_tokens.saturating_add(other.cached_input_tokens),
            cache_write_tokens: self.cache_write_tokens.saturating_add(other.cache_write_tokens),
            reasoning_tokens: self.reasoning_tokens.saturating_add(other.reasoning_tokens),
        }
    }
}

/// Why a model stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The response is complete.
    Stop,
    /// It requests tool calls.
    ToolCalls,
    /// The output limit was reached.
    Length,
    /// The provider filtered the response.
    ContentFilter,
    Other,
}

/// A secret. Shown as `***`, never serialized.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The plain value.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_reference_parses_back_from_its_text() {
        for text in ["platform/gpt", "workspace/模型", "platform/a/b"] {
            assert_eq!(text.parse::<ModelRef>().unwrap().to_string(), text);
        }
        for bad in ["", "gpt", "platform/", "elsewhere/gpt"] {
            assert!(bad.parse::<ModelRef>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn definition_never_shows_its_secrets() {
        let definition = ModelDefinition {
            reference: "platform/m".parse().unwrap(),
            provider: ProviderKind::OpenAi,
            name: "m".to_owned(),
            url: None,
            key: Some(Secret::new("sk-hidden")),
            headers: BTreeMap::from([("x".to_owned(), Secret::new("sk-hidden"))]),
            parameters: ModelParameters::default(),
            context_window: None,
            max_output_tokens: None,
            price: None,
            metadata: serde_json::Map::new(),
        };
        let json = serde_json::to_string(&definition).unwrap();
        assert!(!format!("{definition:?}{json}").contains("hidden"));
    }
}
