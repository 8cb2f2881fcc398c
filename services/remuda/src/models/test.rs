//! `remuda models test`: one tiny question.

use std::{
    path::Path,
    process::ExitCode,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

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

const QUESTION: &str = "This is a test of the connection. Answer with one short sentence.";

pub(super) async fn test(name: &str, dir: &Path, config: &Config, output: Output) -> Result<ExitCode> {
    let (_, current) = workspace::load(dir, config).await?;
    let model = current.definitions.named_model(name)?.model;
    let at = model.url.as_deref().map(|url| format!(" at {}", address(url))).unwrap_or_default();
    output.note(&output.err.paint(
        Style::Dim,
        &one_line(&format!("asking {} ({} {}{at})", model.reference, model.provider.as_str(), model.name)),
    ));
    let hearing = Hearing::new(output);
    let answer = ask(model, config, &|delta| hearing.hear(delta)).await;
    let heard = hearing.end();
    tell(model, &answer?, &heard, output);
    Ok(ExitCode::SUCCESS)
}

/// How long a model takes for an answer to a tiny question.
pub(crate) async fn answers(model: &ModelDefinition, config: &Config, output: Output) -> Result<Duration> {
    let started = Instant::now();
    let mut progress = Progress::new(&output, "asking the model");
    match progress.during(ask(model, config, &|_| {})).await {
        Ok(answer) => answer.map(|_| started.elapsed()),
        Err(Interrupted) => Err(Error::new(Code::Cancelled, "interrupted")),
    }
}

/// Once: whoever tests wants to know what is wrong, not whether it passes with patience.
async fn ask(
    model: &ModelDefinition,
    config: &Config,
    hear: &(dyn Fn(Delta) + Send + Sync),
) -> Result<Response> {
    let mut config = config.clone();
    config.models.max_attempts = 1;
    let request = Request {
        system: String::new(),
        messages: vec![ChatMessage {
            role: ChatRole::User,
            content: vec![Content::Text(QUESTION.to_owned())],
        }],
        tools: [].into(),
        tool_choice: ToolChoice::Auto,
        parallel_tool_calls: false,
        parameters: model.parameters,
        trace: None,
    };
    remuda_node::models(&config, inferred_mode(&config))?.generate(model, &request, hear).await
}

/// Shows an answer as it comes and notes when it began.
struct Hearing {
    output: Output,
    started: Instant,
    heard: Mutex<Heard>,
}

#[derive(Debug, Default)]
struct Heard {
    first: Option<Duration>,
    took: Duration,
    sanitizer: Sanitizer,
    /// The line on stdout has no end yet.
    is_open: bool,
}

impl Hearing {
    fn new(output: Output) -> Self {
        Self { output, started: Instant::now(), heard: Mutex::default() }
    }

    fn hear(&self, delta: Delta) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.first.get_or_insert_with(|| self.started.elapsed());
        let Delta::Text(text) = delta else { return };
        let clean = heard.sanitizer.push(&text);
        if !self.output.json && !clean.is_empty() {
            self.output.out.part(&clean);
            heard.is_open = !clean.ends_with('\n');
        }
    }

    /// What was heard; the line is complete.
    fn end(self) -> Heard {
        let mut heard = self.heard.into_inner().unwrap_or_else(PoisonError::into_inner);
        heard.took = self.started.elapsed();
        if heard.is_open {
            self.output.out.part("\n");
        }
        heard
    }
}

fn tell(model: &ModelDefinition, answer: &Response, heard: &Heard, output: Output) {
    let first = heard.first.unwrap_or(heard.took);
    if output.json {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        return output.json_line(&json!({
            "model": model.reference,
            "text": answer.text,
            "first_byte_ms": millis(first),
            "duration_ms": millis(heard.took),
            "finish": answer.finish,
            "usage": answer.usage,
        }));
    }
    let usage = &answer.usage;
    let mut words = format!(
        "{} answered: first byte after {}, all after {} · {} tokens in, {} out",
        model.reference,
        elapsed(first),
        elapsed(heard.took),
        usage.input_tokens,
        usage.output_tokens
    );
    match answer.finish {
        FinishReason::Stop | FinishReason::ToolCalls => {}
        FinishReason::Length => words.push_str(" · cut off: max_tokens is too small"),
        FinishReason::ContentFilter => words.push_str(" · cut off by the provider's filter"),
        FinishReason::Other => words.push_str(" · it did not end as usual"),
    }
    output.note(&format!("{} {}", output.err.paint(Style::Good, "✓"), one_line(&words)));
}
