//! An agent at work, live.

use std::io::{self, IsTerminal as _};

use futures::StreamExt as _;
use remuda_client::{Client, Followed, Following, Target};
use remuda_domain::error::Result;
use remuda_proto::v1;

use super::{
    TransposeError as _, View,
    asking::{Asker, Reply},
    leave,
};
use crate::{
    client::{
        exit::Exit,
        json, render,
        talk::{Live, Piece, Screen},
    },
    output::{Interrupted, Output, Progress, Style, one_line, sanitize},
};

/// Of the line that shows what is waited for.
const ACTIVITY_CHARS: usize = 60;
const STILL_WAITS: &str = "still waits for approval";

/// Shows an agent's run to its end. The first Ctrl-C asks for the run to be cancelled, the second leaves.
pub(super) async fn see_through(
    run_id: &str,
    after: i64,
    view: View,
    client: &Client,
    output: Output,
) -> Result<Exit> {
    let mut stopping = Stopping { run_id, client, output, asked: false };
    if output.json && !view.follow {
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
    Conversation::new(run_id, view, stopping).follow(after).await
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

/// A run as it is shown.
struct Conversation<'a> {
    stopping: Stopping<'a>,
    /// Only what somebody has to do is told, and the answer.
    quiet: bool,
    live: Live,
    screen: Screen<Output>,
    progress: Progress,
    asker: Option<Asker>,
}

/// What comes next.
enum Heard {
    More(Box<Followed>),
    Reply(io::Result<Reply>),
    End(Box<v1::Run>),
}

impl<'a> Conversation<'a> {
    fn new(run_id: &str, view: View, stopping: Stopping<'a>) -> Self {
        let (output, quiet) = (stopping.output, view.quiet);
        let flowing = !output.json && !quiet && io::stdout().is_terminal();
        Self {
            stopping,
            quiet,
            live: Live::of(run_id),
            screen: Screen::new(output, flowing),
            progress: Progress::new(&output, "waiting for a worker"),
            asker: if quiet { None } else { Asker::at_terminal(output) },
        }
    }

    async fn follow(mut self, after_cursor: i64) -> Result<Exit> {
        let Stopping { run_id, client, output, .. } = self.stopping;
        let deltas = output.json || (!self.quiet && io::stdout().is_terminal());
        let following = Following { after_cursor, deltas, tree: true };
        let mut heard = client.follow_by(Target::Run(run_id.to_owned()), following);
        let run = loop {
            let asker = self.asker.as_mut();
            let next = async {
                let reply = async {
                    match asker {
                        Some(asker) => asker.reply().await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    followed = heard.next() => match followed {
                        Some(followed) => followed.map(|more| Heard::More(Box::new(more))),
                        None => end(run_id, client).await,
                    },
                    reply = reply => Ok(Heard::Reply(reply)),
                }
            };
            match self.progress.during(next).await {
                Ok(Ok(Heard::More(followed))) => self.show(*followed),
                Ok(Ok(Heard::Reply(reply))) => self.replied(reply).await,
                Ok(Ok(Heard::End(run))) => break run,
                Ok(Err(error)) => {
                    self.screen.close();
                    return Err(error);
                }
                Err(Interrupted) => {
                    self.screen.close();
                    if let Some(exit) = self.stopping.interrupted(&mut self.progress).await? {
                        return Ok(exit);
                    }
                }
            }
            self.ask();
        };
        if output.json {
            output.json_line(&json::run(&run));
            return Exit::of_run(&run);
        }
        if self.quiet {
            return finish_quietly(&run, output);
        }
        self.screen.finish(&run, self.live.tally());
        Exit::of_run(&run)
    }

    fn show(&mut self, followed: Followed) {
        let output = self.stopping.output;
        if output.json {
            return output.json_line(&match &followed {
                Followed::Event(event) => json::event(event),
                Followed::Delta(delta) => json::delta(delta),
            });
        }
        let mut pieces = match followed {
            Followed::Event(event) => {
                let pieces = self.live.event(&event);
                // The question itself says more.
                let asks = self.asker.as_mut().is_some_and(|asker| asker.hear(&event));
                if asks { Vec::new() } else { pieces }
            }
            Followed::Delta(delta) => self.live.delta(delta),
        };
        if self.quiet {
            pieces.retain(|piece| matches!(piece, Piece::Waits(_)));
        }
        pieces.into_iter().for_each(|piece| self.screen.show(piece));
        self.progress.about(&self.live.activity().chars().take(ACTIVITY_CHARS).collect::<String>());
    }

    /// Shows what is to be decided, and the line on which that is done.
    fn ask(&mut self) {
        if let Some(asker) = &mut self.asker {
            if let Some(question) = asker.next_question() {
                self.screen.show(Piece::Waits(question));
            }
            if let Some(prompt) = asker.prompt().filter(|_| !self.screen.is_mid_line()) {
                self.screen.ask(&prompt);
            }
        }
        self.progress.line_taken = self.screen.is_mid_line();
    }

    async fn replied(&mut self, reply: io::Result<Reply>) {
        let Some(asker) = &mut self.asker else { return };
        let reply = match reply {
            // It is asked again.
            Ok(Reply::Unclear) => return self.screen.answered(),
            Ok(reply) => reply,
            // A terminal that cannot be read is not asked again.
            Err(_) => Reply::Later,
        };
        let Some(question) = asker.take() else { return };
        let Some(request) = question.decide(reply) else {
            // Who does not want to be asked is told what others have to decide.
            self.screen.close();
            let left = self.asker.take().into_iter().flat_map(Asker::give_up);
            for question in std::iter::once(question).chain(left) {
                self.screen.show(Piece::Waits(question.hint(STILL_WAITS)));
            }
            return;
        };
        self.screen.answered();
        self.progress.line_taken = false;
        let why = match self.progress.during(self.stopping.client.decide_approval(request)).await {
            Ok(Ok(_)) => return,
            // The run waits on, and others may be allowed what this one is not.
            Ok(Err(error)) => format!("not decided ({}) [{}]", one_line(&error.to_string()), error.code()),
            Err(Interrupted) => STILL_WAITS.to_owned(),
        };
        self.screen.show(Piece::Waits(question.hint(&why)));
    }
}

/// The run after its end, with what it cost.
async fn end(run_id: &str, client: &Client) -> Result<Heard> {
    let run = client.wait_until_finished(run_id).await?;
    // Only this call knows what those below it have spent.
    let whole = client.get_run(v1::GetRunRequest { run_id: run_id.to_owned() }).await;
    let run = whole.ok().and_then(|answer| answer.run).unwrap_or(run);
    Ok(Heard::End(Box::new(run)))
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
