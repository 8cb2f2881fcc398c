//! Pages of lists.

use remuda_proto::v1;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    agent::Message,
    approval::Approval,
    json_value::{list, text},
    run::Run,
    session::{Session, Workspace},
    step::Step,
    webhook::{DeadLetter, Webhook},
};

/// A page of items, and the token of the next page: `page_token` of the next request. The last page has none.
macro_rules! pages {
    ($($(#[$doc:meta])* $page:ident of $item:ident: $($answer:ident . $field:ident),+;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Serialize, ToSchema)]
        pub struct $page {
            pub items: Vec<$item>,
            /// `page_token` for the next page. Omitted on the last page.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub next_page_token: Option<String>,
        }

        $(impl From<v1::$answer> for $page {
            fn from(answer: v1::$answer) -> Self {
                Self { items: list(answer.$field), next_page_token: text(answer.next_page_token) }
            }
        })+
    )*};
}

pages! {
    /// Newest first. Child sessions are oldest first.
    SessionPage of Session: ListSessionsResponse.sessions, ListChildSessionsResponse.sessions;
    /// Newest first. Runs of a queue are in the order of their execution.
    RunPage of Run: ListRunsResponse.runs, ListQueueResponse.runs;
    /// Oldest first.
    MessagePage of Message: ListMessagesResponse.messages;
    /// Newest first.
    ApprovalPage of Approval: ListApprovalsResponse.approvals;
    /// Newest first.
    WebhookPage of Webhook: ListWebhooksResponse.webhooks;
    /// Newest first.
    DeadLetterPage of DeadLetter: ListDeadLettersResponse.dead_letters;
    /// By name.
    WorkspacePage of Workspace: ListWorkspacesResponse.workspaces;
}

/// The steps of a run, in order.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct StepList {
    pub items: Vec<Step>,
}

impl From<v1::ListStepsResponse> for StepList {
    fn from(answer: v1::ListStepsResponse) -> Self {
        Self { items: list(answer.steps) }
    }
}
