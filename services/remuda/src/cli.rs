//! Command line arguments and subcommands.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use remuda_config::LoadOptions;

use crate::{
    bus::{self, BusCommand},
    client::{ClientCommand, Connection},
    config_command::ConfigCommand,
    demo::DemoArgs,
    doctor,
    gc::{self, GcArgs},
    keys::KeysCommand,
    models::{self, ModelsCommand},
    nats_auth::{self, NatsAuthArgs},
    output::ColorChoice,
    sandboxes::{self, SandboxesCommand},
    tools,
    workspace::{self, WorkspaceCommand},
};

const AFTER_HELP: &str = "\
First steps:
  remuda demo                                  a guided demo; needs no other service
  remuda dev                                   start all services in one process
  remuda run --tool Bash --arg command='echo hi' --session s1 --follow
  remuda watch s1                              follow the events of a session
  remuda explain RUN_ID                        why is this run not finished, and when will it be?
  remuda top                                   live view of workers, pools and runs

With an agent:
  remuda workspace init                        make this directory a workspace; then describe a model in .openharness/models
  remuda models test NAME                      check that the model answers
  remuda run \"fix the tests\" --dir . --session s1
  remuda sessions show s1                      the messages and tool calls of the session
  remuda run \"fix the tests\" --dir . --dry-run check what a run would do, without executing it
  remuda approvals list                        tool calls that wait for your decision

Settings are read from a file (--config, REMUDA_CONFIG, ./remuda.toml or /etc/remuda/remuda.toml). REMUDA_<SECTION>__<KEY>
variables override the file, and flags override both. `remuda config show --default` prints all settings with explanations.";

/// Runs AI agents on a fleet of workers: serial sessions, parallel workers, resumable event streams.
#[derive(Debug, Parser)]
#[command(name = "remuda", version, after_help = AFTER_HELP, propagate_version = true, max_term_width = 120)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Path of the configuration file.
    #[arg(long, global = true, env = "REMUDA_CONFIG", value_name = "FILE", help_heading = "Settings")]
    config: Option<PathBuf>,
    /// Override one setting, such as --set worker.slots=4. May be repeated.
    #[arg(long, global = true, value_name = "KEY=VALUE", value_parser = key_value, help_heading = "Settings")]
    set: Vec<(String, String)>,
    /// Print JSON for scripts, one document per line.
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
    /// Sources of the settings, including the flags that set one.
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
    /// Start all services in one process, with SQLite, an in-process queue and one worker.
    ///
    /// Needs no other service. Accepted runs survive a restart, even after SIGKILL, and are finished then. On a loopback address
    /// no API key is needed, unless --require-keys is given.
    #[command(after_help = "Example:\n  remuda dev --data-dir ./remuda-data --listen 127.0.0.1:7777")]
    Dev(DevArgs),
    /// Start all services in one process, with PostgreSQL and NATS.
    All(ServeArgs),
    /// Start a control plane, which accepts, queues, cancels and explains runs.
    ControlPlane(ServeArgs),
    /// Start a worker, which claims sessions and executes their runs.
    ///
    /// SIGTERM drains it: the worker claims no more sessions and hands its sessions over at the next step boundary. After
    /// worker.drain_deadline it kills the tools that still run. A second signal makes it exit immediately.
    Worker(WorkerArgs),
    /// Start a stream service, which sends past and new events to clients.
    Stream(ServeArgs),
    /// Migrate the database schema to the version that this binary needs.
    Migrate,
    /// Create, list and revoke API keys.
    ///
    /// Works on the database directly and needs no API key. Access to the database settings is enough to create keys.
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Manage the keys with which services sign their messages to each other.
    #[command(subcommand, after_help = bus::EXAMPLES)]
    Bus(BusCommand),
    /// Create the accounts of NATS: a key for each role, which may do what the role needs and nothing else.
    ///
    /// Writes the accounts for the configuration of nats-server (2.9 or later) and one file per role for nats.credentials_file:
    /// control-plane, worker, stream, and admin for people and for processes with all roles (`remuda all`).
    #[command(after_help = nats_auth::EXAMPLES)]
    NatsAuth(NatsAuthArgs),
    /// Delete finished runs, idle sessions and events that are older than their retention time.
    ///
    /// Servers do this automatically, by limits.runs_kept, limits.sessions_kept and limits.events_kept. This command does it now,
    /// optionally with other times. It works on the database directly and needs no API key. It can be interrupted and repeated at
    /// any time, also while servers run.
    ///
    /// A run is deleted together with its child runs. It stays while its idempotency key is valid or a webhook delivery about it
    /// is pending. A session stays while it has unfinished runs or child sessions. Deleted data cannot be restored.
    #[command(after_help = gc::EXAMPLES)]
    Gc(GcArgs),
    /// List the sandboxes (containers and others) in which tools execute, and remove leftover ones.
    #[command(subcommand, after_help = sandboxes::EXAMPLES)]
    Sandboxes(SandboxesCommand),
    /// Create, check and show workspaces: directories that define agents, models and skills.
    #[command(subcommand, after_help = workspace::EXAMPLES, visible_alias = "workspaces")]
    Workspace(WorkspaceCommand),
    /// List models and test whether they answer.
    #[command(subcommand, after_help = models::EXAMPLES)]
    Models(ModelsCommand),
    /// List the native tools: what they do, and which permission governs them.
    #[command(after_help = tools::EXAMPLES)]
    Tools,
    /// Check and show the configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Check everything that a start depends on, and say how to fix problems.
    Doctor {
        /// Which services to check. The default follows from store.url.
        #[arg(long, value_enum)]
        mode: Option<doctor::Mode>,
    },
    /// Show what Remuda does in a few seconds, with a private server that is removed afterwards.
    Demo(DemoArgs),
    /// Print a shell completion script.
    #[command(after_help = "Example:\n  remuda completions bash > /etc/bash_completion.d/remuda")]
    Completions { shell: clap_complete::Shell },
    /// Kill the tools of a worker that died. Started by workers, not by users.
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
    /// Directory of the database and the workspaces.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Number of sessions to execute at the same time.
    #[arg(long, value_name = "N")]
    slots: Option<u32>,
    /// Require API keys even on a loopback address.
    #[arg(long)]
    require_keys: bool,
}

#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    /// Number of sessions to execute at the same time.
    #[arg(long, value_name = "N")]
    slots: Option<u32>,
    /// Pool to claim sessions from.
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
}
