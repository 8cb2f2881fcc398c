//! Tests of the scripted provider.

mod errors;
mod turns;

use std::path::{Path, PathBuf};

use remuda_domain::{
    error::Result,
    model::{ModelDefinition, ProviderKind},
};
use remuda_models::{ChatMessage, ChatRole, Content, Models, Request, Response, ToolRequest};
use tempfile::TempDir;

use crate::fixtures::{ReceivedDeltas, call_model, options, request};

/// A scenario file in a directory of its own.
struct ScenarioFile {
    directory: TempDir,
}

impl ScenarioFile {
    fn new(scenario: &str) -> Self {
        let directory = TempDir::new().unwrap();
        std::fs::write(directory.path().join("demo.yaml"), scenario).unwrap();
        Self { directory }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("demo.yaml")
    }

    /// Calls the model with a new client, like a new process.
    async fn call_model(&self, request: &Request) -> (Result<Response>, ReceivedDeltas) {
        call_model(&Models::new(options()), &definition(&self.file()), request).await
    }

    /// The text and the tool calls of the response.
    async fn response_to(&self, messages: &[ChatMessage]) -> (String, Vec<ToolRequest>) {
        let response = self.call_model(&request(messages.to_vec())).await.0.unwrap();
        (response.text, response.tool_requests)
    }

    async fn text(&self, messages: &[ChatMessage]) -> String {
        self.response_to(messages).await.0
    }

    /// The lines of a log.
    fn log(&self, name: &str) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(self.directory.path().join(name)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn definition(file: &Path) -> ModelDefinition {
    ModelDefinition {
        reference: "workspace/demo".parse().unwrap(),
        provider: ProviderKind::Scripted,
        name: file.to_str().unwrap().to_owned(),
        url: None,
        key: None,
        headers: Default::default(),
        parameters: Default::default(),
        metadata: Default::default(),
        context_window: None,
        max_output_tokens: None,
        price: None,
    }
}

fn assistant(text: &str) -> ChatMessage {
    ChatMessage { role: ChatRole::Assistant, content: vec![Content::Text(text.to_owned())] }
}

fn result(text: &str) -> ChatMessage {
    let content = vec![Content::ToolResult { id: "c".to_owned(), text: text.to_owned(), is_error: false }];
    ChatMessage { role: ChatRole::User, content }
}
