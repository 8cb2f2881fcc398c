//! The commands that call a server.

mod approvals;
mod budget;
mod budget_args;
mod calls;
mod cancel;
mod conversation;
mod execution;
mod exit;
mod explain;
mod fleet;
mod json;
mod log_filter;
mod pages;
mod permissions;
mod receipts;
mod render;
mod run;
mod runs;
mod sandboxes;
mod sessions;
mod spending;
mod tasks;
mod trace;
mod watch;
mod webhooks;
mod workspaces;

use std::{path::PathBuf, process::ExitCode};

use remuda_client::{Client, ClientOptions, SecretString};
use remuda_config::Config;
use remuda_domain::{Code, Error, error::Result, trace::TraceContext};

pub(crate) use exit::Exit;
pub(crate) use explain::lines as explanation_lines;
pub(crate) use pages::PageArgs;
pub(crate) use runs::step_lines;
pub(crate) use workspaces::WorkspacesCommand;

use crate::output::Output;

/// The server to call, and the API key.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Connection {
    /// Address of the server.
    #[arg(
        long,
        global = true,
        env = "REMUDA_ENDPOINT",
        default_value = "http://127.0.0.1:7777",
        value_name = "URL"
    )]
    #[arg(help_heading = "Connection")]
    pub endpoint: String,
    /// Address of the stream service. By default the address that the server reports.
    #[arg(
        long,
        global = true,
        env = "REMUDA_STREAM_ENDPOINT",
        value_name = "URL",
        help_heading = "Connection"
    )]
    pub stream_endpoint: Option<String>,
    /// File with the certificate of an authority to trust besides those of the system, in PEM format.
    #[arg(long, global = true, env = "REMUDA_CA", value_name = "FILE", help_heading = "Connection")]
    pub ca: Option<PathBuf>,
    /// API key. Prefer the environment variable: other users of the machine can see command lines.
    #[arg(long, global = true, env = "REMUDA_API_KEY", hide_env_values = true, value_name = "KEY")]
    #[arg(help_heading = "Connection", value_parser = secret)]
    pub api_key: Option<SecretString>,
}

fn secret(text: &str) -> Result<SecretString, std::convert::Infallible> {
    Ok(text.into())
}

impl Connection {
    pub(crate) fn client(&self) -> Result<Client> {
        let filled = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        Client::connect(ClientOptions {
            endpoint: self.endpoint.clone(),
            stream_endpoint: filled(&self.stream_endpoint),
            api_key: self.api_key.clone(),
            ca: self.authority()?,
            trace: trace_from_environment(),
            ..ClientOptions::default()
        })
    }
}

impl Connection {
    /// The certificates in the file of `--ca`.
    fn authority(&self) -> Result<Option<Vec<u8>>> {
        // An empty environment variable means no file.
        let Some(path) = self.ca.as_ref().filter(|path| !path.as_os_str().is_empty()) else {
            return Ok(None);
        };
        let read = std::fs::read(path).map_err(|error| {
            Error::invalid("ca", format!("cannot read {}: {}", path.display(), error.kind()))
                .with_source(error)
        })?;
        Ok(Some(read))
    }
}

/// The trace context of the calling process: tools of traced runs get one in `TRACEPARENT`. An invalid value is ignored.
fn trace_from_environment() -> Option<TraceContext> {
    std::env::var("TRACEPARENT").ok()?.parse().ok()
}

/// The client commands, flattened into the subcommands of the binary.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ClientCommand {
    /// Send a message to an agent, or call tools, and show the result.
    ///
    /// TEXT becomes a message to the session's agent, which works until it has an answer. The terminal shows its text while the
    /// model produces it, and each tool call with its result. Ctrl-C cancels the run; a second Ctrl-C exits without waiting for it.
    ///
    /// With --tool, the run is a list of tool calls instead, executed in order without an agent. Each --arg belongs to the --tool
    /// before it. Without --follow or --detach the command waits for the end of the run and prints the results. Here Ctrl-C only
    /// stops waiting: the run continues.
    ///
    /// Runs of one session execute one after another. Without --session each run gets a new session.
    #[command(after_help = format!("{}\n\n{}", run::EXAMPLES, exit::HELP))]
    Run(Box<run::RunArgs>),
    /// Create, list and change sessions.
    ///
    /// A session is a queue of runs with one event stream. Runs of one session execute strictly one after another; different
    /// sessions execute in parallel.
    #[command(subcommand, after_help = sessions::EXAMPLES)]
    Sessions(Box<sessions::SessionsCommand>),
    /// List and inspect runs.
    ///
    /// Finished runs keep their results. `remuda runs wait` uses the same exit codes as `remuda run`.
    #[command(subcommand, after_help = runs::EXAMPLES)]
    Runs(runs::RunsCommand),
    /// Show the events of a session or of one run live.
    ///
    /// Prints past events first, then new ones as they happen. After a lost connection it continues where it stopped: no event is
    /// missing or repeated. Every event has a cursor; --after starts after that event.
    #[command(after_help = watch::EXAMPLES)]
    Watch(watch::WatchArgs),
    /// Cancel a run.
    ///
    /// A run that no worker executes is cancelled immediately. Otherwise its worker kills it with all its processes. Each stage
    /// is recorded with its time: requested, delivered to the worker, processes dead, slot free.
    #[command(after_help = cancel::EXAMPLES)]
    Cancel(cancel::CancelArgs),
    /// Approve or deny tool calls that wait for a decision.
    ///
    /// If a permission rule says `ask` for a tool call, the agent waits until someone approves or denies it. A decision applies
    /// to exactly the call that was shown: a hash covers the tool and its arguments.
    #[command(subcommand, after_help = approvals::EXAMPLES)]
    Approvals(approvals::ApprovalsCommand),
    /// Send events to a URL, signed and in order.
    ///
    /// A webhook delivers all events of a session from now on, or all events of one run. Failed deliveries are retried for hours,
    /// then kept as dead letters, which can be delivered again.
    #[command(subcommand, after_help = webhooks::EXAMPLES)]
    Webhooks(webhooks::WebhooksCommand),
    /// Show and set the budgets of runs and sessions.
    ///
    /// A budget limits tokens, money, or both. A run that reaches its limit does not fail: it waits, and continues when the limit
    /// is raised.
    #[command(subcommand, after_help = budget::EXAMPLES)]
    Budget(budget::BudgetCommand),
    /// Explain why a run is not finished.
    ///
    /// Prints the reason as a stable code and as text: what the run waits for or is doing, its position in its session and in the
    /// pool, an estimate of its start or end with the inputs of the estimate, and what you can do. For a cancelled run it shows
    /// the stages of the cancellation.
    #[command(after_help = explain::EXAMPLES)]
    Explain {
        #[arg(value_name = "RUN_ID")]
        run: String,
    },
    /// Show what a run spent its time and money on.
    ///
    /// Draws the trace of the run from stored data: waits, attempts, model calls, tool calls and child runs. Needs no trace
    /// collector. Spans that are still open end in an arrow at the right edge.
    #[command(after_help = trace::EXAMPLES)]
    Trace(trace::TraceArgs),
    /// Live view of the fleet: pools, workers, and the runs that execute or wait longest.
    ///
    /// Shows the queue and the used slots of each pool, each worker with its lease, the runs that have executed or waited longest,
    /// and the rates of runs, tokens and dollars. Press `?` for the keys; one explains a run, another cancels it. If the server
    /// cannot be reached, the view says so and reconnects.
    ///
    /// Without a terminal, or with --once, it prints one frame as text. With --json it prints one document per refresh. Where API
    /// keys are required, it needs one with the scope operator, and --tenant to show runs.
    #[command(after_help = crate::top::EXAMPLES)]
    Top(crate::top::TopArgs),
    /// List and drain workers.
    ///
    /// Workers are the processes that execute runs. Where API keys are required, this needs one with the scope operator.
    #[command(after_help = fleet::WORKERS_EXAMPLES)]
    Workers {
        #[command(subcommand)]
        command: Option<fleet::WorkersCommand>,
    },
    /// Show the queue of each pool.
    ///
    /// Use the number of runnable sessions for autoscaling: sessions with a run that could start now.
    #[command(after_help = fleet::QUEUE_EXAMPLES)]
    Queue {
        #[command(subcommand)]
        command: Option<fleet::QueueCommand>,
    },
    /// Show the control plane's background tasks and their last results.
    ///
    /// The tasks reclaim sessions of dead workers, publish lost session tokens again, end runs that exceed their time limit, resume
    /// parked runs whose wait is over, stop child runs of finished runs, expire approvals, and delete old data. One control
    /// plane at a time runs them. Where API keys are required, this needs one with the scope operator.
    #[command(after_help = tasks::EXAMPLES)]
    Tasks,
    /// Show and change the log filters of running processes.
    ///
    /// A change takes effect immediately and expires after a set time. It applies only to processes that run and can be reached;
    /// others use the filter of their configuration. Where API keys are required, this needs one with the scope operator.
    #[command(after_help = log_filter::EXAMPLES)]
    LogFilter {
        #[command(subcommand)]
        command: Option<log_filter::LogFilterCommand>,
    },
}

/// Executes a client command. The caller passes errors to [`report`]. The configuration is read only by commands that need it;
/// most commands need only their flags.
pub(crate) async fn execute(
    command: ClientCommand,
    connection: &Connection,
    config: impl FnOnce() -> Result<Config>,
    output: Output,
) -> Result<ExitCode> {
    let client = connection.client()?;
    let exit = match command {
        ClientCommand::Run(args) => run::run(*args, &client, config, output).await?,
        ClientCommand::Sessions(command) => sessions::execute(*command, &client, output).await?,
        ClientCommand::Runs(command) => runs::execute(command, &client, output).await?,
        ClientCommand::Watch(args) => watch::watch(args, &client, output).await?,
        ClientCommand::Cancel(args) => cancel::cancel(args, &client, output).await?,
        ClientCommand::Approvals(command) => approvals::execute(command, &client, output).await?,
        ClientCommand::Webhooks(command) => webhooks::execute(command, &client, output).await?,
        ClientCommand::Budget(command) => budget::execute(command, &client, output).await?,
        ClientCommand::Explain { run } => explain::explain(run, &client, output).await?,
        ClientCommand::Trace(args) => trace::trace(args, &client, output).await?,
        ClientCommand::Top(args) => crate::top::top(&args, &client, output).await?,
        ClientCommand::Workers { command } => fleet::workers(command, &client, output).await?,
        ClientCommand::Queue { command } => fleet::queue(command, &client, output).await?,
        ClientCommand::Tasks => tasks::tasks(&client, output).await?,
        ClientCommand::LogFilter { command } => log_filter::execute(command, &client, output).await?,
    };
    Ok(exit.into())
}

/// Executes the commands of `remuda workspace` that call the server.
pub(crate) async fn workspaces(
    command: WorkspacesCommand,
    connection: &Connection,
    output: Output,
) -> Result<ExitCode> {
    Ok(workspaces::execute(command, &connection.client()?, output).await?.into())
}

/// An overview as JSON.
pub(crate) fn overview_document(overview: &remuda_proto::v1::GetOverviewResponse) -> serde_json::Value {
    json::overview(overview)
}

/// Lists sandboxes. Apart from `execute`, because the other sandbox commands do not call the server.
pub(crate) async fn list_sandboxes(connection: &Connection, output: Output) -> Result<ExitCode> {
    Ok(sandboxes::list(&connection.client()?, output).await?.into())
}

/// Prints an error with a hint, and returns its exit code.
pub(crate) fn report(error: &Error, output: Output) -> ExitCode {
    output.error(error, hint(error));
    Exit::from(error).into()
}

fn hint(error: &Error) -> Option<&'static str> {
    match error.code() {
        Code::Unavailable if error.message().starts_with("cannot reach") => {
            Some("is `remuda dev` running? use --endpoint or REMUDA_ENDPOINT for another server")
        }
        Code::Unauthenticated => Some("set REMUDA_API_KEY or --api-key; `remuda keys create` creates a key"),
        Code::ImageNotFound => {
            Some("the image must be present on the worker: use docker pull, docker load or docker import")
        }
        Code::ToolsDisabled => Some("create a session with --backend local or --backend docker"),
        Code::ReadRequired | Code::FileChanged => Some("call Read on the file first, in the same session"),
        Code::SessionBusy => {
            Some("--if-busy enqueue waits for the other runs, --if-busy interrupt cancels them")
        }
        Code::MissingModel => Some(
            "describe a model in .openharness/models/*.yaml of the workspace or in platform.models_dir; see `remuda models --help`",
        ),
        Code::ModelNotFound => Some("`remuda models list --dir DIR` lists the models"),
        Code::AgentNotFound => Some(
            "`remuda workspace show DIR` lists the agents, `remuda workspace check DIR` finds mistakes in their definitions",
        ),
        Code::WorkspaceNotFound => Some(
            "`remuda workspace list` lists the workspaces; --dir uses a directory that is not registered",
        ),
        Code::ApprovalDecided | Code::ApprovalExpired => {
            Some("`remuda approvals list` lists the pending approvals")
        }
        Code::WebhookLimit => {
            Some("`remuda webhooks list --session NAME` lists them, `remuda webhooks delete ID` deletes one")
        }
        Code::WebhookDisabled => Some("`remuda webhooks enable ID` resumes deliveries"),
        Code::AddressNotAllowed if error.field() == Some("url") => {
            Some("only public addresses are allowed; the operator can allow others with webhooks.allowed")
        }
        Code::ApprovalChanged => Some("`remuda approvals show ID` shows the current call"),
        Code::ModelUnpriced => Some(
            "give the model a price (dollars per million tokens: `price: {input: 3, output: 15}`), or limit tokens instead",
        ),
        Code::PermissionDenied if error.message().ends_with("the scope approve") => {
            Some("`remuda keys create --scope write --scope approve` creates a key that may decide")
        }
        Code::PermissionDenied if error.message().ends_with("the scope operator") => {
            Some("`remuda keys create --scope operator` creates a key of the operator, where the database is")
        }
        Code::SessionModelLocked => Some("create another session for this model"),
        Code::ModelKeyRefused => Some(
            "the API key comes from the model's definition, usually as ${env.NAME}: is that variable set for the process that calls the model?",
        ),
        _ => None,
    }
}
