//! `remuda models test`: sends a short test message to a model.

use std::{
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use remuda_config::Config;
use remuda_domain::{
    Code, Error,
    error::Result,
    model::{FinishReason, ModelDefinition},
};
use remuda_models::{ChatMessage, ChatRole, Content, Delta, Request, Response, ToolChoice};
use serde_json::json;

use super::address;
use crate::{
    output::{Interrupted, Output, Progress, Sanitizer, Style, elapsed, one_line},
    serve::inferred_mode,
    workspace,
};

const TEST_MESSAGE: &str = "This is a test of the connection. Answer with one short sentence.";

pub(super) async fn test(name: &str, dir: &Path, config: &Config, output: Output) -> Result<ExitCode> {
    let (_, current) = workspace::load(dir, config).await?;
    let model = current.definitions.named_model(name)?.model;
    let at = model.url.as_deref().map(|url| format!(" at {}", address(url))).unwrap_or_default();
    output.note(&output.err.paint(
        Style::Dim,
        &one_line(&format!("testing {} ({} {}{at})", model.reference, model.provider.as_str(), model.name)),
    ));
    let stream = StreamedResponse::new(output);
    let response = send_test(model, config, &|delta| stream.on_delta(delta)).await;
    let state = stream.end();
    print_result(model, &response?, &state, output);
    Ok(ExitCode::SUCCESS)
}

/// Sends a test message and returns the time until the complete response.
pub(crate) async fn measure_response(
    model: &ModelDefinition,
    config: &Config,
    output: Output,
) -> Result<Duration> {
    let started = Instant::now();
    let mut progress = Progress::new(&output, "testing the model");
    match progress.during(send_test(model, config, &|_| {})).await {
        Ok(response) => response.map(|_| started.elapsed()),
        Err(Interrupted) => Err(Error::new(Code::Cancelled, "interrupted")),
    }
}

/// Sends the message once, without retries, so that the first error is reported.
async fn send_test(
    model: &ModelDefinition,
    config: &Config,
    on_delta: &(dyn Fn(Delta) + Send + Sync),
) -> Result<Response> {
    let mut config = config.clone();
    config.models.max_attempts = 1;
    let request = Request {
        system: String::new(),
        messages: vec![ChatMessage {
            role: ChatRole::User,
            content: vec![Content::Text(TEST_MESSAGE.to_owned())],
        }],
        tools: [].into(),
        tool_choice: ToolChoice::Auto,
        parallel_tool_calls: false,
        parameters: model.parameters,
        trace: None,
    };
    remuda_node::models(&config, inferred_mode(&config))?.generate(model, &request, on_delta).await
}

/// Prints a response while it is streamed and measures the latency.
struct StreamedResponse {
    output: Output,
    started: Instant,
    state: Mutex<StreamState>,
}

#[derive(Debug, Default)]
struct StreamState {
    first: Option<Duration>,
    took: Duration,
    sanitizer: Sanitizer,
    /// The line on stdout has no newline yet.
    is_open: bool,
}

impl StreamedResponse {
    fn new(output: Output) -> Self {
        Self { output, started: Instant::now(), state: Mutex::default() }
    }

    fn on_delta(&self, delta: Delta) {
        let mut state = self.state.lock();
        state.first.get_or_insert_with(|| self.started.elapsed());
        let Delta::Text(text) = delta else { return };
        let clean = state.sanitizer.push(&text);
        if !self.output.json && !clean.is_empty() {
            self.output.out.part(&clean);
            state.is_open = !clean.ends_with('\n');
        }
    }

    /// Ends the line on stdout and returns the measurements.
    fn end(self) -> StreamState {
        let mut state = self.state.into_inner();
        state.took = self.started.elapsed();
        if state.is_open {
            self.output.out.part("\n");
        }
        state
    }
}

fn print_result(model: &ModelDefinition, response: &Response, state: &StreamState, output: Output) {
    let first = state.first.unwrap_or(state.took);
    if output.json {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        return output.json_line(&json!({
            "model": model.reference,
            "text": response.text,
            "first_byte_ms": millis(first),
            "duration_ms": millis(state.took),
            "finish": response.finish,
            "usage": response.usage,
        }));
    }
    let usage = &response.usage;
    let mut text = format!(
        "{} answered: first byte after {}, complete after {} · {} tokens in, {} out",
        model.reference,
        elapsed(first),
        elapsed(state.took),
        usage.input_tokens,
        usage.output_tokens
    );
    match response.finish {
        FinishReason::Stop | FinishReason::ToolCalls => {}
        FinishReason::Length => text.push_str(" · cut off: max_tokens is too small"),
        FinishReason::ContentFilter => text.push_str(" · cut off by the provider's filter"),
        FinishReason::Other => text.push_str(" · finished for an unknown reason"),
    }
    output.note(&format!("{} {}", output.err.paint(Style::Good, "✓"), one_line(&text)));
}
