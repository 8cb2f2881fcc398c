//! The live view: asks, draws, and obeys keys until someone has seen enough.

use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use remuda_client::Client;
use remuda_domain::{Code, Error, error::Result};
use remuda_proto::v1;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};

use super::{
    data::{History, Look},
    state::{Action, Link, Mode, Popup, State},
    terminal::{Held, Input, inputs},
    view::Screen,
};
use crate::{
    client::{explanation_lines, step_lines},
    output::Output,
};

/// A server that takes longer than this to answer is said to.
const SILENT_AFTER: Duration = Duration::from_secs(2);
/// A question that was not answered by then is asked again.
const GIVE_UP: Duration = Duration::from_secs(10);
/// How often it is tried when the server is gone.
const RETRY: Duration = Duration::from_secs(1);

/// What comes back from the server.
enum Answer {
    Overview(Box<Result<v1::GetOverviewResponse>>),
    Popup(Result<Popup>),
    Cancelled(String, Result<()>),
}

struct View<'a> {
    client: &'a Client,
    output: Output,
    look: Look,
    history: History,
    state: State,
    asked: FuturesUnordered<BoxFuture<'a, Answer>>,
    /// Since when an overview is on its way.
    asked_at: Option<Instant>,
    lost_at: Option<Instant>,
}

/// Shows the view until `q`, Ctrl-C or a signal. `first` is what the server answered already: a wrong address or key is told before the
/// screen is taken.
pub(super) async fn watch(
    first: v1::GetOverviewResponse,
    every: Duration,
    limit: u32,
    client: &Client,
    output: Output,
) -> Result<()> {
    let broken = |error| Error::internal("the terminal cannot be used").with_source(error);
    let no_signals = |error| Error::internal("signals cannot be received").with_source(error);
    // The key Ctrl-C is no signal while the view has the terminal, but someone else may send one.
    let mut interrupted = signal(SignalKind::interrupt()).map_err(no_signals)?;
    let mut terminated = signal(SignalKind::terminate()).map_err(no_signals)?;
    let mut hung_up = signal(SignalKind::hangup()).map_err(no_signals)?;
    let mut held = Held::take().map_err(broken)?;
    let mut keys = inputs();
    let mut tick = interval(every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut view = View {
        client,
        output,
        look: Look::default(),
        history: History::default(),
        state: State::new(),
        asked: FuturesUnordered::new(),
        asked_at: None,
        lost_at: None,
    };
    view.take(first);
    loop {
        view.measure();
        let last = view.screen().last_scroll(held.area().map_err(broken)?);
        view.state.scroll_at_most(last);
        held.draw(&view.screen()).map_err(broken)?;
        // While something is late, its time goes on.
        let redraw_at = Instant::now() + Duration::from_secs(1);
        tokio::select! {
            _ = interrupted.recv() => return Ok(()),
            _ = terminated.recv() => return Ok(()),
            _ = hung_up.recv() => return Ok(()),
            input = keys.recv() => match input {
                Some(Input::Key(key)) => {
                    let action = view.state.press(key, &view.look);
                    if action == Some(Action::Quit) {
                        return Ok(());
                    }
                    view.obey(action, limit);
                }
                Some(Input::Resized) => {}
                None => return Ok(()),
            },
            _ = tick.tick(), if !view.state.paused => view.ask(limit),
            Some(answer) = view.asked.next() => view.hear(answer)?,
            () = sleep_until(redraw_at), if view.asked_at.is_some() || view.lost_at.is_some() => {
                if view.lost_at.is_some() {
                    view.ask(limit);
                }
            }
        }
    }
}

impl<'a> View<'a> {
    fn screen(&self) -> Screen<'_> {
        Screen {
            look: &self.look,
            rates: self.history.rates(),
            state: &self.state,
            endpoint: &self.client.options().endpoint,
            color: self.output.out.color,
            keys: true,
        }
    }

    fn take(&mut self, overview: v1::GetOverviewResponse) {
        self.history.push(&overview);
        self.look = Look(overview);
    }

    /// How long the server has been silent or gone.
    fn measure(&mut self) {
        let silent = self.asked_at.map(|at| at.elapsed()).filter(|for_| *for_ > SILENT_AFTER);
        match (&mut self.state.link, self.lost_at, silent) {
            (Link::Lost { for_, .. }, Some(at), _) => *for_ = at.elapsed(),
            (link, _, Some(silent)) => *link = Link::Silent(silent),
            _ => {}
        }
    }

    /// Asks for an overview, unless one is on its way.
    fn ask(&mut self, limit: u32) {
        if self.asked_at.is_some() {
            return;
        }
        self.asked_at = Some(Instant::now());
        let (client, pause) = (self.client, self.lost_at.map(|_| RETRY / 4));
        let asking = async move {
            tokio::time::sleep(pause.unwrap_or_default()).await;
            let answer =
                tokio::time::timeout(GIVE_UP, client.get_overview(v1::GetOverviewRequest { limit })).await;
            let late = || Err(Error::unavailable(format!("no answer within {GIVE_UP:?}")));
            Answer::Overview(Box::new(answer.unwrap_or_else(|_| late())))
        };
        self.asked.push(asking.boxed());
    }

    fn obey(&mut self, action: Option<Action>, limit: u32) {
        let (client, mut sink) = (self.client, self.output.out);
        match action {
            None | Some(Action::Quit) => {}
            Some(Action::Refresh) => self.ask(limit),
            Some(Action::Explain(run)) => {
                self.state.notice = Some(format!("asking about {run}…"));
                sink.color = false;
                let asking = async move {
                    let explained = client.explain_run(v1::ExplainRunRequest { run_id: run.clone() });
                    let steps = client.list_steps(v1::ListStepsRequest { run_id: run.clone() });
                    let (explained, steps) = match tokio::try_join!(explained, steps) {
                        Ok(answers) => answers,
                        Err(error) => return Answer::Popup(Err(error)),
                    };
                    let mut lines = explanation_lines(&explained, sink);
                    if !steps.steps.is_empty() {
                        lines.extend([String::new(), "steps".to_owned()]);
                        lines.extend(step_lines(&steps.steps));
                    }
                    Answer::Popup(Ok(Popup { title: "explain".to_owned(), lines, scroll: 0 }))
                };
                self.asked.push(asking.boxed());
            }
            Some(Action::Cancel(run)) => {
                self.state.notice = Some(format!("cancelling {run}…"));
                let asking = async move {
                    let reason = "cancelled in remuda top".to_owned();
                    let request = v1::CancelRunRequest { run_id: run.clone(), reason };
                    Answer::Cancelled(run, client.cancel_run(request).await.map(drop))
                };
                self.asked.push(asking.boxed());
            }
        }
    }

    /// An answer. What will not get better by asking again ends the view.
    fn hear(&mut self, answer: Answer) -> Result<()> {
        match answer {
            Answer::Overview(answer) => {
                self.asked_at = None;
                match *answer {
                    Ok(overview) => {
                        self.lost_at = None;
                        self.state.link = Link::Live;
                        // What comes after a pause began is not shown.
                        if !self.state.paused {
                            self.take(overview);
                        }
                    }
                    Err(error) if is_passing(&error) => {
                        let lost_at = *self.lost_at.get_or_insert_with(Instant::now);
                        self.state.link = Link::Lost { for_: lost_at.elapsed(), error: error.to_string() };
                    }
                    Err(error) => return Err(error),
                }
            }
            Answer::Popup(Ok(popup)) => {
                self.state.notice = None;
                if self.state.mode == Mode::Lists {
                    self.state.mode = Mode::Popup(popup);
                }
            }
            Answer::Popup(Err(error)) => self.state.notice = Some(error.to_string()),
            Answer::Cancelled(run, Ok(())) => self.state.notice = Some(format!("{run} is being cancelled")),
            Answer::Cancelled(_, Err(error)) => self.state.notice = Some(error.to_string()),
        }
        Ok(())
    }
}

/// Whether it may pass by itself.
pub(super) fn is_passing(error: &Error) -> bool {
    matches!(error.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Internal | Code::Overloaded)
}
