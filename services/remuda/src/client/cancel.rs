//! `remuda cancel`: cancels a run and shows the stages of the cancellation.

use remuda_client::Client;
use remuda_domain::{Error, error::Result};
use remuda_proto::v1;

use super::{exit::Exit, json, receipts::Receipts, render, run::TransposeError as _, watch::shell_word};
use crate::output::{Output, Progress};

pub(super) const EXAMPLES: &str = "\
Examples:
  remuda cancel run_01k9…
  remuda cancel run_01k9… --reason 'wrong branch'
  remuda cancel run_01k9… --wait        wait until its processes are dead and its slot is free

To cancel all runs of a session, or of a tree of sessions: remuda sessions cancel SESSION [--tree]";

/// Arguments of `remuda cancel`.
#[derive(Debug, clap::Args)]
pub(crate) struct CancelArgs {
    #[arg(value_name = "RUN_ID")]
    run: String,
    /// Reason, shown in the events of the run.
    #[arg(long, default_value = "", hide_default_value = true)]
    reason: String,
    /// Wait for the end of the run and show the times of all stages.
    #[arg(long, short)]
    wait: bool,
}

pub(super) async fn cancel(args: CancelArgs, client: &Client, output: Output) -> Result<Exit> {
    let response = client.cancel_run(v1::CancelRunRequest { run_id: args.run, reason: args.reason }).await?;
    let mut run = response.run.ok_or_else(|| Error::internal("the server sent no run"))?;
    if args.wait && !is_over(&run) {
        let mut progress = Progress::new(&output, "waiting for the run to stop");
        match progress.during(client.wait_until_finished(&run.id)).await.transpose_error()? {
            Some(ended) => run = ended,
            None => return Ok(Exit::Interrupted),
        }
    }
    if output.json {
        let mut document = json::run(&run);
        document["already_finished"] = response.already_finished.into();
        output.json_line(&document);
        return Ok(Exit::Ok);
    }
    let sink = output.out;
    let state = json::state_name(run.state);
    if response.already_finished {
        sink.line(&format!("the run was already finished: {}", render::paint_state(sink, state)));
    } else if is_over(&run) {
        // It may have ended before it could be cancelled.
        sink.line(&format!("the run is {}", render::paint_state(sink, state)));
        Receipts::of_run(&run).print(sink);
    } else {
        sink.line(&format!("the run is being cancelled; see: remuda explain {}", shell_word(&run.id)));
    }
    Ok(Exit::Ok)
}

fn is_over(run: &v1::Run) -> bool {
    run.finished_at.is_some()
}
