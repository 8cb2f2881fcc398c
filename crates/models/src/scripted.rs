//! Plays a scenario from a file, for demos and tests that need no key.
//!
//! What is answered depends on the scenario and the request alone: another process that is asked the same after a crash says the same.
//! Nothing is counted between calls; how far a conversation has come is read off its messages.
//!
//! ```yaml
//! pace: 20ms                  # between words; none unless given
//! log: calls.jsonl            # a file beside this one: one line for each attempt
//! turns:                      # the answers to a user's message, up to the next one
//!   - say: "I will read the file."
//!     think: "Where else to begin?"
//!     call: [{ tool: Read, arguments: { file_path: src/main.py } }]
//!   - when: { tool_result_contains: "1 failed" }
//!     say: "There is a fault, I repair it."
//!     call: [{ tool: Edit, arguments: { file_path: src/main.py, old_string: a, new_string: b } }]
//!   - say: "Done: {{last_tool_result}}"
//!     usage: { input: 10, output: 5 }
//! conversations:              # other turns for certain messages; the first that fits
//!   - on: { user_contains: "weather" }
//!     turns:
//!       - fail: { status: 503, times: 2 }
//!         say: "It rains."
//! otherwise: { say: "I have nothing more to say." }
//! ```
//!
//! For each answer, the first turn whose `when` holds is taken, as often as it holds or `repeat` allows. If there is none, those without
//! a `when` are taken in order, each once or `repeat` times. After the last one comes `otherwise`; without that, the call is refused.
//!
//! - A turn has `say`, `think`, `call` (each with `tool` and `arguments`, or `raw` for arguments that are no JSON), `fail`, `usage`, `finish`,
//!   `delay` before it answers, `when`, `repeat`.
//! - `when`: `user_contains` (the newest text of the user), `tool_result_contains`, `tool_failed` (of the newest results), `turn` (1 is the
//!   first answer), `system_contains`, `tool_offered`, `may_call`. All that is given must hold.
//! - `on`: `user_contains` (the message that is answered), `question` (1 is the first message of the session), `system_contains`.
//! - `fail`: `status`, `message`, `retry`, `retry_after`, `after_words` (of what is said, before it breaks), `times` (attempts of one call that
//!   fail before the answer comes; all of them unless given).
//! - In what is said, thought and given to tools: `{{user}}`, `{{question}}`, `{{last_tool_result}}`, `{{turn}}`.
//! - A message that also holds results of tools goes on with what was asked before; it is no new question.

mod choose;
mod expand;
mod log;
mod play;
mod scenario;

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use async_trait::async_trait;
use remuda_domain::{
    error::{Code, Result},
    model::ModelDefinition,
};

use choose::View;
use play::Player;
use scenario::Scenario;

use crate::{AttemptError, OnDelta, Provider, Request, Response};

/// Answers as a scenario says. Made anew for each call.
#[derive(Debug)]
pub(crate) struct Scripted {
    file: PathBuf,
    /// As registries name the model.
    reference: String,
    /// Of this call.
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
        // Read each time: it is small, and who edits a scenario sees it at once.
        let scenario = Scenario::load(&self.file).await?;
        let view = View::of(request);
        if let Some(name) = &scenario.log {
            log::append(&self.file.with_file_name(name), attempt, &view).await?;
        }
        let Some(turn) = scenario.choose(&view) else {
            let message =
                format!("{} has no turn for answer {} to this message", self.file.display(), view.turn());
            return Err(AttemptError::never(Code::ModelRequestRefused, message));
        };
        Player { turn, view: &view, pace: scenario.pace, reference: &self.reference }
            .play(attempt, on_delta)
            .await
    }
}

/// Reads a scenario, to see whether it can be played.
pub async fn check_scenario(file: &Path) -> Result<()> {
    Scenario::load(file).await.map(drop)
}
