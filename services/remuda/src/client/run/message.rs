//! An agent at work, live.

use std::io::{self, IsTerminal as _};

use futures::StreamExt as _;
use remuda_client::{Client, Followed, Target};
use remuda_domain::error::Result;
use remuda_proto::v1;

use super::{TransposeError as _, View, leave};
use crate::{
    client::{
        exit::Exit,
        json, render,
        talk::{Live, Screen},
    },
    output::{Interrupted, Output, Progress, Style, sanitize},
};

/// Of the line that shows what is waited for.
const ACTIVITY_CHARS: usize = 60;

/// Shows an agent's run to its end. The first Ctrl-C asks for the run to be cancelled, the second leaves.
pub(super) async fn see_through(
    run_id: &str,
    after: i64,
    view: View,
    client: &Client,
    output: Output,
) -> Result<Exit> {
    let mut stopping = Stopping { run_id, client, output, asked: false };
    if view.quiet || (output.json && !view.follow) {
        let mut progress = Progress::new(&output, "waiting for the answer");
        loop {
            if let Some(run) = progress.during(client.wait_until_finished(run_id)).await.transpose_error()? {
                return finish_quietly(&run, output);
            }
            if let Some(exit) = stopping.interrupted(&mut progress).await? {
                return Ok(exit);
            }
        }
    }
    follow(after, stopping).await
}

fn finish_quietly(run: &v1::Run, output: Output) -> Result<Exit> {
    if output.json {
        output.json_line(&json::run(run));
        return Exit::of_run(run);
    }
    output.out.text(&sanitize(&run.answer));
    let exit = Exit::of_run(run)?;
    // Silence would look like an empty answer.
    if exit != Exit::Ok {
        output.err.line(&render::run_line(output.err, run));
    }
    Ok(exit)
}

async fn follow(after: i64, mut stopping: Stopping<'_>) -> Result<Exit> {
    let Stopping { run_id, client, output, .. } = stopping;
    let flowing = !output.json && io::stdout().is_terminal();
    let target = Target::Run(run_id.to_owned());
    let mut heard = if flowing || output.json {
        client.follow_with_deltas(target, after)
    } else {
        client.follow(target, after).map(|event| event.map(Followed::Event)).boxed()
    };
    let (mut live, mut screen) = (Live::default(), Screen::new(output, flowing));
    let mut progress = Progress::new(&output, "waiting for a worker");
    let run = loop {
        let next = async {
            match heard.next().await {
                Some(followed) => followed.map(Heard::More),
                None => client.wait_until_finished(run_id).await.map(|run| Heard::End(Box::new(run))),
            }
        };
        let followed = match progress.during(next).await {
            Ok(Ok(Heard::More(followed))) => followed,
            Ok(Ok(Heard::End(run))) => break run,
            Ok(Err(error)) => {
                screen.close();
                return Err(error);
            }
            Err(Interrupted) => {
                screen.close();
                match stopping.interrupted(&mut progress).await? {
                    Some(exit) => return Ok(exit),
                    None => continue,
                }
            }
        };
        if output.json {
            output.json_line(&match &followed {
                Followed::Event(event) => json::event(event),
                Followed::Delta(delta) => json::delta(delta),
            });
            continue;
        }
        let pieces = match followed {
            Followed::Event(event) => live.event(&event),
            Followed::Delta(delta) => live.delta(delta),
        };
        pieces.into_iter().for_each(|piece| screen.show(piece));
        progress.about(&live.activity().chars().take(ACTIVITY_CHARS).collect::<String>());
        progress.line_taken = screen.is_mid_line();
    };
    if output.json {
        output.json_line(&json::run(&run));
    } else {
        screen.finish(&run, live.tally());
    }
    Exit::of_run(&run)
}

enum Heard {
    More(Followed),
    End(Box<v1::Run>),
}

/// What Ctrl-C does.
struct Stopping<'a> {
    run_id: &'a str,
    client: &'a Client,
    output: Output,
    asked: bool,
}

impl Stopping<'_> {
    /// Asks for the run to be cancelled; when that was done before, leaves.
    async fn interrupted(&mut self, progress: &mut Progress) -> Result<Option<Exit>> {
        let output = self.output;
        if !std::mem::replace(&mut self.asked, true) {
            output.note(&output.err.paint(Style::Warn, "● cancelling the run; Ctrl-C again leaves it alone"));
            let request =
                v1::CancelRunRequest { run_id: self.run_id.to_owned(), reason: "Ctrl-C".to_owned() };
            if let Ok(answer) = progress.during(self.client.cancel_run(request)).await {
                return answer.map(|_| None);
            }
        }
        leave(self.run_id, output);
        Ok(Some(Exit::Interrupted))
    }
}
