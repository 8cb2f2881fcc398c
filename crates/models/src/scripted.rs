//! A provider that plays a scenario from a file, for demos and tests without a key.
//!
//! A response depends only on the scenario and the request, so another process gives the same response after a crash.
//! There is no state between calls: the position in a conversation is derived from its messages.
//!
//! ```yaml
//! pace: 20ms                  # delay between words; none by default
//! log: calls.jsonl            # file beside this one: one line per attempt
//! turns:                      # responses to a user message, up to the next one
//!   - say: "I will read the file."
//!     think: "Where else to begin?"
//!     call: [{ tool: Read, arguments: { file_path: src/main.py } }]
//!   - when: { tool_result_contains: "1 failed" }
//!     say: "There is a fault, I repair it."
//!     call: [{ tool: Edit, arguments: { file_path: src/main.py, old_string: a, new_string: b } }]
//!   - say: "Done: {{last_tool_result}}"
//!     usage: { input: 10, output: 5 }
//! conversations:              # other turns for certain user messages; the first match counts
//!   - on: { user_contains: "weather" }
//!     turns:
//!       - fail: { status: 503, times: 2 }
//!         say: "It rains."
//! otherwise: { say: "I have nothing more to say." }
//! ```
//!
//! For each response, the first turn whose `when` holds is played, as often as it holds or `repeat` allows. If there is
//! none, turns without a `when` are played in order, each once or `repeat` times. After the last one comes `otherwise`;
//! without `otherwise`, the call is refused.
//!
//! - A turn has `say`, `think`, `call` (each with `tool` and `arguments`, or `raw` for arguments that are not JSON),
//!   `fail`, `usage`, `finish`, `delay` before the response, `when`, `repeat`.
//! - `when`: `user_contains` (the newest text of the user), `tool_result_contains`, `tool_failed` (of the newest
//!   results), `turn` (1 is the first response), `system_contains`, `tool_offered`, `may_call`. All given conditions must
//!   hold.
//! - `on`: `user_contains` (the user message that is responded to), `question` (1 is the first user message of the
//!   session), `system_contains`.
//! - `fail`: `status`, `message`, `retry`, `retry_after`, `after_words` (words of `say` that are streamed before the
//!   failure), `times` (attempts of one call that fail before the response comes; all of them by default).
//! - Placeholders in `say`, `think` and `call`: `{{user}}`, `{{question}}`, `{{last_tool_result}}`, `{{turn}}`.
//! - A message with tool results continues the exchange; it is no new user message.

mod log;
mod placeholders;
mod playback;
mod scenario;
mod turn_choice;

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use async_trait::async_trait;
use remuda_domain::{
    error::{Code, Result},
    model::ModelDefinition,
};

use playback::Player;
use scenario::Scenario;
use turn_choice::ConversationState;

use crate::{AttemptError, OnDelta, Provider, Request, Response};

/// Responds as a scenario says. Created for each call.
#[derive(Debug)]
pub(crate) struct Scripted {
    file: PathBuf,
    /// The model's name in registries.
    reference: String,
    /// Attempts of this call.
    attempts: AtomicU32,
}

impl Scripted {
    pub(crate) fn new(model: &ModelDefinition) -> Self {
        let (file, reference) = (PathBuf::from(&model.name), model.reference.to_string());
        Self { file, reference, attempts: AtomicU32::new(0) }
    }
}

#[async_trait]
impl Provider for Scripted {
    async fn generate(&self, request: &Request, on_delta: OnDelta<'_>) -> Result<Response, AttemptError> {
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed) + 1;
        // Read for each attempt: the file is small, and edits take effect immediately.
        let scenario = Scenario::load(&self.file).await?;
        let state = ConversationState::of(request);
        if let Some(name) = &scenario.log {
            log::append(&self.file.with_file_name(name), attempt, &state).await?;
        }
        let Some(turn) = scenario.choose(&state) else {
            let message =
                format!("{} has no turn for answer {} to this message", self.file.display(), state.turn());
            return Err(AttemptError::never(Code::ModelRequestRefused, message));
        };
        Player { turn, state: &state, pace: scenario.pace, reference: &self.reference }
            .play(attempt, on_delta)
            .await
    }
}

/// Checks that a scenario can be read.
pub async fn check_scenario(file: &Path) -> Result<()> {
    Scenario::load(file).await.map(drop)
}
