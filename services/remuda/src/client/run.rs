//! `remuda run`: submit a run and see it through.

use std::time::Duration;

use futures::StreamExt as _;
use remuda_client::{Client, Target, terminal_state};
use remuda_domain::{Error, error::Result};
use remuda_proto::v1;

use super::{calls::CallArgs, execution::ExecutionArgs, exit::Exit, json, render, watch::shell_word};
use crate::output::{Interrupted, Output, Progress, Style, one_line};

pub(super) const EXAMPLES: &str = "\
Examples:
  remuda run --tool Bash --arg command='echo hi' --session s1 --follow
  remuda run --tool Write --arg file_path=a.txt --arg content=hello --tool Read --arg file_path=a.txt
  remuda run --parallel --tool Bash --arg command='make lint' --tool Bash --arg command='make test'
  remuda run --calls calls.json --timeout 10m --idempotency-key build-42
  remuda run --backend docker --image busybox:1 --tool Bash --arg command='id'
  id=$(remuda run --tool Bash --arg command='sleep 60' --session s1 --detach)

What the tools print goes to stdout and everything about the run to stderr, so that output can be piped.";

/// What to run, where and how.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    calls: CallArgs,
    /// Session to run in; a name that does not exist is created. A new session without a name when missing.
    #[arg(long, short, value_name = "NAME_OR_ID")]
    session: Option<String>,
    /// Time the run may execute, such as 30s or 10m (1ms to 24h; 1h when missing).
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    execution: ExecutionArgs,
    /// What to do when the session already has unfinished runs.
    #[arg(long, value_enum, default_value_t = IfBusy::Enqueue)]
    if_busy: IfBusy,
    /// Makes retries safe: the same key with the same request gives the same run.
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Go on after a failed call; it then does not fail the run.
    #[arg(long)]
    continue_on_error: bool,
    /// Append the calls and their results to the session's messages.
    #[arg(long)]
    record: bool,
    /// Show the events live until the end.
    #[arg(long, short)]
    follow: bool,
    /// Print only the id of the run and do not wait.
    #[arg(long, short, conflicts_with = "follow")]
    detach: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum IfBusy {
    /// Wait for them.
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

pub(super) async fn run(args: RunArgs, client: &Client, output: Output) -> Result<Exit> {
    let (follow, detach) = (args.follow, args.detach);
    let submitted = submit(args, client).await?;
    let run = submitted.run.ok_or_else(|| Error::internal("the server sent no run"))?;
    for id in &submitted.interrupted_run_ids {
        output.note(&format!("{} interrupted {}", output.err.paint(Style::Warn, "●"), one_line(id)));
    }
    if submitted.deduplicated {
        output.note("● an earlier request with this idempotency key made the run");
    }
    if detach {
        if output.json {
            output.json_line(&json::run(&run));
        } else {
            output.out.line(&one_line(&run.id));
        }
        return Ok(Exit::Ok);
    }
    output.note(&format!("{} {}", output.err.paint(Style::Dim, "▸"), one_line(&run.id)));
    let seen = if follow {
        // The session's earlier history is of no interest here.
        follow_to_end(&run.id, submitted.first_cursor.saturating_sub(1).max(0), client, output).await?
    } else {
        let mut progress = Progress::new(&output, "waiting for the run");
        progress.during(client.wait_until_finished(&run.id)).await.transpose_error()?
    };
    match seen {
        Some(run) => finish(&run, follow, output),
        None => {
            let id = shell_word(&run.id);
            output
                .note(&format!("the run goes on\n  watch:  remuda watch {id}\n  cancel: remuda cancel {id}"));
            Ok(Exit::Interrupted)
        }
    }
}

async fn submit(args: RunArgs, client: &Client) -> Result<v1::SubmitRunResponse> {
    let calls = args.calls.load()?;
    // Everything that can be wrong here is found before a session is made for it.
    let timeout = match args.timeout {
        Some(timeout) => {
            remuda_domain::limits::check_timeout("timeout", timeout)?;
            timeout.try_into().ok()
        }
        None => None,
    };
    let execution = args.execution.into_request();
    let session = match args.session {
        Some(session) => session,
        None => {
            let request = v1::CreateSessionRequest { execution: execution.clone(), ..Default::default() };
            let created = client.create_session(request).await?;
            created.session.ok_or_else(|| Error::internal("the server sent no session"))?.id
        }
    };
    let tools = v1::ToolsInput { calls, continue_on_error: args.continue_on_error, record: args.record };
    let request = v1::SubmitRunRequest {
        create_session: !session.starts_with("ses_"),
        session,
        idempotency_key: args.idempotency_key.unwrap_or_default(),
        if_busy: v1::IfBusy::from(args.if_busy).into(),
        input: Some(v1::submit_run_request::Input::Tools(tools)),
        timeout,
        execution,
    };
    client.submit(request).await
}

/// Shows the events of a run and then fetches it. `None` after Ctrl-C.
async fn follow_to_end(run_id: &str, after: i64, client: &Client, output: Output) -> Result<Option<v1::Run>> {
    let mut events = client.follow(Target::Run(run_id.to_owned()), after);
    let mut progress = Progress::new(&output, "following the run");
    loop {
        match progress.during(events.next()).await {
            Ok(Some(event)) => show(&event?, output),
            Ok(None) => break,
            Err(Interrupted) => return Ok(None),
        }
    }
    progress.during(client.wait_until_finished(run_id)).await.transpose_error()
}

fn show(event: &v1::Event, output: Output) {
    if output.json {
        return output.json_line(&json::event(event));
    }
    // How the run ended is told once, at the end.
    if terminal_state(event).is_some() {
        return;
    }
    output.err.line(&render::event_line(output.err, event));
    if event.r#type.starts_with("tool.") {
        print_output(&json::embedded(&event.data), output);
    }
}

fn print_output(outcome: &serde_json::Value, output: Output) {
    let printed = render::printed(&outcome["output"]);
    output.out.text(&printed.out);
    output.err.text(&printed.err);
}

/// Prints the results, unless the events have shown them, and how the run ended.
pub(super) fn finish(run: &v1::Run, shown: bool, output: Output) -> Result<Exit> {
    if output.json {
        output.json_line(&json::run(run));
        return Exit::of_run(run);
    }
    for outcome in run.outcomes.iter().filter(|_| !shown).map(json::outcome) {
        output.err.line(&render::outcome_line(output.err, &outcome));
        print_output(&outcome, output);
    }
    output.err.line(&render::run_line(output.err, run));
    Exit::of_run(run)
}

/// Turns "interrupted, or done with an error" into "failed, or maybe interrupted".
pub(super) trait TransposeError<T> {
    fn transpose_error(self) -> Result<Option<T>>;
}

impl<T> TransposeError<T> for Result<Result<T>, Interrupted> {
    fn transpose_error(self) -> Result<Option<T>> {
        match self {
            Ok(result) => result.map(Some),
            Err(Interrupted) => Ok(None),
        }
    }
}
