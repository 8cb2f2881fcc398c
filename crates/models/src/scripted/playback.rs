//! Plays a turn of a scenario as a model response.

use std::time::Duration;

use remuda_domain::{
    error::{Code, Error},
    message::Reasoning,
    model::{FinishReason, Usage},
};
use reqwest::{
    StatusCode,
    header::{HeaderMap, HeaderValue, RETRY_AFTER},
};
use serde_json::{Value, json};

use super::{
    placeholders::Placeholders,
    scenario::{Call, Fail, Tokens, Turn},
    turn_choice::ConversationState,
};
use crate::{
    AttemptError, Content, Delta, OnDelta, Request, Response, Retry, ToolRequest,
    provider_error::{ErrorMapper, Secrets},
};

type Result<T> = std::result::Result<T, AttemptError>;

pub(super) struct Player<'a> {
    pub(super) turn: &'a Turn,
    pub(super) state: &'a ConversationState<'a>,
    pub(super) pace: Duration,
    pub(super) reference: &'a str,
}

impl Player<'_> {
    pub(super) async fn play(&self, attempt: u32, on_delta: OnDelta<'_>) -> Result<Response> {
        let placeholders = Placeholders::of(self.state);
        let (think, say) = (placeholders.expand(&self.turn.think)?, placeholders.expand(&self.turn.say)?);
        let calls = self.turn.call.iter().map(|call| request(&call.value, &placeholders));
        let tool_requests = calls.collect::<Result<Vec<_>>>()?;
        tokio::time::sleep(self.turn.delay).await;
        let fail =
            self.turn.fail.as_ref().filter(|fail| fail.times.is_none_or(|times| attempt <= times.get()));
        if let Some(fail) = fail {
            self.stream(&say, fail.after_words, Delta::Text, on_delta).await;
            return Err(provider_error(fail));
        }
        self.stream(&think, usize::MAX, Delta::Reasoning, on_delta).await;
        self.stream(&say, usize::MAX, Delta::Text, on_delta).await;
        for request in &tool_requests {
            on_delta(Delta::ToolRequested { name: request.name.clone() });
        }
        let ended = if tool_requests.is_empty() { FinishReason::Stop } else { FinishReason::ToolCalls };
        let usage = self
            .turn
            .usage
            .map_or_else(|| estimate(self.state.request, &think, &say, &tool_requests), Usage::from);
        let thought = Reasoning { text: think, model: self.reference.to_owned(), ..Reasoning::default() };
        Ok(Response {
            reasoning: Some(thought).filter(|thought| !thought.text.is_empty()).into_iter().collect(),
            text: say,
            tool_requests,
            finish: self.turn.finish.unwrap_or(ended),
            usage,
            id: format!("scripted-{}", self.state.messages.len()),
            attempts: 1,
        })
    }

    /// Streams a text word by word.
    async fn stream(&self, text: &str, words: usize, delta: impl Fn(String) -> Delta, on_delta: OnDelta<'_>) {
        for word in text.split_inclusive(char::is_whitespace).take(words) {
            match self.pace.is_zero() {
                true => tokio::task::yield_now().await,
                false => tokio::time::sleep(self.pace).await,
            }
            on_delta(delta(word.to_owned()));
        }
    }
}

fn request(call: &Call, placeholders: &Placeholders) -> Result<ToolRequest> {
    let arguments = match &call.raw {
        Some(raw) => Err(placeholders.expand(raw)?),
        None => match placeholders.expand_value(&call.arguments.clone().unwrap_or_default().into())? {
            Value::Object(arguments) => Ok(arguments),
            other => Err(other.to_string()),
        },
    };
    Ok(ToolRequest { name: call.tool.clone(), arguments })
}

/// The error of a server that responds this way.
fn provider_error(fail: &Fail) -> AttemptError {
    let errors = ErrorMapper { host: "the scenario".to_owned(), secrets: Secrets::default() };
    let Ok(status) = StatusCode::from_u16(fail.status) else {
        return AttemptError::from(Error::new(Code::ModelUnavailable, "the scenario fails"));
    };
    let mut headers = HeaderMap::new();
    if !fail.retry_after.is_zero()
        && let Ok(value) = HeaderValue::from_str(&fail.retry_after.as_secs_f64().to_string())
    {
        headers.insert(RETRY_AFTER, value);
    }
    let body = json!({"error": {"message": fail.message}}).to_string();
    let mut error = errors.status_error(status, &headers, body.as_bytes());
    error.retry = match (fail.retry, error.retry) {
        (Some(true), Retry::Never) => Retry::Soon,
        (Some(false), _) => Retry::Never,
        (_, retry) => retry,
    };
    error
}

/// Estimates four characters per token.
fn estimate(request: &Request, think: &str, say: &str, calls: &[ToolRequest]) -> Usage {
    let contents =
        request.messages.iter().flat_map(|message| &message.content).map(|content| match content {
            Content::Text(text) | Content::ToolResult { text, .. } => text.len(),
            Content::Reasoning(reasoning) => reasoning.text.len(),
            Content::ToolUse { name, arguments, .. } => name.len() + arguments.to_string().len(),
            Content::Image(_) => 4000,
        });
    let tools = request
        .tools
        .iter()
        .map(|tool| tool.name.len() + tool.description.len() + tool.schema.to_string().len());
    let input = request.system.len() + contents.sum::<usize>() + tools.sum::<usize>();
    let called = calls.iter().map(|call| match &call.arguments {
        Ok(arguments) => call.name.len() + json!(arguments).to_string().len(),
        Err(raw) => call.name.len() + raw.len(),
    });
    let tokens = |characters: usize| characters.div_ceil(4) as u64;
    Usage {
        input_tokens: tokens(input),
        output_tokens: tokens(think.len() + say.len() + called.sum::<usize>()),
        reasoning_tokens: tokens(think.len()),
        ..Usage::default()
    }
}

impl From<Tokens> for Usage {
    fn from(tokens: Tokens) -> Self {
        Self {
            input_tokens: tokens.input,
            output_tokens: tokens.output,
            cached_input_tokens: tokens.cached_input,
            cache_write_tokens: tokens.cache_write,
            reasoning_tokens: tokens.reasoning,
        }
    }
}
