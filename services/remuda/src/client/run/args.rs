//! What `remuda run` is told.

use std::{path::PathBuf, time::Duration};

use remuda_proto::v1;

use crate::client::{
    budget_args::BudgetArgs, calls::CallArgs, execution::ExecutionArgs, permissions::PermissionArgs,
};

pub(crate) const EXAMPLES: &str = "\
Ask an agent:
  remuda run \"fix the tests\" --dir .
  remuda run \"and now the docs\" --session s1 --agent build --model platform/sonnet
  git diff | remuda run --quiet > review.md
  remuda run \"what is wrong with this page?\" --attach screenshot.png
  remuda run \"stop, do this first\" --session s1 --if-busy interrupt
  remuda run \"tidy up\" --dir . --deny \"bash:rm *\" --ask \"bash:git push *\" --budget-cost 2.50
  remuda run \"what would have to change?\" --dir . --mode plan
  remuda run \"fix the tests\" --dir . --dry-run     what would happen, with nothing executed

Call tools, without an agent:
  remuda run --tool Bash --arg command='echo hi' --session s1 --follow
  remuda run --tool Write --arg file_path=a.txt --arg content=hello --tool Read --arg file_path=a.txt
  remuda run --parallel --tool Bash --arg command='make lint' --tool Bash --arg command='make test'
  remuda run --calls calls.json --timeout 10m --idempotency-key build-42
  remuda run --backend docker --image busybox:1 --tool Bash --arg command='id'
  id=$(remuda run --tool Bash --arg command='sleep 60' --session s1 --detach)

The answer (or what the tools print) goes to stdout and everything about the run to stderr, so that output can be piped.";

/// What to run, where and how.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// What to say to the session's agent. `-`, or nothing and a pipe, reads it from stdin.
    #[arg(value_name = "TEXT", conflicts_with_all = ["tool", "calls"])]
    pub(super) text: Option<String>,
    /// The agent that answers, and leads the session from here on.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["tool", "calls"], help_heading = "Agent")]
    pub(super) agent: Option<String>,
    /// The model of a new session: platform/NAME, workspace/NAME or NAME. Its agent's choice when missing.
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["tool", "calls"], help_heading = "Agent")]
    pub(super) model: Option<String>,
    /// A picture to look at: png, jpeg, gif or webp. May be repeated.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tool", "calls"], help_heading = "Agent")]
    pub(super) attach: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) calls: CallArgs,
    /// Session to run in; a name that does not exist is created. A new session without a name when missing.
    #[arg(long, short, value_name = "NAME_OR_ID")]
    pub(super) session: Option<String>,
    /// The workspace of a new session, by the name it was registered with (see `remuda workspace add`).
    #[arg(long, value_name = "NAME")]
    pub(super) workspace: Option<String>,
    /// Use this directory as the workspace. It is registered if it is not yet; the workers must have it too.
    #[arg(long, value_name = "DIR", conflicts_with = "workspace")]
    pub(super) dir: Option<PathBuf>,
    /// Time the run may execute, such as 30s or 10m (1ms to 24h; 1h when missing).
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(super) timeout: Option<Duration>,
    #[command(flatten)]
    pub(super) execution: ExecutionArgs,
    /// Permissions are those of a new session; `remuda sessions set` changes them later.
    #[command(flatten)]
    pub(super) permissions: PermissionArgs,
    #[command(flatten)]
    pub(super) budget: BudgetArgs,
    /// Say what would happen, and execute nothing.
    ///
    /// Reads the workspace and the settings of this machine as a worker here would, and asks the model one tiny question. Shows
    /// who would answer and why, with which model, tools and permissions, how long the prompt is, what the first question may
    /// cost, and what is wrong and how to mend it. Exits with 0 if it would run and with 1 if it would not.
    #[arg(long, conflicts_with_all = ["tool", "calls", "detach", "follow", "quiet", "idempotency_key"])]
    pub(super) dry_run: bool,
    /// Do not ask the model anything.
    #[arg(long, requires = "dry_run")]
    pub(super) no_model_test: bool,
    /// What to do when the session already has unfinished runs.
    #[arg(long, value_enum, default_value_t = IfBusy::Enqueue)]
    pub(super) if_busy: IfBusy,
    /// Makes retries safe: the same key with the same request gives the same run.
    #[arg(long, value_name = "KEY")]
    pub(super) idempotency_key: Option<String>,
    /// Go on after a failed call; it then does not fail the run.
    #[arg(long, requires = "what")]
    pub(super) continue_on_error: bool,
    /// Append the calls and their results to the session's messages.
    #[arg(long, requires = "what")]
    pub(super) record: bool,
    /// Show the events live until the end. An agent's work always is; with --json this adds events and pieces of messages.
    #[arg(long, short)]
    pub(super) follow: bool,
    /// Print only the answer, or what the tools print.
    #[arg(long, short, conflicts_with = "follow")]
    pub(super) quiet: bool,
    /// Print only the id of the run and do not wait.
    #[arg(long, short, conflicts_with_all = ["follow", "quiet"])]
    pub(super) detach: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum IfBusy {
    /// Wait for them.
    #[value(alias = "queue")]
    Enqueue,
    /// Refuse the new run.
    Reject,
    /// Cancel them, then run.
    Interrupt,
}

impl From<IfBusy> for v1::IfBusy {
    fn from(if_busy: IfBusy) -> Self {
        match if_busy {
            IfBusy::Enqueue => Self::Enqueue,
            IfBusy::Reject => Self::Reject,
            IfBusy::Interrupt => Self::Interrupt,
        }
    }
}
