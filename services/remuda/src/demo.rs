//! `remuda demo`: runs a scenario on a private server and checks the results.
//!
//! The server is a real node in embedded mode; all calls use gRPC. The demo leaves no process behind and, unless `--keep` is
//! given, no directory.

mod checks;
mod recording;
mod report;
mod runner;
mod scenario;
mod screen;
mod server;
mod timeline;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use remuda_domain::{Error, error::Result};
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use self::{report::Report, runner::DemoResults, screen::Screen, server::DemoServer};
use crate::output::Output;

/// 128 + SIGINT, as shells report it.
const INTERRUPTED: u8 = 130;
/// 128 + SIGPIPE.
const BROKEN_PIPE: u8 = 141;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes:\n  0  all checks passed\n  1  at least one check failed\n  130 interrupted"
)]
pub(crate) struct DemoArgs {
    /// Keep the demo's data directory and print its path.
    #[arg(long)]
    keep: bool,
}

/// How a demo ended.
enum Outcome {
    DemoResults(Box<DemoResults>),
    Interrupted,
    OutputClosed,
}

pub(crate) async fn execute(args: DemoArgs, output: Output) -> Result<ExitCode> {
    let directory = tempfile::Builder::new().prefix("remuda-demo-").tempdir().map_err(|error| {
        let parent = std::env::temp_dir();
        Error::internal(format!("cannot create a directory in {}", parent.display())).with_source(error)
    })?;
    let started = Instant::now();
    let plans = scenario::plans();
    let mut screen = Screen::new(output, &plans);
    let end = Box::pin(run_demo(directory.path(), &plans, &mut screen)).await;
    let kept = remove_or_keep(directory, args.keep)?;
    let code = match end? {
        Outcome::DemoResults(results) => {
            let report = Report::new(&plans, *results, started.elapsed(), kept.as_deref());
            if output.json {
                output.json_line(&report.to_json());
            } else {
                report.show(&screen);
            }
            ExitCode::from(u8::from(!report.passed()))
        }
        Outcome::Interrupted => {
            output.note("interrupted; the demo server and its processes are stopped");
            ExitCode::from(INTERRUPTED)
        }
        Outcome::OutputClosed => ExitCode::from(BROKEN_PIPE),
    };
    Ok(code)
}

/// Removes the directory, or keeps it and returns its path.
fn remove_or_keep(directory: TempDir, keep: bool) -> Result<Option<PathBuf>> {
    if keep {
        return Ok(Some(directory.keep()));
    }
    directory
        .close()
        .map_err(|error| Error::internal("cannot remove the demo's directory").with_source(error))?;
    Ok(None)
}

/// Starts the server, runs the scenario, and stops the server, whatever the result.
async fn run_demo(directory: &Path, plans: &[scenario::SessionPlan], screen: &mut Screen) -> Result<Outcome> {
    // Handle signals from the start, so that an early one leaves nothing behind.
    let interrupted = termination_signal()?;
    let (node, server) = DemoServer::start(directory).await?;
    report::print_introduction(screen, &server, plans);
    let stop = CancellationToken::new();
    let closed = screen.closed.clone();
    let mut node_task = std::pin::pin!(node.run(stop.clone()));
    let end = tokio::select! {
        results = runner::run(&server, plans, screen) => results.map(|results| Outcome::DemoResults(Box::new(results))),
        () = interrupted => Ok(Outcome::Interrupted),
        () = closed.cancelled() => Ok(Outcome::OutputClosed),
        () = &mut node_task => return Err(Error::internal("the demo server stopped unexpectedly")),
    };
    stop.cancel();
    node_task.await;
    end
}

/// Resolves on SIGINT, SIGTERM or SIGHUP.
fn termination_signal() -> Result<impl Future<Output = ()>> {
    let listen =
        |kind| signal(kind).map_err(|error| Error::internal("signals cannot be received").with_source(error));
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hangup = listen(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}
