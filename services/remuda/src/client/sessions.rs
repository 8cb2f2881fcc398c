//! `remuda sessions`: serial lines of runs.

mod show;
mod tree;

use remuda_client::Client;
use remuda_domain::{Error, error::Result};
use remuda_proto::{convert, v1};

use super::{
    budget_args::BudgetArgs,
    execution::{self, ExecutionArgs},
    exit::Exit,
    json,
    pages::PageArgs,
    permissions::{self, PermissionArgs, rule_words},
    render,
    runs::RunTable,
    spending,
    talk::{Length, Transcript},
};
use crate::output::{Output, Style, Table, ago, counted, one_line};

pub(super) const EXAMPLES: &str = "\
Examples:
  remuda sessions create s1 --title 'nightly build'
  remuda sessions list --status open
  remuda sessions show s1              what was said, with calls and results
  remuda sessions show s1 --tail 5 --full
  remuda sessions create docs --workspace site --agent build --model platform/sonnet
  remuda sessions set s1 --agent plan  who leads it from here on
  remuda sessions set s1 --mode plan --deny \"bash:git push *\"
  remuda sessions tree s1              the sessions that work for s1, how they stand and what they cost
  remuda sessions queue s1             what waits, in the order in which it will execute
  remuda sessions create boxed --backend docker --image python:3.12
  remuda sessions create reviewer --parent s1
  remuda sessions cancel s1 --tree     stop what s1 and the sessions below it wait for and execute
  remuda sessions close s1 --cancel-runs
  remuda sessions delete s1            with the sessions below it, their runs, messages and events

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
        /// The agent that leads it; the workspace's default one when missing.
        #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
        agent: String,
        /// platform/NAME, workspace/NAME or NAME; its agent's choice when missing.
        #[arg(long, default_value = "", hide_default_value = true)]
        model: String,
        /// Work pool; "default" when missing.
        #[arg(long, default_value = "", hide_default_value = true)]
        pool: String,
        /// The session that this one works for (name or id): cancelling its tree cancels this one too.
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
        #[arg(long, value_enum)]
        status: Option<Status>,
        #[command(flatten)]
        pages: PageArgs,
    },
    /// Show one session and what was said in it.
    ///
    /// With --json the session comes first and then one document for each message.
    Show(show::ShowArgs),
    /// Take no more runs; those that wait or execute finish, or are cancelled with --cancel-runs.
    Close {
        #[arg(value_name = "SESSION")]
        session: String,
        /// Also cancel the runs that wait or execute.
        #[arg(long)]
        cancel_runs: bool,
    },
    /// Delete a session, the sessions below it and everything that hangs on them. Files in the workspace stay.
    Delete {
        #[arg(value_name = "SESSION")]
        session: String,
        /// Cancel the runs that wait or execute first; without this they must have ended.
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
    /// Change a session: its title, the agent that leads it, what its agents may do, or, before its first run, its model.
    ///
    /// Rules are added after those that the session has, also after those that people answered `always` with; --clear-rules
    /// begins anew. They count from the next call of a tool on. How much it may spend is set by `remuda budget set`.
    #[command(alias = "update")]
    #[command(group(clap::ArgGroup::new("change").args(["title", "agent", "model", "clear_rules"]).args(permissions::FLAGS)
        .required(true).multiple(true)))]
    Set {
        #[arg(value_name = "SESSION")]
        session: String,
        #[arg(long)]
        title: Option<String>,
        /// Empty for the workspace's default one.
        #[arg(long, value_name = "NAME")]
        agent: Option<String>,
        /// platform/NAME, workspace/NAME or NAME; empty for its agent's choice.
        #[arg(long)]
        model: Option<String>,
        #[command(flatten)]
        permissions: PermissionArgs,
        /// Forget the rules that the session has.
        #[arg(long, help_heading = "Permissions")]
        clear_rules: bool,
    },
    /// Show a session and the sessions below it: who works in them, how they stand, what they cost.
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
            one(client.create_session(request).await?.session, output)
        }
        SessionsCommand::List { status, pages } => list(status, pages, client, output).await,
        SessionsCommand::Show(args) => show::show(args, client, output).await,
        SessionsCommand::Close { session, cancel_runs } => {
            let request = v1::CloseSessionRequest { session, cancel_runs };
            one(client.close_session(request).await?.session, output)
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
            cancelled(&client.cancel_session(request).await?, output)
        }
        SessionsCommand::Set { session, title, agent, model, permissions, clear_rules } => {
            let permissions = changed(&session, permissions, clear_rules, client).await?;
            let request = v1::UpdateSessionRequest {
                session,
                title,
                agent,
                model,
                permissions,
                if_revision: Vec::new(),
            };
            one(client.update_session(request).await?.session, output)
        }
        SessionsCommand::Tree { session } => tree::tree(session, client, output).await,
        SessionsCommand::Messages { session, pages } => messages(&session, pages, client, output).await,
        SessionsCommand::Queue { session, pages } => queue(&session, pages, client, output).await,
    }
}

/// What the session's permissions become; nothing if nothing was said of them.
async fn changed(
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
    Ok(Some(permissions.change(before, clear_rules)))
}

fn one(session: Option<v1::Session>, output: Output) -> Result<Exit> {
    let session = session.ok_or_else(|| Error::internal("the server sent no session"))?;
    if output.json {
        output.json_line(&json::session(&session));
    } else {
        header(session, output);
    }
    Ok(Exit::Ok)
}

/// What a session is, for people.
fn header(session: v1::Session, output: Output) {
    let sink = output.out;
    let status = json::status_name(session.status);
    sink.line(&format!(
        "{}  {}",
        sink.paint(Style::Bold, &one_line(&session.id)),
        render::paint_state(sink, status)
    ));
    let created = session.created_at.as_ref().and_then(convert::from_timestamp);
    let said = session.permissions.unwrap_or_default();
    let fields = [
        ("name", session.name),
        ("title", session.title),
        ("pool", session.pool),
        ("workspace", session.workspace_id),
        ("agent", session.agent),
        ("model", session.model),
        ("parent", session.parent_id),
        ("executes", execution::in_words(session.execution.as_ref())),
        ("cost", spending::words(session.spent.as_ref())),
        ("in all", spending::tree_words(session.spent.as_ref(), session.tree_spent.as_ref())),
        ("budget", spending::budget_words(session.budget.as_ref())),
        ("mode", said.mode.clone()),
        ("asked", unattended(&said.unattended).to_owned()),
        ("deciders", said.approvers.join(", ")),
        ("pending", session.pending_runs.to_string()),
        ("running", session.current_run_id),
        ("worker", session.worker_id),
        ("cursor", session.last_cursor.to_string()),
        ("created", created.map(|at| at.to_rfc3339()).unwrap_or_default()),
    ];
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_empty()) {
        sink.line(&format!("  {} {}", sink.paint(Style::Dim, &format!("{name:9}")), one_line(value)));
    }
    for rule in &said.rules {
        sink.line(&format!("  {} {}", sink.paint(Style::Dim, "rule     "), one_line(&rule_words(rule))));
    }
}

/// What becomes of questions to people, if that was said.
fn unattended(policy: &str) -> &str {
    match policy {
        "wait" => "questions wait until someone answers",
        "refuse" => "questions are refused: nobody is there",
        "fail" => "a question fails the run: nobody is there",
        other => other,
    }
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
    say_more(more, output);
    Ok(Exit::Ok)
}
