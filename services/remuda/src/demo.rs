//! `remuda demo`: shows what Remuda does, on a private stack, and checks that it did.
//!
//! The stack is the real one in its embedded mode; everything is submitted, followed and cancelled over gRPC. Nothing is
//! left behind, whatever happens: no process and, unless asked for, no directory.

mod checks;
mod play;
mod recording;
mod report;
mod screen;
mod script;
mod stage;
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

use self::{play::Played, report::Report, screen::Screen, stage::Stage};
use crate::output::Output;

/// 128 + SIGINT, as shells have it.
const INTERRUPTED: u8 = 130;
/// 128 + SIGPIPE.
const HUNG_UP: u8 = 141;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes:\n  0  every expectation held\n  1  at least one did not\n  130 interrupted"
)]
pub(crate) struct DemoArgs {
    /// Keep the demo's data directory, and say where it is.
    #[arg(long)]
    keep: bool,
}

/// How a demo ended.
enum End {
    Played(Box<Played>),
    Interrupted,
    HungUp,
}

pub(crate) async fn execute(args: DemoArgs, output: Output) -> Result<ExitCode> {
    let directory = tempfile::Builder::new().prefix("remuda-demo-").tempdir().map_err(|error| {
        let place = std::env::temp_dir();
        Error::internal(format!("no directory can be made in {}", place.display())).with_source(error)
    })?;
    let begun = Instant::now();
    let scenes = script::scenes();
    let mut screen = Screen::new(output, &scenes);
    let end = Box::pin(perform(directory.path(), &scenes, &mut screen)).await;
    let kept = put_away(directory, args.keep)?;
    let code = match end? {
        End::Played(played) => {
            let report = Report::new(&scenes, *played, begun.elapsed(), kept.as_deref());
            if output.json {
                output.json_line(&report.to_json());
            } else {
                report.show(&screen);
            }
            ExitCode::from(u8::from(!report.passed()))
        }
        End::Interrupted => {
            output.note("interrupted; the demo's stack is stopped and its processes are gone");
            ExitCode::from(INTERRUPTED)
        }
        End::HungUp => ExitCode::from(HUNG_UP),
    };
    Ok(code)
}

/// Removes the directory, or keeps it and gives its path.
fn put_away(directory: TempDir, keep: bool) -> Result<Option<PathBuf>> {
    if keep {
        return Ok(Some(directory.keep()));
    }
    directory
        .close()
        .map_err(|error| Error::internal("the demo's directory cannot be removed").with_source(error))?;
    Ok(None)
}

/// Starts the stack, plays, and stops the stack again, however the play ends.
async fn perform(directory: &Path, scenes: &[script::Scene], screen: &mut Screen) -> Result<End> {
    // Signals count from the start, so that nothing is left behind by one that comes early.
    let interrupted = interruption()?;
    let (node, stage) = Stage::set(directory).await?;
    report::introduce(screen, &stage, scenes);
    let stop = CancellationToken::new();
    let closed = screen.closed.clone();
    let mut life = std::pin::pin!(node.run(stop.clone()));
    let end = tokio::select! {
        played = play::play(&stage, scenes, screen) => played.map(|played| End::Played(Box::new(played))),
        () = interrupted => Ok(End::Interrupted),
        () = closed.cancelled() => Ok(End::HungUp),
        () = &mut life => return Err(Error::internal("the node stopped by itself")),
    };
    stop.cancel();
    life.await;
    end
}

/// Comes with Ctrl-C, SIGTERM or the end of the terminal.
fn interruption() -> Result<impl Future<Output = ()>> {
    let listen =
        |kind| signal(kind).map_err(|error| Error::internal("signals cannot be received").with_source(error));
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hang_up = listen(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
        }
    })
}
