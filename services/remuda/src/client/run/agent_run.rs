//! Shows the run of an agent live until its end.

use std::io::{self, IsTerminal as _};

use futures::StreamExt as _;
use remuda_client::{Client, FollowItem, FollowOptions, Target};
use remuda_domain::error::Result;
use remuda_proto::v1;

use super::{
    DisplayOptions, TransposeError as _,
    approval_prompt::{ApprovalPrompt, Reply},
    print_resume_hint,
};
use crate::{
    client::{
        conversation::{DisplayItem, LiveRun, Screen},
        exit::Exit,
        json, render,
    },
    output::{Interrupted, Output, Progress, Style, one_line, sanitize},
};

/// Limit of the text next to the spinner.
const ACTIVITY_CHARS: usize = 60;
const STILL_WAITS: &str = "still waits for approval";

/// Shows an agent's run until its end. The first Ctrl-C cancels the run, the second one exits.
pub(super) async fn follow(
    run_id: &str,
    after: i64,
    display: DisplayOptions,
    client: &Client,
    output: Output,
) -> Result<Exit> {
    let mut ctrl_c = CtrlCHandler { run_id, client, output, cancel_requested: false };
    if output.json && !display.follow {
        let mut progress = Progress::new(&output, "waiting for the answer");
        loop {
            if let Some(run) = progress.during(client.wait_until_finished(run_id)).await.transpose_error()? {
                return finish_without_screen(&run, output);
            }
            if let Some(exit) = ctrl_c.interrupted(&mut progress).await? {
                return Ok(exit);
            }
        }
    }
    AgentRunView::new(run_id, display, ctrl_c).follow(after).await
}

fn finish_without_screen(run: &v1::Run, output: Output) -> Result<Exit> {
    if output.json {
        output.json_line(&json::run(run));
        return Exit::of_run(run);
    }
    output.out.text(&sanitize(&run.answer));
    let exit = Exit::of_run(run)?;
    // No output at all would look like an empty answer.
    if exit != Exit::Ok {
        output.err.line(&render::run_line(output.err, run));
    }
    Ok(exit)
}

/// A run and how it is shown.
struct AgentRunView<'a> {
    ctrl_c: CtrlCHandler<'a>,
    /// Show only required actions and the answer.
    quiet: bool,
    run: LiveRun,
    screen: Screen<Output>,
    progress: Progress,
    approval_prompt: Option<ApprovalPrompt>,
}

/// What the view waits for.
enum NextEvent {
    Stream(Box<FollowItem>),
    Reply(io::Result<Reply>),
    End(Box<v1::Run>),
}

impl<'a> AgentRunView<'a> {
    fn new(run_id: &str, display: DisplayOptions, ctrl_c: CtrlCHandler<'a>) -> Self {
        let (output, quiet) = (ctrl_c.output, display.quiet);
        let streaming = !output.json && !quiet && io::stdout().is_terminal();
        Self {
            ctrl_c,
            quiet,
            run: LiveRun::for_run(run_id),
            screen: Screen::new(output, streaming),
            progress: Progress::new(&output, "waiting for a worker"),
            approval_prompt: if quiet { None } else { ApprovalPrompt::at_terminal(output) },
        }
    }

    async fn follow(mut self, after_cursor: i64) -> Result<Exit> {
        let CtrlCHandler { run_id, client, output, .. } = self.ctrl_c;
        let deltas = output.json || (!self.quiet && io::stdout().is_terminal());
        let following = FollowOptions { after_cursor, deltas, tree: true };
        let mut events = client.follow_with(Target::Run(run_id.to_owned()), following);
        let run = loop {
            let approval_prompt = self.approval_prompt.as_mut();
            let next = async {
                let reply = async {
                    match approval_prompt {
                        Some(prompt) => prompt.reply().await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    followed = events.next() => match followed {
                        Some(followed) => followed.map(|more| NextEvent::Stream(Box::new(more))),
                        None => end(run_id, client).await,
                    },
                    reply = reply => Ok(NextEvent::Reply(reply)),
                }
            };
            match self.progress.during(next).await {
                Ok(Ok(NextEvent::Stream(followed))) => self.show(*followed),
                Ok(Ok(NextEvent::Reply(reply))) => self.apply_reply(reply).await,
                Ok(Ok(NextEvent::End(run))) => break run,
                Ok(Err(error)) => {
                    self.screen.close();
                    return Err(error);
                }
                Err(Interrupted) => {
                    self.screen.close();
                    if let Some(exit) = self.ctrl_c.interrupted(&mut self.progress).await? {
                        return Ok(exit);
                    }
                }
            }
            self.update_prompt();
        };
        if output.json {
            output.json_line(&json::run(&run));
            return Exit::of_run(&run);
        }
        if self.quiet {
            return finish_without_screen(&run, output);
        }
        self.screen.finish(&run, self.run.totals());
        Exit::of_run(&run)
    }

    fn show(&mut self, followed: FollowItem) {
        let output = self.ctrl_c.output;
        if output.json {
            return output.json_line(&match &followed {
                FollowItem::Event(event) => json::event(event),
                FollowItem::Delta(delta) => json::delta(delta),
            });
        }
        let mut items = match followed {
            FollowItem::Event(event) => {
                let items = self.run.event(&event);
                // The prompt shows more than the notice.
                let prompts = self.approval_prompt.as_mut().is_some_and(|prompt| prompt.receive(&event));
                if prompts { Vec::new() } else { items }
            }
            FollowItem::Delta(delta) => self.run.delta(delta),
        };
        if self.quiet {
            items.retain(|item| matches!(item, DisplayItem::ActionNeeded(_)));
        }
        items.into_iter().for_each(|item| self.screen.show(item));
        self.progress.set_text(&self.run.activity().chars().take(ACTIVITY_CHARS).collect::<String>());
    }

    /// Shows the next pending approval and the prompt.
    fn update_prompt(&mut self) {
        if let Some(prompt) = &mut self.approval_prompt {
            if let Some(lines) = prompt.show_next() {
                self.screen.show(DisplayItem::ActionNeeded(lines));
            }
            if let Some(text) = prompt.prompt().filter(|_| !self.screen.is_mid_line()) {
                self.screen.ask(&text);
            }
        }
        self.progress.line_taken = self.screen.is_mid_line();
    }

    async fn apply_reply(&mut self, reply: io::Result<Reply>) {
        let Some(prompt) = &mut self.approval_prompt else { return };
        let reply = match reply {
            // The prompt is shown again.
            Ok(Reply::Unclear) => return self.screen.answered(),
            Ok(reply) => reply,
            // Stop prompting if the terminal cannot be read.
            Err(_) => Reply::Later,
        };
        let Some(pending) = prompt.take() else { return };
        let Some(request) = pending.decide(reply) else {
            // The user will not be asked again: show how to decide the pending approvals with other commands.
            self.screen.close();
            let others = self.approval_prompt.take().into_iter().flat_map(ApprovalPrompt::into_pending);
            for pending in std::iter::once(pending).chain(others) {
                self.screen.show(DisplayItem::ActionNeeded(pending.hint(STILL_WAITS)));
            }
            return;
        };
        self.screen.answered();
        self.progress.line_taken = false;
        let why = match self.progress.during(self.ctrl_c.client.decide_approval(request)).await {
            Ok(Ok(_)) => return,
            // The run keeps waiting; another key may be allowed to decide.
            Ok(Err(error)) => format!("not decided ({}) [{}]", one_line(&error.to_string()), error.code()),
            Err(Interrupted) => STILL_WAITS.to_owned(),
        };
        self.screen.show(DisplayItem::ActionNeeded(pending.hint(&why)));
    }
}

/// Fetches the finished run with its cost.
async fn end(run_id: &str, client: &Client) -> Result<NextEvent> {
    let run = client.wait_until_finished(run_id).await?;
    // Only this call returns the cost of child runs.
    let whole = client.get_run(v1::GetRunRequest { run_id: run_id.to_owned() }).await;
    let run = whole.ok().and_then(|response| response.run).unwrap_or(run);
    Ok(NextEvent::End(Box::new(run)))
}

/// Cancels the run on the first Ctrl-C.
struct CtrlCHandler<'a> {
    run_id: &'a str,
    client: &'a Client,
    output: Output,
    cancel_requested: bool,
}

impl CtrlCHandler<'_> {
    /// Requests the cancellation of the run; returns an exit code if that was done before.
    async fn interrupted(&mut self, progress: &mut Progress) -> Result<Option<Exit>> {
        let output = self.output;
        if !std::mem::replace(&mut self.cancel_requested, true) {
            output.note(
                &output
                    .err
                    .paint(Style::Warn, "● cancelling the run; press Ctrl-C again to exit without waiting"),
            );
            let request =
                v1::CancelRunRequest { run_id: self.run_id.to_owned(), reason: "Ctrl-C".to_owned() };
            if let Ok(response) = progress.during(self.client.cancel_run(request)).await {
                return response.map(|_| None);
            }
        }
        print_resume_hint(self.run_id, output);
        Ok(Some(Exit::Interrupted))
    }
}
