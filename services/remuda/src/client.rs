//! The commands that talk to a server.

mod approvals;
mod budget;
mod budget_args;
mod calls;
mod cancel;
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
mod talk;
mod tasks;
mod trace;
mod watch;
mod webhooks;
mod workspaces;

use std::process::ExitCode;

use remuda_client::{Client, ClientOptions, SecretString};
use remuda_config::Config;
use remuda_domain::{Code, Error, error::Result, trace::TraceContext};

pub(crate) use exit::Exit;
pub(crate) use explain::lines as explanation_lines;
pub(crate) use pages::PageArgs;
pub(crate) use runs::step_lines;
pub(crate) use workspaces::WorkspacesCommand;

use crate::output::Output;

/// Which server, and as whom.
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
    /// Address of the stream service; the server says it when missing.
    #[arg(
        long,
        global = true,
        env = "REMUDA_STREAM_ENDPOINT",
        value_name = "URL",
        help_heading = "Connection"
    )]
    pub stream_endpoint: Option<String>,
    /// API key. Better in the environment than on the command line, where others can see it.
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
            trace: trace_of_environment(),
            ..ClientOptions::default()
        })
    }
}

/// What this program was started for, if that is traced: tools of traced runs are told so. A trace is never worth an error.
fn trace_of_environment() -> Option<TraceContext> {
    std::env::var("TRACEPARENT").ok()?.parse().ok()
}

/// The client commands. Flattened into the program's own subcommands.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ClientCommand {
    /// Say something to an agent, or call tools, and see it through.
    ///
    /// A text becomes a message to the session's agent, who works until it has an answer: what it says appears as it says it,
    /// each call of a tool as a line with its result beneath. Ctrl-C asks for the run to be cancelled, a second one leaves it.
    ///
    /// With --tool, a run is an ordered list of tool calls instead. Each --arg belongs to the --tool before it. Without --follow
    /// or --detach the command waits for the end and prints the results. Here Ctrl-C only stops watching: the run goes on.
    ///
    /// Runs of one session execute one after another. Without --session each run gets a session of its own.
    #[command(after_help = format!("{}\n\n{}", run::EXAMPLES, exit::HELP))]
    Run(Box<run::RunArgs>),
    /// Create, list and change sessions.
    ///
    /// A session is a serial line of runs with one stream of events. Runs of one session execute strictly one after
    /// another; sessions execute in parallel.
    #[command(subcommand, after_help = sessions::EXAMPLES)]
    Sessions(Box<sessions::SessionsCommand>),
    /// List and inspect runs.
    ///
    /// Finished runs keep their results. `runs wait` exits with the same codes as `run`.
    #[command(subcommand, after_help = runs::EXAMPLES)]
    Runs(runs::RunsCommand),
    /// Show the events of a session or of one run as they happen.
    ///
    /// Replays history first, then follows live. A broken connection is resumed where it broke, without a hole or a
    /// repeated event. Every event has a cursor; --after continues after it.
    #[command(after_help = watch::EXAMPLES)]
    Watch(watch::WatchArgs),
    /// Ask for a run to stop.
    ///
    /// A run that nobody executes is cancelled at once; one that executes is killed by its worker, with all its processes.
    /// Each stage leaves a receipt: requested, delivered, processes dead, slot free.
    #[command(after_help = cancel::EXAMPLES)]
    Cancel(cancel::CancelArgs),
    /// Decide about calls that wait for a person.
    ///
    /// An agent whose rules say `ask` about a call waits until someone approves or denies it. What is decided about is exactly
    /// the call that was shown: its tool and its arguments have a hash.
    #[command(subcommand, after_help = approvals::EXAMPLES)]
    Approvals(approvals::ApprovalsCommand),
    /// Send events to a URL as they happen, signed and in order.
    ///
    /// A webhook tells of a session from now on, or of one run from its beginning to its end. What a receiver does not accept is
    /// tried again for hours, then kept as a dead letter that can be delivered again.
    #[command(subcommand, after_help = webhooks::EXAMPLES)]
    Webhooks(webhooks::WebhooksCommand),
    /// Show and set how much runs and sessions may spend.
    ///
    /// A budget limits tokens, money, or both. Reaching it ends nothing: the run waits, and goes on when the limit is raised.
    #[command(subcommand, after_help = budget::EXAMPLES)]
    Budget(budget::BudgetCommand),
    /// Say why a run is not finished.
    ///
    /// Gives the reason as a stable code and in words: what the run waits for or is at, its position in the session and in the pool,
    /// when it probably starts or ends and what that guess is made of, and what to do about it. After a cancel it shows how far
    /// that has got.
    #[command(after_help = explain::EXAMPLES)]
    Explain {
        #[arg(value_name = "RUN_ID")]
        run: String,
    },
    /// Show where the time and the money of a run went.
    ///
    /// Draws its trace from what the store remembers: waits, attempts, questions to models, calls of tools, and the runs below it. No
    /// collector is needed. Spans that still go on end at the right edge, in an arrow.
    #[command(after_help = trace::EXAMPLES)]
    Trace(trace::TraceArgs),
    /// Watch the fleet live: pools, workers, the slowest and the longest-waiting runs.
    ///
    /// Shows what every pool has to do and how its slots are used, every worker with its lease, your runs that have executed and waited
    /// for longest, and how many runs, tokens and dollars pass. A key explains a run, another one cancels it: `?` lists them.
    /// When the server goes away it says so and comes back by itself.
    ///
    /// Without a terminal, or with --once, one frame is printed as text. With --json there is one document per refresh. Needs an API
    /// key with the scope admin where keys are required; of runs it shows only those of the key's tenant.
    #[command(after_help = crate::top::EXAMPLES)]
    Top(crate::top::TopArgs),
    /// List and drain workers.
    ///
    /// Workers are the processes that execute runs. Needs an API key with the scope admin where keys are required.
    #[command(after_help = fleet::WORKERS_EXAMPLES)]
    Workers {
        #[command(subcommand)]
        command: Option<fleet::WorkersCommand>,
    },
    /// Show what waits, per work pool.
    ///
    /// Runnable sessions are what autoscaling should look at: sessions with a run that could start now.
    #[command(after_help = fleet::QUEUE_EXAMPLES)]
    Queue {
        #[command(subcommand)]
        command: Option<fleet::QueueCommand>,
    },
    /// Show the control plane's background tasks and what they last did.
    ///
    /// They take sessions back from dead workers, wake sessions whose wake-up was lost, end runs whose time is over, let parked
    /// runs go on whose wait is over, stop what a finished run left behind, close approvals that expired, and clean up. One control plane at a time runs them. Needs an API key with the scope admin where keys are required.
    #[command(after_help = tasks::EXAMPLES)]
    Tasks,
    /// Show and change what the processes of the fleet log.
    ///
    /// A change takes effect at once and goes back by itself. It reaches the processes that are there: one that starts later, or
    /// could not be reached, logs what its configuration says. Needs an API key with the scope admin where keys are required.
    #[command(after_help = log_filter::EXAMPLES)]
    LogFilter {
        #[command(subcommand)]
        command: Option<log_filter::LogFilterCommand>,
    },
}

/// Executes a client command. Errors are for [`report`]. Settings are only read where they are needed: most commands know all
/// they need from their flags.
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

/// The commands of `remuda workspace` that ask the server; the others are none of its business.
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

/// Lists sandboxes. A command of its own, because reaping them is none of the server's.
pub(crate) async fn list_sandboxes(connection: &Connection, output: Output) -> Result<ExitCode> {
    Ok(sandboxes::list(&connection.client()?, output).await?.into())
}

/// Prints an error with what to do about it, and gives its exit code.
pub(crate) fn report(error: &Error, output: Output) -> ExitCode {
    output.error(error, hint(error));
    Exit::from(error).into()
}

fn hint(error: &Error) -> Option<&'static str> {
    match error.code() {
        Code::Unavailable if error.message().starts_with("cannot reach") => {
            Some("is `remuda dev` running? --endpoint or REMUDA_ENDPOINT names another server")
        }
        Code::Unauthenticated => {
            Some("give a key with REMUDA_API_KEY or --api-key; `remuda keys create` makes one")
        }
        Code::ImageNotFound => Some(
            "containers are made from images that the engine has: docker pull, docker load or docker import it",
        ),
        Code::ToolsDisabled => Some("make a session with --backend local or --backend docker"),
        Code::ReadRequired | Code::FileChanged => Some("call Read on the file first, in the same session"),
        Code::SessionBusy => {
            Some("--if-busy enqueue waits for the other runs, --if-busy interrupt cancels them")
        }
        Code::MissingModel => Some(
            "describe a model in .openharness/models/*.yaml of the workspace or in platform.models_dir; see `remuda models --help`",
        ),
        Code::ModelNotFound => Some("`remuda models list --dir DIR` shows which there are"),
        Code::AgentNotFound => Some(
            "`remuda workspace show DIR` shows which there are, `remuda workspace check DIR` what is wrong",
        ),
        Code::WorkspaceNotFound => {
            Some("`remuda workspace list` shows which there are; --dir uses a directory as it is")
        }
        Code::ApprovalDecided | Code::ApprovalExpired => {
            Some("`remuda approvals list` shows what still waits for a decision")
        }
        Code::WebhookLimit => {
            Some("`remuda webhooks list --session NAME` shows them, `remuda webhooks delete ID` deletes one")
        }
        Code::WebhookDisabled => Some("`remuda webhooks enable ID` lets deliveries go on"),
        Code::AddressNotAllowed if error.field() == Some("url") => {
            Some("only public addresses may be used; operators allow others with webhooks.allowed")
        }
        Code::ApprovalChanged => Some("`remuda approvals show ID` shows the call as it is now"),
        Code::ModelUnpriced => Some(
            "give the model a price (dollars for a million tokens: `price: {input: 3, output: 15}`), or limit tokens instead",
        ),
        Code::PermissionDenied if error.message().ends_with("the scope approve") => {
            Some("`remuda keys create --scope write --scope approve` makes a key that may decide")
        }
        Code::SessionModelLocked => Some("make another session with this model"),
        Code::ModelKeyRefused => Some(
            "the key comes from the model's definition, usually as ${env.NAME}: is that variable set where it is asked?",
        ),
        _ => None,
    }
}
