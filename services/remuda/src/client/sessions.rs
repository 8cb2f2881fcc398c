//! `remuda sessions`: serial lines of runs.

use remuda_client::Client;
use remuda_domain::{Error, error::Result};
use remuda_proto::{convert, v1};
use serde_json::Value;

use super::{
    execution::{self, ExecutionArgs},
    exit::Exit,
    json,
    pages::PageArgs,
    render,
    runs::RunTable,
};
use crate::output::{Output, Style, Table, ago, one_line, sanitize};

pub(super) const EXAMPLES: &str = "\
Examples:
  remuda sessions create s1 --title 'nightly build'
  remuda sessions list --status open
  remuda sessions show s1
  remuda sessions queue s1             what waits, in the order in which it will execute
  remuda sessions create boxed --backend docker --image python:3.12
  remuda sessions create reviewer --parent s1
  remuda sessions cancel s1 --tree     stop what s1 and the sessions below it wait for and execute
  remuda sessions close s1 --cancel-runs

Wherever a session is named, its name and its id (ses_…) both work.";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum SessionsCommand {
    /// Create a session.
    Create {
        /// A name of your choice, unique within the tenant.
        name: Option<String>,
        #[arg(long, default_value = "")]
        title: String,
        /// Name of the workspace; the default workspace when missing.
        #[arg(long, default_value = "", hide_default_value = true)]
        workspace: String,
        /// Work pool; "default" when missing.
        #[arg(long, default_value = "", hide_default_value = true)]
        pool: String,
        /// The session that this one works for (name or id): cancelling its tree cancels this one too.
        #[arg(long, value_name = "SESSION", default_value = "", hide_default_value = true)]
        parent: String,
        #[command(flatten)]
        execution: ExecutionArgs,
    },
    /// List sessions.
    List {
        #[arg(long, value_enum)]
        status: Option<Status>,
        #[command(flatten)]
        pages: PageArgs,
    },
    /// Show one session.
    Show {
        #[arg(value_name = "SESSION")]
        session: String,
    },
    /// Take no more runs; those that wait or execute finish, or are cancelled with --cancel-runs.
    Close {
        #[arg(value_name = "SESSION")]
        session: String,
        /// Also cancel the runs that wait or execute.
        #[arg(long)]
        cancel_runs: bool,
    },
    /// Ask for all unfinished runs of a session to stop. The session stays open.
    Cancel {
        #[arg(value_name = "SESSION")]
        session: String,
        /// Also those of the sessions below it.
        #[arg(long)]
        tree: bool,
        /// Why; shown to everybody who watches the runs.
        #[arg(long, default_value = "", hide_default_value = true)]
        reason: String,
    },
    /// Change the title of a session.
    Update {
        #[arg(value_name = "SESSION")]
        session: String,
        #[arg(long)]
        title: String,
    },
    /// Show the messages of a session.
    Messages {
        #[arg(value_name = "SESSION")]
        session: String,
        #[command(flatten)]
        pages: PageArgs,
    },
    /// List the unfinished runs in the order in which they will execute.
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
        SessionsCommand::Create { name, title, workspace, pool, parent, execution } => {
            let name = name.unwrap_or_default();
            let execution = execution.into_request();
            let request = v1::CreateSessionRequest { name, title, workspace, pool, parent, execution };
            one(client.create_session(request).await?.session, output)
        }
        SessionsCommand::List { status, pages } => list(status, pages, client, output).await,
        SessionsCommand::Show { session } => {
            one(client.get_session(v1::GetSessionRequest { session }).await?.session, output)
        }
        SessionsCommand::Close { session, cancel_runs } => {
            let request = v1::CloseSessionRequest { session, cancel_runs };
            one(client.close_session(request).await?.session, output)
        }
        SessionsCommand::Cancel { session, tree, reason } => {
            let request = v1::CancelSessionRequest { session, tree, reason };
            cancelled(&client.cancel_session(request).await?, output)
        }
        SessionsCommand::Update { session, title } => {
            let request = v1::UpdateSessionRequest { session, title: Some(title) };
            one(client.update_session(request).await?.session, output)
        }
        SessionsCommand::Messages { session, pages } => messages(&session, pages, client, output).await,
        SessionsCommand::Queue { session, pages } => queue(&session, pages, client, output).await,
    }
}

fn one(session: Option<v1::Session>, output: Output) -> Result<Exit> {
    let session = session.ok_or_else(|| Error::internal("the server sent no session"))?;
    if output.json {
        output.json_line(&json::session(&session));
        return Ok(Exit::Ok);
    }
    let sink = output.out;
    let status = json::status_name(session.status);
    sink.line(&format!(
        "{}  {}",
        sink.paint(Style::Bold, &one_line(&session.id)),
        render::paint_state(sink, status)
    ));
    let created = session.created_at.as_ref().and_then(convert::from_timestamp);
    let fields = [
        ("name", session.name),
        ("title", session.title),
        ("pool", session.pool),
        ("workspace", session.workspace_id),
        ("parent", session.parent_id),
        ("executes", execution::in_words(session.execution.as_ref())),
        ("pending", session.pending_runs.to_string()),
        ("running", session.current_run_id),
        ("worker", session.worker_id),
        ("cursor", session.last_cursor.to_string()),
        ("created", created.map(|at| at.to_rfc3339()).unwrap_or_default()),
    ];
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_empty()) {
        sink.line(&format!("  {} {}", sink.paint(Style::Dim, &format!("{name:9}")), one_line(value)));
    }
    Ok(Exit::Ok)
}

fn cancelled(answer: &v1::CancelSessionResponse, output: Output) -> Result<Exit> {
    if output.json {
        output.json_line(&json::cancelled_session(answer));
        return Ok(Exit::Ok);
    }
    let (ended, requested) = (answer.ended_run_ids.len(), answer.requested_run_ids.len());
    if ended + requested == 0 {
        output.out.line("there was nothing to cancel");
        return Ok(Exit::Ok);
    }
    let sessions = counted(answer.session_ids.len(), "session");
    output.out.line(&format!("{sessions}: {} cancelled, {requested} being stopped", counted(ended, "run")));
    for run in &answer.requested_run_ids {
        output.out.line(&format!("  {}", one_line(run)));
    }
    Ok(Exit::Ok)
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
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
        say_more(more, output);
    }
    Ok(Exit::Ok)
}

fn say_more(more: bool, output: Output) {
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
    let show = |message: v1::Message| {
        if output.json {
            return output.json_line(&json::message(&message));
        }
        let sink = output.out;
        let role = sink.paint(Style::Bold, &one_line(&message.role));
        sink.line(&format!("{role}  {}", sink.paint(Style::Dim, &one_line(&message.run_id))));
        if let Value::Array(parts) = json::embedded(&message.parts) {
            parts.iter().for_each(|part| show_part(part, output));
        }
    };
    let more = pages.each(fetch, show).await?;
    say_more(more, output);
    Ok(Exit::Ok)
}

/// Prints one part of a message, indented.
fn show_part(part: &Value, output: Output) {
    let sink = output.out;
    let text = match part["type"].as_str() {
        Some("text") => sanitize(part["text"].as_str().unwrap_or_default()),
        Some("tool_use") => {
            let tool = one_line(part["call"]["tool"].as_str().unwrap_or_default());
            format!("▸ {tool} {}", one_line(&part["call"]["arguments"].to_string()))
        }
        Some("tool_result") => {
            let printed = render::printed(&part["outcome"]["output"]);
            format!("{}\n{}{}", render::outcome_line(sink, &part["outcome"]), printed.out, printed.err)
        }
        _ => one_line(&part.to_string()),
    };
    for line in text.lines() {
        sink.line(&format!("  {line}"));
    }
}
