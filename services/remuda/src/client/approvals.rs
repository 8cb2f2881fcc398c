//! `remuda approvals`: lists and decides tool calls that need approval.

mod decide;
mod show;

use remuda_client::Client;
use remuda_domain::{Error, Timestamp, approval::ApprovalState, error::Result};
use remuda_proto::{convert, v1};

pub(crate) use self::decide::{ApproveArgs, DenyArgs};
use super::{conversation::headline, exit::Exit, json, pages::PageArgs, render};
use crate::output::{Output, Style, Table, ago, elapsed};

pub(super) const EXAMPLES: &str = "\
Examples:
  remuda approvals list                       calls that wait for a decision
  remuda approvals show apr_01k9…             the exact call, who may decide, and until when
  remuda approvals approve apr_01k9…
  remuda approvals approve apr_01k9… --always             and allow similar calls of this session from now on
  remuda approvals approve apr_01k9… --input '{\"command\": \"make test\"}'    with other arguments
  remuda approvals deny apr_01k9… --message 'use make, not npm'              with a reason for the model
  remuda approvals list --json | jq -r .id

A call needs approval if a permission rule says `ask` (see `remuda workspace show --agent NAME`). Meanwhile the run is parked
and occupies no worker, so a decision may take hours. A decision is final. Where API keys are required, it needs a key with
the scope approve, which no key has by default: remuda keys create --name anna --scope write --scope approve";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum ApprovalsCommand {
    /// List calls that wait for a decision, newest first.
    List {
        /// Also list decided, expired and withdrawn calls.
        #[arg(long, conflicts_with = "state")]
        all: bool,
        /// Only calls in this state.
        #[arg(long, value_name = "STATE", value_parser = state_parser())]
        state: Option<ApprovalState>,
        /// Only calls of this session (name or id).
        #[arg(long, short, value_name = "NAME_OR_ID")]
        session: Option<String>,
        /// Only calls of this run.
        #[arg(long, value_name = "RUN_ID")]
        run: Option<String>,
        /// Show at most this many entries.
        #[arg(long, short = 'n', default_value_t = 50, value_name = "COUNT")]
        limit: usize,
    },
    /// Show the exact call and why it needs approval.
    Show {
        #[arg(value_name = "APPROVAL_ID")]
        approval: String,
    },
    /// Approve a call. Its run continues.
    ///
    /// Shows the call and approves exactly that call. If it has changed meanwhile, the command fails with approval_changed.
    Approve(ApproveArgs),
    /// Deny a call. The model is told so, and the run continues.
    Deny(DenyArgs),
}

fn state_parser() -> impl clap::builder::TypedValueParser<Value = ApprovalState> {
    use clap::builder::{PossibleValuesParser, TypedValueParser as _};
    PossibleValuesParser::new(ApprovalState::ALL.map(ApprovalState::as_str))
        .try_map(|name| name.parse::<ApprovalState>())
}

pub(super) async fn execute(command: ApprovalsCommand, client: &Client, output: Output) -> Result<Exit> {
    match command {
        ApprovalsCommand::List { all, state, session, run, limit } => {
            let state = state.or((!all).then_some(ApprovalState::Pending));
            let filter = v1::ListApprovalsRequest {
                state: state.map(|state| state.to_string()).unwrap_or_default(),
                session: session.unwrap_or_default(),
                run_id: run.unwrap_or_default(),
                ..Default::default()
            };
            list(&filter, PageArgs::first(limit), client, output).await
        }
        ApprovalsCommand::Show { approval } => {
            let approval = get(approval, client).await?;
            if output.json {
                output.json_line(&json::approval(&approval));
            } else {
                show::show(&approval, output);
            }
            Ok(Exit::Ok)
        }
        ApprovalsCommand::Approve(args) => decide::approve(args, client, output).await,
        ApprovalsCommand::Deny(args) => decide::deny(args, client, output).await,
    }
}

async fn get(approval_id: String, client: &Client) -> Result<v1::Approval> {
    let response = client.get_approval(v1::GetApprovalRequest { approval_id }).await?;
    response.approval.ok_or_else(|| Error::internal("the server sent no approval"))
}

async fn list(
    filter: &v1::ListApprovalsRequest,
    pages: PageArgs,
    client: &Client,
    output: Output,
) -> Result<Exit> {
    let fetch = |page_size, page_token| {
        let request = v1::ListApprovalsRequest { page_size, page_token, ..filter.clone() };
        async { client.list_approvals(request).await.map(|page| (page.approvals, page.next_page_token)) }
    };
    let now = chrono::Utc::now();
    let header = ["APPROVAL", "STATE", "AGENT", "TOOL", "WHAT", "REQUESTED", "EXPIRES", "SESSION"];
    let (mut table, mut found) = (Table::new(output.out, &header), 0);
    let show = |approval: v1::Approval| {
        found += 1;
        if output.json {
            return output.json_line(&json::approval(&approval));
        }
        let call = approval.call.unwrap_or_default();
        let requested = approval.created_at.as_ref().and_then(convert::from_timestamp);
        let expires = approval.expires_at.as_ref().and_then(convert::from_timestamp);
        let style = render::state_style(&approval.state);
        table.row([
            (approval.id, Some(Style::Bold)),
            (approval.state.clone(), style),
            (approval.agent, None),
            (call.tool.clone(), None),
            (truncated(&headline(&call.tool, &json::embedded(&call.arguments))), None),
            (requested.map(|at| ago(at, now)).unwrap_or_default(), None),
            (expiry(expires, &approval.state), None),
            (approval.session_id, Some(Style::Dim)),
        ]);
    };
    let more = pages.each(fetch, show).await?;
    if output.json {
        return Ok(Exit::Ok);
    }
    if found == 0 {
        output.note(if filter.state == "pending" {
            "no call waits for a decision"
        } else {
            "there are no such approvals"
        });
        return Ok(Exit::Ok);
    }
    table.print();
    if more {
        output.note("there are more: use --limit");
    }
    Ok(Exit::Ok)
}

fn truncated(text: &str) -> String {
    const MAX_CHARS: usize = 60;
    let shown: String = text.chars().take(MAX_CHARS).collect();
    if shown.len() < text.len() { format!("{shown}…") } else { shown }
}

/// Time until a pending approval expires, such as `in 6d 23h`.
fn expiry(at: Option<Timestamp>, state: &str) -> String {
    let Some(at) = at else { return "never".to_owned() };
    if state != ApprovalState::Pending.as_str() {
        return String::new();
    }
    match (at - chrono::Utc::now()).to_std() {
        Ok(left) if left.as_secs() > 0 => {
            format!("in {}", elapsed(std::time::Duration::from_secs(left.as_secs())))
        }
        _ => "now".to_owned(),
    }
}
