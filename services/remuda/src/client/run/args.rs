//! Arguments of `remuda run`.

use std::{path::PathBuf, time::Duration};

use remuda_proto::v1;

use crate::client::{
    budget_args::BudgetArgs, calls::CallArgs, execution::ExecutionArgs, permissions::PermissionArgs,
};

pub(crate) const EXAMPLES: &str = "\
Send a message to an agent:
  remuda run \"fix the tests\" --dir .
  remuda run \"and now the docs\" --session s1 --agent build --model platform/sonnet
  git diff | remuda run --quiet > review.md
  remuda run \"what is wrong with this page?\" --attach screenshot.png
  remuda run \"stop, do this first\" --session s1 --if-busy interrupt
  remuda run \"review the change\" --label team=core --label change=4711
  remuda run \"tidy up\" --dir . --deny \"bash:rm *\" --ask \"bash:git push *\" --budget-cost 2.50
  remuda run \"what would have to change?\" --dir . --mode plan
  remuda run \"fix the tests\" --dir . --dry-run     check what it would do, without executing it

Call tools, without an agent:
  remuda run --tool Bash --arg command='echo hi' --session s1 --follow
  remuda run --tool Write --arg file_path=a.txt --arg content=hello --tool Read --arg file_path=a.txt
  remuda run --parallel --tool Bash --arg command='make lint' --tool Bash --arg command='make test'
  remuda run --calls calls.json --timeout 10m --idempotency-key build-42
  remuda run --backend docker --image busybox:1 --tool Bash --arg command='id'
  id=$(remuda run --tool Bash --arg command='sleep 60' --session s1 --detach)

The answer, or the output of the tools, goes to stdout and everything else to stderr, so that the output can be piped.";

/// What to run, where and how.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Message to the session's agent. Read from stdin if it is `-`, or if it is missing and stdin is a pipe.
    #[arg(value_name = "TEXT", conflicts_with_all = ["tool", "calls"])]
    pub(super) text: Option<String>,
    /// Agent that answers. It leads the session from now on.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["tool", "calls"], help_heading = "Agent")]
    pub(super) agent: Option<String>,
    /// Model of a new session: platform/NAME, workspace/NAME or NAME. By default the agent's model.
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["tool", "calls"], help_heading = "Agent")]
    pub(super) model: Option<String>,
    /// Image to send with the message: png, jpeg, gif or webp. May be repeated.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tool", "calls"], help_heading = "Agent")]
    pub(super) attach: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) calls: CallArgs,
    /// Session to run in. A name that does not exist yet is created. By default a new session without a name.
    #[arg(long, short, value_name = "NAME_OR_ID")]
    pub(super) session: Option<String>,
    /// Workspace of a new session, by its registered name (see `remuda workspace add`).
    #[arg(long, value_name = "NAME")]
    pub(super) workspace: Option<String>,
    /// Directory to use as the workspace of a new session. Registered if necessary; the workers need the directory too.
    #[arg(long, value_name = "DIR", conflicts_with = "workspace")]
    pub(super) dir: Option<PathBuf>,
    /// Time limit of the run, such as 30s or 10m (1ms to 24h; default 1h).
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(super) timeout: Option<Duration>,
    #[command(flatten)]
    pub(super) execution: ExecutionArgs,
    /// Permissions of a new session; `remuda sessions set` changes them later.
    #[command(flatten)]
    pub(super) permissions: PermissionArgs,
    #[command(flatten)]
    pub(super) budget: BudgetArgs,
    /// Show what the run would do, without executing it.
    ///
    /// Reads the workspace and the configuration of this machine, as a worker on it would, and sends one short test message to
    /// the model. Shows the chosen agent and model with reasons, the tools and permissions, the size of the prompt, the maximum
    /// cost of the first model call, and problems with their fixes. Exits with 0 if the run would work, else with 1.
    #[arg(long, conflicts_with_all = ["tool", "calls", "detach", "follow", "quiet", "idempotency_key"])]
    pub(super) dry_run: bool,
    /// Do not send a test message to the model.
    #[arg(long, requires = "dry_run")]
    pub(super) no_model_test: bool,
    /// What to do if the session already has unfinished runs.
    #[arg(long, value_enum, default_value_t = IfBusy::Enqueue)]
    pub(super) if_busy: IfBusy,
    /// Label to find the run by, such as team=core. May be repeated. See `remuda runs list --label`.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(super) label: Vec<String>,
    /// Makes retries safe: a repeated request with the same key returns the same run.
    #[arg(long, value_name = "KEY")]
    pub(super) idempotency_key: Option<String>,
    /// Continue after a failed call. The failure then does not fail the run.
    #[arg(long, requires = "what")]
    pub(super) continue_on_error: bool,
    /// Add the calls and their results to the session's messages.
    #[arg(long, requires = "what")]
    pub(super) record: bool,
    /// Show events live. For messages to an agent that is the default; with --json this adds events and message deltas.
    #[arg(long, short)]
    pub(super) follow: bool,
    /// Print only the answer, or the output of the tools.
    #[arg(long, short, conflicts_with = "follow")]
    pub(super) quiet: bool,
    /// Print the id of the run and exit without waiting.
    #[arg(long, short, conflicts_with_all = ["follow", "quiet"])]
    pub(super) detach: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum IfBusy {
    /// Wait for the unfinished runs.
    #[value(alias = "queue")]
    Enqueue,
    /// Reject the new run.
    Reject,
    /// Cancel the unfinished runs, then run.
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
