//! The live view: polls the server, draws frames and handles keys.

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
    data::{History, Overview},
    state::{Action, ConnectionState, Mode, Popup, State},
    terminal::{Input, TerminalSession, spawn_input_thread},
    view::Frame,
};
use crate::{
    client::{explanation_lines, step_lines},
    output::Output,
};

/// A request that takes longer than this is shown as slow.
const SLOW_AFTER: Duration = Duration::from_secs(2);
/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Retry interval while the server cannot be reached.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A response of the server.
enum Response {
    Overview(Box<Result<v1::GetOverviewResponse>>),
    Popup(Result<Popup>),
    Cancelled(String, Result<()>),
}

struct LiveView<'a> {
    client: &'a Client,
    /// Repeated for every frame.
    request: v1::GetOverviewRequest,
    output: Output,
    overview: Overview,
    history: History,
    state: State,
    requests: FuturesUnordered<BoxFuture<'a, Response>>,
    /// Start time of the pending overview request.
    requested_at: Option<Instant>,
    failed_since: Option<Instant>,
}

/// Shows the view until `q`, Ctrl-C or a signal. The caller requests `first`, so that a wrong address or key is reported before the
/// terminal switches to the view.
pub(super) async fn watch(
    first: v1::GetOverviewResponse,
    every: Duration,
    request: v1::GetOverviewRequest,
    client: &Client,
    output: Output,
) -> Result<()> {
    let failed = |error| Error::internal("the terminal cannot be used").with_source(error);
    let no_signals = |error| Error::internal("signals cannot be received").with_source(error);
    // In raw mode Ctrl-C is a key and no signal, but other processes may send SIGINT.
    let mut interrupted = signal(SignalKind::interrupt()).map_err(no_signals)?;
    let mut terminated = signal(SignalKind::terminate()).map_err(no_signals)?;
    let mut hung_up = signal(SignalKind::hangup()).map_err(no_signals)?;
    let mut terminal = TerminalSession::start().map_err(failed)?;
    let mut keys = spawn_input_thread();
    let mut tick = interval(every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut view = LiveView {
        client,
        request,
        output,
        overview: Overview::default(),
        history: History::default(),
        state: State::new(),
        requests: FuturesUnordered::new(),
        requested_at: None,
        failed_since: None,
    };
    view.show_overview(first);
    loop {
        view.update_connection();
        let last = view.frame().last_scroll(terminal.area().map_err(failed)?);
        view.state.scroll_at_most(last);
        terminal.draw(&view.frame()).map_err(failed)?;
        // Redraw every second to update the displayed waiting time.
        let redraw_at = Instant::now() + Duration::from_secs(1);
        tokio::select! {
            _ = interrupted.recv() => return Ok(()),
            _ = terminated.recv() => return Ok(()),
            _ = hung_up.recv() => return Ok(()),
            input = keys.recv() => match input {
                Some(Input::Key(key)) => {
                    let action = view.state.press(key, &view.overview);
                    if action == Some(Action::Quit) {
                        return Ok(());
                    }
                    view.perform(action);
                }
                Some(Input::Resized) => {}
                None => return Ok(()),
            },
            _ = tick.tick(), if !view.state.paused => view.request_overview(),
            Some(response) = view.requests.next() => view.receive(response)?,
            () = sleep_until(redraw_at), if view.requested_at.is_some() || view.failed_since.is_some() => {
                if view.failed_since.is_some() {
                    view.request_overview();
                }
            }
        }
    }
}

impl<'a> LiveView<'a> {
    fn frame(&self) -> Frame<'_> {
        Frame {
            overview: &self.overview,
            rates: self.history.rates(),
            state: &self.state,
            endpoint: &self.client.options().endpoint,
            color: self.output.out.color,
            keys: true,
        }
    }

    fn show_overview(&mut self, overview: v1::GetOverviewResponse) {
        self.history.push(&overview);
        self.overview = Overview(overview);
    }

    /// Updates how long the server has been slow or unreachable.
    fn update_connection(&mut self) {
        let slow = self.requested_at.map(|at| at.elapsed()).filter(|for_| *for_ > SLOW_AFTER);
        match (&mut self.state.connection, self.failed_since, slow) {
            (ConnectionState::Lost { for_, .. }, Some(at), _) => *for_ = at.elapsed(),
            (connection, _, Some(slow)) => *connection = ConnectionState::Slow(slow),
            _ => {}
        }
    }

    /// Requests an overview, unless a request is pending.
    fn request_overview(&mut self) {
        if self.requested_at.is_some() {
            return;
        }
        self.requested_at = Some(Instant::now());
        let (client, pause) = (self.client, self.failed_since.map(|_| RETRY_INTERVAL / 4));
        let overview = self.request.clone();
        let request = async move {
            tokio::time::sleep(pause.unwrap_or_default()).await;
            let response = tokio::time::timeout(REQUEST_TIMEOUT, client.get_overview(overview)).await;
            let timed_out = || Err(Error::unavailable(format!("no answer within {REQUEST_TIMEOUT:?}")));
            Response::Overview(Box::new(response.unwrap_or_else(|_| timed_out())))
        };
        self.requests.push(request.boxed());
    }

    fn perform(&mut self, action: Option<Action>) {
        let (client, mut sink) = (self.client, self.output.out);
        match action {
            None | Some(Action::Quit) => {}
            Some(Action::Refresh) => self.request_overview(),
            Some(Action::Explain(run)) => {
                self.state.notice = Some(format!("loading {run}…"));
                sink.color = false;
                let request = async move {
                    let explained = client.explain_run(v1::ExplainRunRequest { run_id: run.clone() });
                    let steps = client.list_steps(v1::ListStepsRequest { run_id: run.clone() });
                    let (explained, steps) = match tokio::try_join!(explained, steps) {
                        Ok(responses) => responses,
                        Err(error) => return Response::Popup(Err(error)),
                    };
                    let mut lines = explanation_lines(&explained, sink);
                    if !steps.steps.is_empty() {
                        lines.extend([String::new(), "steps".to_owned()]);
                        lines.extend(step_lines(&steps.steps));
                    }
                    Response::Popup(Ok(Popup { title: "explain".to_owned(), lines, scroll: 0 }))
                };
                self.requests.push(request.boxed());
            }
            Some(Action::Cancel(run)) => {
                self.state.notice = Some(format!("cancelling {run}…"));
                let request = async move {
                    let reason = "cancelled in remuda top".to_owned();
                    let request = v1::CancelRunRequest { run_id: run.clone(), reason };
                    Response::Cancelled(run, client.cancel_run(request).await.map(drop))
                };
                self.requests.push(request.boxed());
            }
        }
    }

    /// Handles a response. An error that a retry cannot solve ends the view.
    fn receive(&mut self, response: Response) -> Result<()> {
        match response {
            Response::Overview(response) => {
                self.requested_at = None;
                match *response {
                    Ok(overview) => {
                        self.failed_since = None;
                        self.state.connection = ConnectionState::Connected;
                        // Ignore responses while paused.
                        if !self.state.paused {
                            self.show_overview(overview);
                        }
                    }
                    Err(error) if is_transient(&error) => {
                        let failed_since = *self.failed_since.get_or_insert_with(Instant::now);
                        self.state.connection =
                            ConnectionState::Lost { for_: failed_since.elapsed(), error: error.to_string() };
                    }
                    Err(error) => return Err(error),
                }
            }
            Response::Popup(Ok(popup)) => {
                self.state.notice = None;
                if self.state.mode == Mode::Panels {
                    self.state.mode = Mode::Popup(popup);
                }
            }
            Response::Popup(Err(error)) => self.state.notice = Some(error.to_string()),
            Response::Cancelled(run, Ok(())) => self.state.notice = Some(format!("{run} is being cancelled")),
            Response::Cancelled(_, Err(error)) => self.state.notice = Some(error.to_string()),
        }
        Ok(())
    }
}

/// Whether a retry may succeed.
pub(super) fn is_transient(error: &Error) -> bool {
    error.code().is_outage()
        || matches!(error.code(), Code::DeadlineExceeded | Code::Internal | Code::Overloaded)
}
