//! `remuda run`: submits a run and shows it until its end.

mod agent_run;
mod approval_prompt;
mod args;
mod dir;
mod dry_run;
mod prompt;
mod submit;

use futures::StreamExt as _;
use remuda_client::{Client, FollowItem, FollowOptions, Target, terminal_state};
use remuda_config::Config;
use remuda_domain::{Error, error::Result};
use remuda_proto::v1;

pub(super) use self::args::{EXAMPLES, RunArgs};

use super::{
    conversation::{CommandOutput, painted},
    exit::Exit,
    json, render,
    watch::shell_word,
};
use crate::output::{Interrupted, Output, Progress, Style, one_line, sanitize};

/// What to show of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct DisplayOptions {
    pub(super) follow: bool,
    pub(super) quiet: bool,
}

pub(super) async fn run(
    args: RunArgs,
    client: &Client,
    config: impl FnOnce() -> Result<Config>,
    output: Output,
) -> Result<Exit> {
    if args.dry_run {
        return dry_run::dry_run(args, client, &config()?, output).await;
    }
    let (display, detach) = (DisplayOptions { follow: args.follow, quiet: args.quiet }, args.detach);
    let submitted = submit::submit(args, client).await?;
    show(submitted, display, detach, client, output).await
}

/// Shows a submitted run until its end, or prints its id.
pub(super) async fn show(
    submitted: v1::SubmitRunResponse,
    display: DisplayOptions,
    detach: bool,
    client: &Client,
    output: Output,
) -> Result<Exit> {
    let run = submitted.run.ok_or_else(|| Error::internal("the server sent no run"))?;
    let note = |text: &str| {
        if !display.quiet {
            output.note(text);
        }
    };
    for id in &submitted.interrupted_run_ids {
        note(&format!("{} interrupted {}", output.err.paint(Style::Warn, "●"), one_line(id)));
    }
    if submitted.deduplicated {
        note("● the run was created by an earlier request with this idempotency key");
    }
    if detach {
        if output.json {
            output.json_line(&json::run(&run));
        } else {
            output.out.line(&one_line(&run.id));
        }
        return Ok(Exit::Ok);
    }
    // Skip the session's earlier events.
    let after = submitted.first_cursor.saturating_sub(1).max(0);
    if matches!(run.input, Some(v1::run::Input::Message(_))) {
        return agent_run::follow(&run.id, after, display, client, output).await;
    }
    note(&format!("{} {}", output.err.paint(Style::Dim, "▸"), one_line(&run.id)));
    let finished = if display.follow {
        follow_to_end(&run.id, after, client, output).await?
    } else {
        let mut progress = Progress::new(&output, "waiting for the run");
        progress.during(client.wait_until_finished(&run.id)).await.transpose_error()?
    };
    match finished {
        Some(run) if display.quiet && !output.json => {
            run.outcomes.iter().map(json::outcome).for_each(|outcome| print_output(&outcome, output));
            Exit::of_run(&run)
        }
        Some(run) => finish(&run, display.follow, output),
        None => {
            print_resume_hint(&run.id, output);
            Ok(Exit::Interrupted)
        }
    }
}

/// Prints how to watch or cancel a run that continues.
fn print_resume_hint(run_id: &str, output: Output) {
    let id = shell_word(run_id);
    output.note(&format!("the run continues\n  watch:  remuda watch {id}\n  cancel: remuda cancel {id}"));
}

/// Shows the events of a run until its end, then fetches the run. `None` after Ctrl-C.
async fn follow_to_end(run_id: &str, after: i64, client: &Client, output: Output) -> Result<Option<v1::Run>> {
    let following = FollowOptions { after_cursor: after, deltas: true, tree: false };
    let mut followed = client.follow_with(Target::Run(run_id.to_owned()), following);
    let (mut command_output, mut progress) =
        (CommandOutput::default(), Progress::new(&output, "following the run"));
    loop {
        match progress.during(followed.next()).await {
            Ok(Some(Ok(FollowItem::Event(event)))) => show_event(&event, &mut command_output, output),
            Ok(Some(Ok(FollowItem::Delta(delta)))) => show_live(&delta, &mut command_output, output),
            Ok(Some(Err(error))) => return Err(error),
            Ok(None) => break,
            Err(Interrupted) => return Ok(None),
        }
    }
    progress.during(client.wait_until_finished(run_id)).await.transpose_error()
}

/// Prints the complete lines of a command's output.
fn show_live(delta: &v1::Delta, command_output: &mut CommandOutput, output: Output) {
    if output.json {
        return output.json_line(&json::delta(delta));
    }
    for line in command_output.receive(delta) {
        match line {
            (None, text) => output.out.line(&text),
            line => output.err.line(&painted(output.err, &line)),
        }
    }
}

fn show_event(event: &v1::Event, command_output: &mut CommandOutput, output: Output) {
    if output.json {
        return output.json_line(&json::event(event));
    }
    // `finish` shows how the run ended.
    if terminal_state(event).is_some() {
        return;
    }
    output.err.line(&render::event_line(output.err, event));
    if event.r#type.starts_with("tool.") {
        print_output(&command_output.unshown(&json::embedded(&event.data)), output);
    }
}

fn print_output(outcome: &serde_json::Value, output: Output) {
    let printed = render::tool_output(&outcome["output"]);
    output.out.text(&printed.out);
    output.err.text(&printed.err);
}

/// Prints the results, unless they were shown with the events, and how the run ended.
pub(super) fn finish(run: &v1::Run, shown: bool, output: Output) -> Result<Exit> {
    if output.json {
        output.json_line(&json::run(run));
        return Exit::of_run(run);
    }
    // Of an agent's run only the answer is printed.
    if matches!(run.input, Some(v1::run::Input::Message(_))) {
        output.out.text(&sanitize(&run.answer));
    } else {
        for outcome in run.outcomes.iter().filter(|_| !shown).map(json::outcome) {
            output.err.line(&render::outcome_line(output.err, &outcome));
            print_output(&outcome, output);
        }
    }
    output.err.line(&render::run_line(output.err, run));
    Exit::of_run(run)
}

/// Turns `Result<Result<T>, Interrupted>` into `Result<Option<T>>`, with `None` for Ctrl-C.
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
