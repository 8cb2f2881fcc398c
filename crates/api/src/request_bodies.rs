//! Request bodies. Unknown fields are refused.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use remuda_domain::{Error, error::Result};
use remuda_proto::v1;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::{
    approval::Permissions,
    json_value::{duration_ms, list},
    run::IfBusy,
    session::Execution,
    spending::Limit,
};

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewWorkspace {
    /// Unique within the tenant.
    #[schema(required = true)]
    pub name: String,
    /// An absolute path on the workers.
    #[schema(required = true)]
    pub root: String,
    /// Name of the tenant that the workspace belongs to. Required with a key; without keys, `default` if omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewSession {
    /// Unique within the tenant.
    pub name: Option<String>,
    pub title: Option<String>,
    /// Name of the workspace; the tenant's default workspace if omitted.
    pub workspace: Option<String>,
    /// Work pool; `default` if omitted.
    pub pool: Option<String>,
    /// Id or name of the parent session.
    pub parent: Option<String>,
    pub execution: Option<Execution>,
    /// The session's agent.
    pub agent: Option<String>,
    /// `platform/<name>`, `workspace/<name>` or `<name>`.
    pub model: Option<String>,
    pub permissions: Option<Permissions>,
    /// Budget of the session and the sessions below it.
    pub budget: Option<Limit>,
}

/// Changes of a session. Omitted fields stay.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SessionChange {
    pub title: Option<String>,
    pub agent: Option<String>,
    /// Only before the first run.
    pub model: Option<String>,
    /// Replaces all permissions of the session.
    pub permissions: Option<Permissions>,
}

/// A message to the session's agent, which works until it has an answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewMessage {
    /// A message needs a text or an image.
    pub text: Option<String>,
    pub images: Vec<NewImage>,
    /// Switches the session to this agent.
    pub agent: Option<String>,
    /// Create the session with this name if it does not exist.
    pub create_session: bool,
    pub if_busy: Option<IfBusy>,
    /// Execution time limit in milliseconds: 1 to 86400000; one hour if omitted.
    pub timeout_ms: Option<u64>,
    /// For a session that `create_session` creates, like the next three. An existing session must have the same settings.
    pub workspace: Option<String>,
    pub model: Option<String>,
    pub execution: Option<Execution>,
    pub permissions: Option<Permissions>,
    /// Spending limit of the run and the runs below it.
    pub budget: Option<Limit>,
    /// Texts to find the run by, which never change: at most 32. Keys have 1 to 63 letters, digits, `-`, `_`, `.` or `/` and begin with a letter or digit; values have at most 256 bytes. Runs below the run inherit them.
    pub labels: BTreeMap<String, String>,
}

/// A run: either `tools` or `message`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewRun {
    pub tools: Option<NewTools>,
    pub message: Option<Text>,
    /// Create the session with this name if it does not exist.
    pub create_session: bool,
    pub if_busy: Option<IfBusy>,
    /// Execution time limit in milliseconds: 1 to 86400000; one hour if omitted.
    pub timeout_ms: Option<u64>,
    /// For a session that `create_session` creates, like the next three. An existing session must have the same settings.
    pub workspace: Option<String>,
    pub model: Option<String>,
    pub execution: Option<Execution>,
    pub permissions: Option<Permissions>,
    /// Spending limit of the run and the runs below it.
    pub budget: Option<Limit>,
    /// Texts to find the run by, which never change: at most 32. Keys have 1 to 63 letters, digits, `-`, `_`, `.` or `/` and begin with a letter or digit; values have at most 256 bytes. Runs below the run inherit them.
    pub labels: BTreeMap<String, String>,
}

/// The content of a message to an agent.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Text {
    /// A message needs a text or an image.
    pub text: Option<String>,
    pub images: Vec<NewImage>,
    pub agent: Option<String>,
}

/// An image: either `data` with its `media_type`, or a `url`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewImage {
    /// `image/png`, `image/jpeg`, `image/gif` or `image/webp`.
    pub media_type: Option<String>,
    /// Base64.
    pub data: Option<String>,
    /// `https://…`, fetched by the model's provider.
    pub url: Option<String>,
}

/// An ordered list of tool calls.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewTools {
    #[schema(required = true)]
    pub calls: Vec<NewToolCall>,
    /// Continue after a failed call. A failed call then does not fail the run.
    pub continue_on_error: bool,
    /// Append the calls and their results to the session's messages.
    pub record: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewToolCall {
    /// `tool_…`; generated by the server if omitted.
    pub id: Option<String>,
    /// `Bash`, `Read`, `Write`, `noop`, …
    #[schema(required = true)]
    pub tool: String,
    pub arguments: Option<Map<String, Value>>,
    /// Adjacent parallel calls run together.
    pub parallel: bool,
    /// 1 to 86400000; the server's default if omitted.
    pub timeout_ms: Option<u64>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CancelRequest {
    /// Stored with the run.
    pub reason: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CancelSessionRequest {
    /// Also the sessions below it.
    pub tree: bool,
    pub reason: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CloseSessionRequest {
    /// Cancel unfinished runs; otherwise they finish.
    pub cancel_runs: bool,
}

#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DecisionRequest {
    /// True approves, false denies.
    pub approve: bool,
    /// A message for the model.
    #[serde(default)]
    pub message: Option<String>,
    /// Arguments that replace those of the call.
    #[serde(default)]
    pub arguments: Option<Map<String, Value>>,
    /// Allow similar calls in this session from now on.
    #[serde(default)]
    #[schema(required = false)]
    pub always: bool,
    /// `call_hash` of the approval that you have seen; checked if given.
    #[serde(default)]
    pub call_hash: Option<String>,
}

fn object(arguments: Option<Map<String, Value>>) -> String {
    arguments.map(|arguments| Value::Object(arguments).to_string()).unwrap_or_default()
}

impl From<NewWorkspace> for v1::CreateWorkspaceRequest {
    fn from(new: NewWorkspace) -> Self {
        Self { name: new.name, root: new.root, tenant: new.tenant.unwrap_or_default() }
    }
}

impl From<NewSession> for v1::CreateSessionRequest {
    fn from(new: NewSession) -> Self {
        Self {
            name: new.name.unwrap_or_default(),
            title: new.title.unwrap_or_default(),
            workspace: new.workspace.unwrap_or_default(),
            pool: new.pool.unwrap_or_default(),
            parent: new.parent.unwrap_or_default(),
            execution: new.execution.map(Into::into),
            agent: new.agent.unwrap_or_default(),
            model: new.model.unwrap_or_default(),
            permissions: new.permissions.map(Into::into),
            budget: new.budget.map(Into::into),
        }
    }
}

impl SessionChange {
    #[must_use]
    pub fn of(self, session: String, if_revision: Vec<String>) -> v1::UpdateSessionRequest {
        v1::UpdateSessionRequest {
            session,
            title: self.title,
            agent: self.agent,
            model: self.model,
            permissions: self.permissions.map(Into::into),
            if_revision,
        }
    }
}

impl From<NewToolCall> for v1::ToolCall {
    fn from(call: NewToolCall) -> Self {
        Self {
            id: call.id.unwrap_or_default(),
            tool: call.tool,
            arguments: object(call.arguments),
            parallel: call.parallel,
            timeout: call.timeout_ms.map(duration_ms),
        }
    }
}

impl From<NewTools> for v1::ToolsInput {
    fn from(tools: NewTools) -> Self {
        Self { calls: list(tools.calls), continue_on_error: tools.continue_on_error, record: tools.record }
    }
}

/// `field` is the request field that holds the images.
fn images(field: &str, images: Vec<NewImage>) -> Result<Vec<v1::Image>> {
    let read = |(index, image): (usize, NewImage)| {
        let data = image.data.unwrap_or_default();
        let data = STANDARD.decode(data).map_err(|error| {
            Error::invalid(format!("{field}[{index}].data"), format!("expected Base64: {error}"))
        })?;
        Ok(v1::Image {
            media_type: image.media_type.unwrap_or_default(),
            data,
            url: image.url.unwrap_or_default(),
        })
    };
    images.into_iter().enumerate().map(read).collect()
}

impl NewMessage {
    /// The request that submits it to a session.
    pub fn into_request(self, session: String, idempotency_key: String) -> Result<v1::SubmitRunRequest> {
        let message = v1::MessageInput {
            text: self.text.unwrap_or_default(),
            images: images("images", self.images)?,
            agent: self.agent.unwrap_or_default(),
            id: String::new(),
        };
        let run = NewRun {
            create_session: self.create_session,
            if_busy: self.if_busy,
            timeout_ms: self.timeout_ms,
            workspace: self.workspace,
            model: self.model,
            execution: self.execution,
            permissions: self.permissions,
            budget: self.budget,
            labels: self.labels,
            tools: None,
            message: None,
        };
        let input = v1::submit_run_request::Input::Message(message);
        Ok(run.submit(session, idempotency_key, input))
    }
}

impl NewRun {
    /// The request that submits it to a session.
    pub fn into_request(mut self, session: String, idempotency_key: String) -> Result<v1::SubmitRunRequest> {
        use v1::submit_run_request::Input;
        let input = match (self.tools.take(), self.message.take()) {
            (Some(tools), None) => Input::Tools(tools.into()),
            (None, Some(message)) => Input::Message(v1::MessageInput {
                text: message.text.unwrap_or_default(),
                images: images("message.images", message.images)?,
                agent: message.agent.unwrap_or_default(),
                id: String::new(),
            }),
            (None, None) => return Err(Error::invalid("tools", "expected tools or a message")),
            (Some(_), Some(_)) => {
                return Err(Error::invalid("message", "expected either tools or a message, not both"));
            }
        };
        Ok(self.submit(session, idempotency_key, input))
    }

    fn submit(
        self,
        session: String,
        idempotency_key: String,
        input: v1::submit_run_request::Input,
    ) -> v1::SubmitRunRequest {
        v1::SubmitRunRequest {
            session,
            create_session: self.create_session,
            idempotency_key,
            if_busy: v1::IfBusy::from(self.if_busy.unwrap_or_default()).into(),
            input: Some(input),
            timeout: self.timeout_ms.map(duration_ms),
            execution: self.execution.map(Into::into),
            workspace: self.workspace.unwrap_or_default(),
            model: self.model.unwrap_or_default(),
            budget: self.budget.map(Into::into),
            permissions: self.permissions.map(Into::into),
            wait: None,
            labels: self.labels,
        }
    }
}

impl DecisionRequest {
    #[must_use]
    pub fn of(self, approval_id: String) -> v1::DecideApprovalRequest {
        v1::DecideApprovalRequest {
            approval_id,
            approve: self.approve,
            message: self.message.unwrap_or_default(),
            arguments: object(self.arguments),
            always: self.always,
            call_hash: self.call_hash.unwrap_or_default(),
        }
    }
}
