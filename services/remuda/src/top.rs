//! `remuda top`: the fleet, live.
//!
//! [`data`] is what the server told, [`state`] what a person chose, [`view`] a frame made of both: all pure. [`session`] asks and obeys,
//! [`terminal`] takes the screen and gives it back. A frame costs one request.

mod data;
mod session;
mod state;
mod terminal;
mod view;

use std::{
    io::{IsTerminal as _, stdin, stdout},
    time::Duration,
};

use ratatui::{buffer::Buffer, layout::Rect};
use remuda_client::Client;
use remuda_domain::{Error, error::Result};
use remuda_proto::v1;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use self::{
    data::{History, Look, Rates},
    state::State,
    view::Screen,
};
use crate::{
    client::{Exit, overview_document},
    output::Output,
};

pub(crate) const EXAMPLES: &str = "\
Examples:
  remuda top                             watch; ? shows the keys, q quits
  remuda top --interval 5s
  remuda top --once                      one frame as text
  remuda top --once --json | jq '.pools[] | select(.runnable_sessions > 0)'
  remuda top --json                      one document per refresh, with rates from the second on

Keys: tab panel, arrows or j k select, enter explain, c cancel, p pause, s sort, / filter, ? help, q quit";

/// Text that is not for a terminal has no width of its own.
const TEXT_WIDTH: u16 = 100;

#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// How often to ask the server.
    #[arg(long, short = 'n', default_value = "1s", value_name = "TIME", value_parser = pace)]
    interval: Duration,
    /// Print one frame as text and exit; so does a stdout that is no terminal.
    #[arg(long)]
    once: bool,
    /// How many runs each list holds.
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    limit: u32,
}

fn pace(text: &str) -> Result<Duration, String> {
    let pace = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let allowed = Duration::from_millis(200)..=Duration::from_secs(3600);
    if allowed.contains(&pace) { Ok(pace) } else { Err("expected 200ms to 1h".to_owned()) }
}

pub(crate) async fn top(args: &TopArgs, client: &Client, output: Output) -> Result<Exit> {
    let first = client.get_overview(v1::GetOverviewRequest { limit: args.limit }).await?;
    if output.json {
        return documents(args, first, client, output).await;
    }
    if args.once || !stdout().is_terminal() || !stdin().is_terminal() {
        frame(first, client, output);
        return Ok(Exit::Ok);
    }
    session::watch(first, args.interval, args.limit, client, output).await?;
    Ok(Exit::Ok)
}

/// One frame, as high as it needs to be.
fn frame(overview: v1::GetOverviewResponse, client: &Client, output: Output) {
    let (look, state) = (Look(overview), State::new());
    let endpoint = &client.options().endpoint;
    let screen = Screen { look: &look, rates: None, state: &state, endpoint, color: false, keys: false };
    let width = ratatui::crossterm::terminal::size().ok().filter(|_| stdout().is_terminal());
    let width = width.map_or(TEXT_WIDTH, |(width, _)| width.max(80));
    let area = Rect::new(0, 0, width, screen.full_height());
    let mut buffer = Buffer::empty(area);
    screen.draw(area, &mut buffer);
    text(&buffer).iter().for_each(|line| output.out.line(line));
}

/// The lines of a drawn frame, without what is empty at their ends.
fn text(buffer: &Buffer) -> Vec<String> {
    let line = |y: u16| {
        let cells = (buffer.area.left()..buffer.area.right()).filter_map(|x| buffer.cell((x, y)));
        cells.map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned()
    };
    let mut lines: Vec<String> = (buffer.area.top()..buffer.area.bottom()).map(line).collect();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines
}

/// One document per refresh.
async fn documents(
    args: &TopArgs,
    first: v1::GetOverviewResponse,
    client: &Client,
    output: Output,
) -> Result<Exit> {
    // One for the whole time: a signal that comes while the server is asked is heard too.
    let no_signals = |error| Error::internal("signals cannot be received").with_source(error);
    let mut interrupted = signal(SignalKind::interrupt()).map_err(no_signals)?;
    let mut history = History::default();
    let mut overview = first;
    loop {
        history.push(&overview);
        let mut document = overview_document(&overview);
        if let Some(rates) = history.rates() {
            document["rates"] = rates_document(&rates);
        }
        output.json_line(&document);
        if args.once {
            return Ok(Exit::Ok);
        }
        overview = loop {
            let asking = async {
                tokio::time::sleep(args.interval).await;
                client.get_overview(v1::GetOverviewRequest { limit: args.limit }).await
            };
            let answer = tokio::select! {
                answer = asking => answer,
                _ = interrupted.recv() => return Ok(Exit::Ok),
            };
            match answer {
                Ok(overview) => break overview,
                Err(error) if session::is_passing(&error) => output.error(&error, Some("asking again")),
                Err(error) => return Err(error),
            }
        };
    }
}

fn rates_document(rates: &Rates) -> serde_json::Value {
    json!({
        "submitted_per_second": rates.submitted,
        "completed_per_second": rates.completed,
        "failed_per_second": rates.failed,
        "cancelled_per_second": rates.cancelled,
        "timed_out_per_second": rates.timed_out,
        "tokens_per_minute": rates.tokens,
        "dollars_per_minute": rates.dollars,
    })
}
