//! `remuda run`: submit a run and see it through.

mod args;
mod asking;
mod dir;
mod dry;
mod message;
mod prompt;
mod submit;

use futures::StreamExt as _;
use remuda_client::{Client, Followed, Following, Target, terminal_state};
use remuda_config::Config;
use remuda_domain::{Error, error::Result};
use remuda_proto::v1;

pub(super) use self::args::{EXAMPLES, RunArgs};

use super::{
    exit::Exit,
    json, render,
    talk::{Printed, painted},
    watch::shell_word,
};
use crate::output::{Interrupted, Output, Progress, Style, one_line, sanitize};

/// How a run is seen through.
#[derive(Clone, Copy, Debug)]
struct View {
    follow: bool,
    quiet: bool,
}

pub(super) async fn run(
    args: RunArgs,
    client: &Client,
    config: impl FnOnce() -> Result<Config>,
    output: Output,
) -> Result<Exit> {
    if args.dry_run {
        return dry::dry_run(args, client, &config()?, output).await;
    }
    let (view, detach) = (View { follow: args.follow, quiet: args.quiet }, args.detach);
    let submitted = submit::submit(args, client).await?;
    let run = submitted.run.ok_or_else(|| Error::internal("the server sent no run"))?;
    let note = |text: &str| {
        if !view.quiet {
            output.note(text);
        }
    };
    for id in &submitted.interrupted_run_ids {
        note(&format!("{} interrupted {}", output.err.paint(Style::Warn, "●"), one_line(id)));
    }
    if submitted.deduplicated {
        note("● an earlier request with this idempotency key made the run");
    }
    if detach {
        if output.json {
            output.json_line(&json::run(&run));
        } else {
            output.out.line(&one_line(&run.id));
        }
        return Ok(Exit::Ok);
    }
    // The session's earlier history is of no interest here.
    let after = submitted.first_cursor.saturating_sub(1).max(0);
    if matches!(run.input, Some(v1::run::Input::Message(_))) {
        return message::see_through(&run.id, after, view, client, output).await;
    }
    note(&format!("{} {}", output.err.paint(Style::Dim, "▸"), one_line(&run.id)));
    let seen = if view.follow {
        follow_to_end(&run.id, after, client, output).await?
    } else {
        let mut progress = Progress::new(&output, "waiting for the run");
        progress.during(client.wait_until_finished(&run.id)).await.transpose_error()?
    };
    match seen {
        Some(run) if view.quiet && !output.json => {
            run.outcomes.iter().map(json::outcome).for_each(|outcome| print_output(&outcome, output));
            Exit::of_run(&run)
        }
        Some(run) => finish(&run, view.follow, output),
        None => {
            leave(&run.id, output);
            Ok(Exit::Interrupted)
        }
    }
}

/// Says how to come back to a run that goes on.
fn leave(run_id: &str, output: Output) {
    let id = shell_word(run_id);
    output.note(&format!("the run goes on\n  watch:  remuda watch {id}\n  cancel: remuda cancel {id}"));
}

/// Shows the events of a run and then fetches it. `None` after Ctrl-C.
async fn follow_to_end(run_id: &str, after: i64, client: &Client, output: Output) -> Result<Option<v1::Run>> {
    let following = Following { after_cursor: after, deltas: true, tree: false };
    let mut followed = client.follow_by(Target::Run(run_id.to_owned()), following);
    let (mut printed, mut progress) = (Printed::default(), Progress::new(&output, "following the run"));
    loop {
        match progress.during(followed.next()).await {
            Ok(Some(Ok(Followed::Event(event)))) => show(&event, &mut printed, output),
            Ok(Some(Ok(Followed::Delta(delta)))) => show_live(&delta, &mut printed, output),
            Ok(Some(Err(error))) => return Err(error),
            Ok(None) => break,
            Err(Interrupted) => return Ok(None),
        }
    }
    progress.during(client.wait_until_finished(run_id)).await.transpose_error()
}

/// Prints what a command prints, as far as its lines are complete.
fn show_live(delta: &v1::Delta, printed: &mut Printed, output: Output) {
    if output.json {
        return output.json_line(&json::delta(delta));
    }
    for line in printed.hear(delta) {
        match line {
            (None, text) => output.out.line(&text),
            line => output.err.line(&painted(output.err, &line)),
        }
    }
}

fn show(event: &v1::Event, printed: &mut Printed, output: Output) {
    if output.json {
        return output.json_line(&json::event(event));
    }
    // How the run ended is told once, at the end.
    if terminal_state(event).is_some() {
        return;
    }
    output.err.line(&render::event_line(output.err, event));
    if event.r#type.starts_with("tool.") {
        print_output(&printed.rest(&json::embedded(&event.data)), output);
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
    // Of an agent's work only the answer is of interest afterwards.
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
