//! `remuda sessions`: creates, lists, changes and shows sessions.

mod show;
mod tree;

use remuda_client::Client;
use remuda_domain::{Error, error::Result};
use remuda_proto::{convert, v1};

use super::{
    budget_args::BudgetArgs,
    conversation::{Length, Transcript},
    execution::{self, ExecutionArgs},
    exit::Exit,
    json,
    pages::PageArgs,
    permissions::{self, PermissionArgs, rule_text},
    render,
    runs::RunTable,
    spending,
};
use crate::output::{Output, Style, Table, ago, counted, one_line};

pub(super) const EXAMPLES: &str = "\
Examples:
  remuda sessions create s1 --title 'nightly build'
  remuda sessions list --status open
  remuda sessions show s1              messages, tool calls and results
  remuda sessions show s1 --tail 5 --full
  remuda sessions create docs --workspace site --agent build --model platform/sonnet
  remuda sessions set s1 --agent plan  change the agent that leads it
  remuda sessions set s1 --mode plan --deny \"bash:git push *\"
  remuda sessions tree s1              s1 and its child sessions with state and cost
  remuda sessions queue s1             unfinished runs in execution order
  remuda sessions create boxed --backend docker --image python:3.12
  remuda sessions create reviewer --parent s1
  remuda sessions cancel s1 --tree     cancel all runs of s1 and its child sessions
  remuda sessions close s1 --cancel-runs
  remuda sessions delete s1            with child sessions, runs, messages and events

Commands accept the name or the id (ses_…) of a session.";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum SessionsCommand {
    /// Create a session.
    Create {
        /// Name of the session, unique within the tenant.
        name: Option<String>,
        /// Title for humans.
        #[arg(long, default_value = "")]
        title: String,
        /// Name of the workspace. By default the workspace named "default".
        #[arg(long, default_value = "", hide_default_value = true)]
        workspace: String,
        /// Agent that leads the session. By default the workspace's default agent.
        #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
        agent: String,
        /// Model: platform/NAME, workspace/NAME or NAME. By default the agent's model.
        #[arg(long, default_value = "", hide_default_value = true)]
        model: String,
        /// Pool whose workers execute the runs. By default the pool "default".
        #[arg(long, default_value = "", hide_default_value = true)]
        pool: String,
        /// Parent session (name or id). Cancelling the parent with --tree cancels this session too.
        #[arg(long, value_name = "SESSION", default_value = "", hide_default_value = true)]
        parent: String,
        #[command(flatten)]
        execution: ExecutionArgs,
        #[command(flatten)]
        permissions: PermissionArgs,
        #[command(flatten)]
        budget: BudgetArgs,
    },
    /// List sessions.
    List {
        /// Only sessions with this status.
        #[arg(long, value_enum)]
        status: Option<Status>,
        #[command(flatten)]
        pages: PageArgs,
    },
    /// Show one session and its messages.
    ///
    /// With --json the session comes first, then one document per message.
    Show(show::ShowArgs),
    /// Close a session: it accepts no more runs. Unfinished runs still execute, unless --cancel-runs is given.
    Close {
        #[arg(value_name = "SESSION")]
        session: String,
        /// Also cancel the unfinished runs.
        #[arg(long)]
        cancel_runs: bool,
    },
    /// Delete a session and its child sessions, with their runs, messages and events. Files in the workspace stay.
    Delete {
        #[arg(value_name = "SESSION")]
        session: String,
        /// Cancel unfinished runs first. Otherwise the session must have none.
        #[arg(long)]
        cancel_runs: bool,
    },
    /// Cancel all unfinished runs of a session. The session stays open.
    Cancel {
        #[arg(value_name = "SESSION")]
        session: String,
        /// Also cancel the runs of its child sessions.
        #[arg(long)]
        tree: bool,
        /// Reason, shown in the events of the runs.
        #[arg(long, default_value = "", hide_default_value = true)]
        reason: String,
    },
    /// Change the title, the agent or the permissions of a session, or, before its first run, its model.
    ///
    /// New rules are added after the existing ones, including those that an approval with `always` added. --clear-rules removes
    /// the existing rules first. Changes apply from the next tool call on. `remuda budget set` changes the budget.
    #[command(alias = "update")]
    #[command(group(clap::ArgGroup::new("change").args(["title", "agent", "model", "clear_rules"]).args(permissions::FLAGS)
        .required(true).multiple(true)))]
    Set {
        #[arg(value_name = "SESSION")]
        session: String,
        /// New title.
        #[arg(long)]
        title: Option<String>,
        /// Agent that leads the session. Empty for the workspace's default agent.
        #[arg(long, value_name = "NAME")]
        agent: Option<String>,
        /// Model: platform/NAME, workspace/NAME or NAME. Empty for the agent's model.
        #[arg(long)]
        model: Option<String>,
        #[command(flatten)]
        permissions: PermissionArgs,
        /// Remove the existing rules of the session.
        #[arg(long, help_heading = "Permissions")]
        clear_rules: bool,
    },
    /// Show a session and its child sessions with agent, state and cost.
    Tree {
        #[arg(value_name = "SESSION")]
        session: String,
    },
    /// Show the messages of a session.
    Messages {
        #[arg(value_name = "SESSION")]
        session: String,
        #[command(flatten)]
        pages: PageArgs,
    },
    /// List the unfinished runs of a session in execution order.
    Queue {
        #[arg(value_name = "SESSION")]
        session: String,
        #[command(flatten)]
        pages: PageArgs,
    },
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Status {
    Open,
    Closed,
}

pub(super) async fn execute(command: SessionsCommand, client: &Client, output: Output) -> Result<Exit> {
    match command {
        SessionsCommand::Create {
            name,
            title,
            workspace,
            agent,
            model,
            pool,
            parent,
            execution,
            permissions,
            budget,
        } => {
            let request = v1::CreateSessionRequest {
                name: name.unwrap_or_default(),
                title,
                workspace,
                pool,
                parent,
                execution: execution.into_request(),
                agent,
                model,
                permissions: permissions.into_request(),
                budget: budget.into_request(),
            };
            print_session(client.create_session(request).await?.session, output)
        }
        SessionsCommand::List { status, pages } => list(status, pages, client, output).await,
        SessionsCommand::Show(args) => show::show(args, client, output).await,
        SessionsCommand::Close { session, cancel_runs } => {
            let request = v1::CloseSessionRequest { session, cancel_runs };
            print_session(client.close_session(request).await?.session, output)
        }
        SessionsCommand::Delete { session, cancel_runs } => {
            let request = v1::DeleteSessionRequest { session, cancel_runs };
            let deleted = client.delete_session(request).await?.session_ids;
            if output.json {
                output.json_line(&serde_json::json!({ "deleted_session_ids": deleted }));
            } else {
                deleted
                    .iter()
                    .for_each(|session| output.out.line(&format!("{}  deleted", one_line(session))));
            }
            Ok(Exit::Ok)
        }
        SessionsCommand::Cancel { session, tree, reason } => {
            let request = v1::CancelSessionRequest { session, tree, reason };
            print_cancelled(&client.cancel_session(request).await?, output)
        }
        SessionsCommand::Set { session, title, agent, model, permissions, clear_rules } => {
            let permissions = changed_permissions(&session, permissions, clear_rules, client).await?;
            let request = v1::UpdateSessionRequest {
                session,
                title,
                agent,
                model,
                permissions,
                if_revision: Vec::new(),
            };
            print_session(client.update_session(request).await?.session, output)
        }
        SessionsCommand::Tree { session } => tree::tree(session, client, output).await,
        SessionsCommand::Messages { session, pages } => messages(&session, pages, client, output).await,
        SessionsCommand::Queue { session, pages } => queue(&session, pages, client, output).await,
    }
}

/// The session's new permissions; `None` if no flag changes them.
async fn changed_permissions(
    session: &str,
    permissions: PermissionArgs,
    clear_rules: bool,
    client: &Client,
) -> Result<Option<v1::Permissions>> {
    if permissions == PermissionArgs::default() && !clear_rules {
        return Ok(None);
    }
    let found = client.get_session(v1::GetSessionRequest { session: session.to_owned() }).await?.session;
    let before = found.and_then(|session| session.permissions).unwrap_or_default();
    Ok(Some(permissions.apply_to(before, clear_rules)))
}

fn print_session(session: Option<v1::Session>, output: Output) -> Result<Exit> {
    let session = session.ok_or_else(|| Error::internal("the server sent no session"))?;
    if output.json {
        output.json_line(&json::session(&session));
    } else {
        header(session, output);
    }
    Ok(Exit::Ok)
}

/// Prints the properties of a session.
fn header(session: v1::Session, output: Output) {
    let sink = output.out;
    let status = json::status_name(session.status);
    sink.line(&format!(
        "{}  {}",
        sink.paint(Style::Bold, &one_line(&session.id)),
        render::paint_state(sink, status)
    ));
    let created = session.created_at.as_ref().and_then(convert::from_timestamp);
    let permissions = session.permissions.unwrap_or_default();
    let fields = [
        ("name", session.name),
        ("title", session.title),
        ("pool", session.pool),
        ("workspace", session.workspace_id),
        ("agent", session.agent),
        ("model", session.model),
        ("parent", session.parent_id),
        ("executes", execution::to_text(session.execution.as_ref())),
        ("cost", spending::summary(session.spent.as_ref())),
        ("total", spending::tree_summary(session.spent.as_ref(), session.tree_spent.as_ref())),
        ("budget", spending::budget_summary(session.budget.as_ref())),
        ("mode", permissions.mode.clone()),
        ("approvals", unattended(&permissions.unattended).to_owned()),
        ("approvers", permissions.approvers.join(", ")),
        ("pending", session.pending_runs.to_string()),
        ("running", session.current_run_id),
        ("worker", session.worker_id),
        ("cursor", session.last_cursor.to_string()),
        ("created", created.map(|at| at.to_rfc3339()).unwrap_or_default()),
    ];
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_empty()) {
        sink.line(&format!("  {} {}", sink.paint(Style::Dim, &format!("{name:9}")), one_line(value)));
    }
    for rule in &permissions.rules {
        sink.line(&format!("  {} {}", sink.paint(Style::Dim, "rule     "), one_line(&rule_text(rule))));
    }
}

/// Describes what happens to approval requests.
fn unattended(policy: &str) -> &str {
    match policy {
        "wait" => "approval requests wait for a decision",
        "refuse" => "calls that need approval are refused",
        "fail" => "a call that needs approval fails the run",
        other => other,
    }
}

fn print_cancelled(response: &v1::CancelSessionResponse, output: Output) -> Result<Exit> {
    if output.json {
        output.json_line(&json::cancelled_session(response));
        return Ok(Exit::Ok);
    }
    let (ended, requested) = (response.ended_run_ids.len(), response.requested_run_ids.len());
    if ended + requested == 0 {
        output.out.line("there is no unfinished run to cancel");
        return Ok(Exit::Ok);
    }
    let sessions = counted(response.session_ids.len(), "session");
    output.out.line(&format!("{sessions}: {} cancelled, {requested} being cancelled", counted(ended, "run")));
    for run in &response.requested_run_ids {
        output.out.line(&format!("  {}", one_line(run)));
    }
    Ok(Exit::Ok)
}

async fn list(status: Option<Status>, pages: PageArgs, client: &Client, output: Output) -> Result<Exit> {
    let status = match status {
        None => v1::SessionStatus::Unspecified,
        Some(Status::Open) => v1::SessionStatus::Open,
        Some(Status::Closed) => v1::SessionStatus::Closed,
    };
    let fetch = |page_size, page_token| {
        let request = v1::ListSessionsRequest { page_size, page_token, status: status.into() };
        async { client.list_sessions(request).await.map(|page| (page.sessions, page.next_page_token)) }
    };
    let now = chrono::Utc::now();
    let mut table =
        Table::new(output.out, &["SESSION", "NAME", "STATUS", "PENDING", "POOL", "CREATED", "TITLE"]);
    let show = |session: v1::Session| {
        if output.json {
            return output.json_line(&json::session(&session));
        }
        let status = json::status_name(session.status);
        let created = session.created_at.as_ref().and_then(convert::from_timestamp);
        table.row([
            (session.id, None),
            (session.name, Some(Style::Bold)),
            (status.to_owned(), render::state_style(status)),
            (session.pending_runs.to_string(), None),
            (session.pool, None),
            (created.map(|at| ago(at, now)).unwrap_or_default(), None),
            (session.title, None),
        ]);
    };
    let more = pages.each(fetch, show).await?;
    if !output.json {
        table.print();
        note_more(more, output);
    }
    Ok(Exit::Ok)
}

fn note_more(more: bool, output: Output) {
    if more {
        output.note("there are more: use --limit or --all");
    }
}

async fn queue(session: &str, pages: PageArgs, client: &Client, output: Output) -> Result<Exit> {
    let fetch = |page_size, page_token| {
        let request = v1::ListQueueRequest { session: session.to_owned(), page_size, page_token };
        async { client.list_queue(request).await.map(|page| (page.runs, page.next_page_token)) }
    };
    let mut rows = RunTable::new(output);
    let more = pages.each(fetch, |run| rows.add(&run)).await?;
    rows.print(more);
    Ok(Exit::Ok)
}

async fn messages(session: &str, pages: PageArgs, client: &Client, output: Output) -> Result<Exit> {
    let fetch = |page_size, page_token| {
        let request = v1::ListMessagesRequest { session: session.to_owned(), page_size, page_token };
        async { client.list_messages(request).await.map(|page| (page.messages, page.next_page_token)) }
    };
    let mut transcript = Transcript::new(output.out, Length::Short);
    let show = |message: v1::Message| {
        if output.json {
            output.json_line(&json::message(&message));
        } else {
            transcript.show(&message);
        }
    };
    let more = pages.each(fetch, show).await?;
    transcript.finish();
    note_more(more, output);
    Ok(Exit::Ok)
}
