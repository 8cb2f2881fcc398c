//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use remuda_config::LoadOptions;

use crate::{
    client::{ClientCommand, Connection},
    config_command::ConfigCommand,
    demo::DemoArgs,
    doctor,
    gc::{self, GcArgs},
    keys::KeysCommand,
    models::{self, ModelsCommand},
    output::ColorChoice,
    sandboxes::{self, SandboxesCommand},
    workspace::{self, WorkspaceCommand},
};

const AFTER_HELP: &str = "\
Five minutes:
  remuda demo                                  see it work, nothing else needed
  remuda dev                                   start everything in one process
  remuda run --tool Bash --arg command='echo hi' --session s1 --follow
  remuda watch s1                              follow a session
  remuda explain RUN_ID                        why is this run not finished, and when will it be?
  remuda top                                   the fleet, live

With an agent:
  remuda workspace init                        make this directory a workspace; then describe a model in .openharness/models
  remuda models test NAME                      does the model answer?
  remuda run \"fix the tests\" --dir . --session s1
  remuda sessions show s1                      what was said and done
  remuda run \"fix the tests\" --dir . --dry-run what would happen, with nothing executed
  remuda approvals list                        which calls wait for your decision

Settings come from a file (--config, REMUDA_CONFIG, ./remuda.toml, /etc/remuda/remuda.toml), then from REMUDA_<SECTION>__<KEY>
variables, then from flags. `remuda config show --default` prints every one with its explanation.";

/// Runs fleets of AI agents: serial sessions, parallel workers, one resumable event stream.
#[derive(Debug, Parser)]
#[command(name = "remuda", version, after_help = AFTER_HELP, propagate_version = true, max_term_width = 120)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Configuration file.
    #[arg(long, global = true, env = "REMUDA_CONFIG", value_name = "FILE", help_heading = "Settings")]
    config: Option<PathBuf>,
    /// Override one setting, e.g. --set worker.slots=4. May be repeated.
    #[arg(long, global = true, value_name = "KEY=VALUE", value_parser = key_value, help_heading = "Settings")]
    set: Vec<(String, String)>,
    /// Write JSON, one document per line, for scripts.
    #[arg(long, global = true, help_heading = "Output")]
    pub(crate) json: bool,
    /// When to use colour.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN", help_heading = "Output")]
    pub(crate) color: ColorChoice,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.trim().to_owned(), value.to_owned()))
}

impl Cli {
    /// Where settings come from, with the flags that stand for one.
    pub(crate) fn load_options(&self) -> LoadOptions {
        let mut overrides = self.set.clone();
        let mut add =
            |key: &str, value: Option<String>| overrides.extend(value.map(|value| (key.to_owned(), value)));
        match &self.command {
            Command::Dev(args) => {
                add("data_dir", args.data_dir.as_ref().map(|path| path.to_string_lossy().into_owned()));
                add("server.listen", args.serve.listen.clone());
                add("worker.slots", args.slots.map(|slots| slots.to_string()));
                add("server.require_keys", args.require_keys.then(|| "always".to_owned()));
            }
            Command::All(args) | Command::ControlPlane(args) => add("server.listen", args.listen.clone()),
            Command::Stream(args) => add("stream.listen", args.listen.clone()),
            Command::Worker(args) => {
                add("worker.slots", args.slots.map(|slots| slots.to_string()));
                add("worker.pool", args.pool.clone());
            }
            _ => {}
        }
        LoadOptions::from_process(self.config.clone(), overrides)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start everything in one process: SQLite, in-process queue, one worker.
    ///
    /// Needs no other service and survives a restart, also after SIGKILL: what was accepted is finished. On a loopback
    /// address no API key is needed unless --require-keys is given.
    #[command(after_help = "Example:\n  remuda dev --data-dir ./remuda-data --listen 127.0.0.1:7777")]
    Dev(DevArgs),
    /// Start everything in one process on PostgreSQL and NATS.
    All(ServeArgs),
    /// Start a control plane: accepts, orders, cancels and explains runs.
    ControlPlane(ServeArgs),
    /// Start a worker: takes sessions and executes their runs.
    ///
    /// SIGTERM drains it: nothing new is taken, running sessions are handed over at the next step boundary, and what still
    /// runs after worker.drain_deadline is killed. A second signal exits at once.
    Worker(WorkerArgs),
    /// Start a stream service: replays and follows events.
    Stream(ServeArgs),
    /// Bring the database schema to the version this binary needs.
    Migrate,
    /// Create, list and revoke API keys.
    ///
    /// Works on the database directly: whoever may read its configuration may make keys.
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Delete finished runs, idle sessions, and events that are older than they are to be kept.
    ///
    /// Servers do this by themselves, by limits.runs_kept, limits.sessions_kept and limits.events_kept; this does it now, or by other times.
    /// It works on the database directly: whoever may read its configuration may delete. It can be interrupted and started again at any
    /// time, also while servers run. A run goes together with those below it, and stays while its idempotency key holds or a
    /// webhook has to be told of it; a session stays while it has unfinished runs or sessions below it. What is deleted is gone for good.
    #[command(after_help = gc::EXAMPLES)]
    Gc(GcArgs),
    /// List containers and other places in which tools execute, and remove what is left behind.
    #[command(subcommand, after_help = sandboxes::EXAMPLES)]
    Sandboxes(SandboxesCommand),
    /// Make, check and show directories that declare agents, models and skills.
    #[command(subcommand, after_help = workspace::EXAMPLES, visible_alias = "workspaces")]
    Workspace(WorkspaceCommand),
    /// List models, and see whether they answer.
    #[command(subcommand, after_help = models::EXAMPLES)]
    Models(ModelsCommand),
    /// Check and show the configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Look at everything a start depends on and say how to mend what is wrong.
    Doctor {
        /// Which services to expect; by default what store.url says.
        #[arg(long, value_enum)]
        mode: Option<doctor::Mode>,
    },
    /// Show what Remuda does, on a private embedded stack, in a few seconds.
    Demo(DemoArgs),
    /// Print a shell completion script.
    #[command(after_help = "Example:\n  remuda completions bash > /etc/bash_completion.d/remuda")]
    Completions { shell: clap_complete::Shell },
    /// Kill tools whose worker died. Started by workers, not by people.
    #[command(hide = true)]
    Guard,
    #[command(flatten)]
    Client(ClientCommand),
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Address to listen on.
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) listen: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DevArgs {
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
    /// Where the database and the workspaces live.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Sessions executed at once.
    #[arg(long, value_name = "N")]
    slots: Option<u32>,
    /// Demand API keys even on a loopback address.
    #[arg(long)]
    require_keys: bool,
}

#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    /// Sessions executed at once.
    #[arg(long, value_name = "N")]
    slots: Option<u32>,
    /// Work pool to take sessions from.
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
}
