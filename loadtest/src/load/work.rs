//! The work of the runs in a measurement.

use std::sync::Arc;

use rand::Rng as _;
use remuda_proto::v1::{self, submit_run_request::Input};

/// What a run does.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// One call that does nothing.
    Noop,
    /// A command on the local backend.
    Bash { command: Arc<str> },
    /// Nine of ten runs do nothing; the others take this many milliseconds.
    Mixed { slow_ms: u64 },
    /// A message to an agent.
    Message { text: Arc<str> },
}

impl Work {
    /// The number of calls of a run.
    pub(super) fn calls(&self) -> usize {
        match self {
            Self::Noop | Self::Bash { .. } | Self::Mixed { .. } => 1,
            Self::Message { .. } => 0,
        }
    }

    /// The request for one run.
    pub(crate) fn request(&self, session: &str) -> v1::SubmitRunRequest {
        let input = match self {
            Self::Noop => call("noop", &serde_json::json!({})),
            Self::Bash { command } => call("Bash", &serde_json::json!({ "command": &**command })),
            Self::Mixed { slow_ms } => match rand::rng().random_range(0..10) {
                0 => call("noop", &serde_json::json!({ "sleep_ms": slow_ms })),
                _ => call("noop", &serde_json::json!({})),
            },
            Self::Message { text } => {
                Input::Message(v1::MessageInput { text: text.to_string(), ..Default::default() })
            }
        };
        v1::SubmitRunRequest { session: session.to_owned(), input: Some(input), ..Default::default() }
    }
}

fn call(tool: &str, arguments: &serde_json::Value) -> Input {
    let call = v1::ToolCall { tool: tool.to_owned(), arguments: arguments.to_string(), ..Default::default() };
    Input::Tools(v1::ToolsInput { calls: vec![call], ..Default::default() })
}
