//! `remuda top`: live view of pools, workers and runs.
//!
//! [`data`] holds the server's response, [`state`] the user's selection, and [`view`] draws a frame from both; none of them does I/O.
//! [`live`] polls the server and handles keys, [`terminal`] controls the terminal. A frame needs one request.

mod data;
mod live;
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
    data::{History, Overview, Rates},
    state::State,
    view::Frame,
};
use crate::{
    client::{Exit, overview_document},
    output::Output,
};

pub(crate) const EXAMPLES: &str = "\
Examples:
  remuda top                             live view; ? shows the keys, q quits
  remuda top --interval 5s
  remuda top --tenant acme               with the runs of a tenant
  remuda top --once                      one frame as text
  remuda top --once --json | jq '.pools[] | select(.runnable_sessions > 0)'
  remuda top --json                      one document per refresh; rates from the second one on

Keys: tab panel, arrows or j k select, enter explain, c cancel, p pause, s sort, / filter, ? help, q quit";

/// Width of the frame if stdout is not a terminal.
const TEXT_WIDTH: u16 = 100;

#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// Refresh interval, 200ms to 1h.
    #[arg(long, short = 'n', default_value = "1s", value_name = "TIME", value_parser = refresh_interval)]
    interval: Duration,
    /// Print one frame as text and exit. This is the default if stdin or stdout is not a terminal.
    #[arg(long)]
    once: bool,
    /// Number of runs in each list.
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    limit: u32,
    /// Show the runs of this tenant. By default none; on a server that requires no keys, those of its own tenant.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    tenant: String,
}

impl TopArgs {
    fn request(&self) -> v1::GetOverviewRequest {
        v1::GetOverviewRequest { limit: self.limit, tenant: self.tenant.clone() }
    }
}

fn refresh_interval(text: &str) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let allowed = Duration::from_millis(200)..=Duration::from_secs(3600);
    if allowed.contains(&interval) { Ok(interval) } else { Err("expected 200ms to 1h".to_owned()) }
}

pub(crate) async fn top(args: &TopArgs, client: &Client, output: Output) -> Result<Exit> {
    let first = client.get_overview(args.request()).await?;
    if output.json {
        return documents(args, first, client, output).await;
    }
    if args.once || !stdout().is_terminal() || !stdin().is_terminal() {
        print_frame(first, client, output);
        return Ok(Exit::Ok);
    }
    live::watch(first, args.interval, args.request(), client, output).await?;
    Ok(Exit::Ok)
}

/// Prints one frame as text, in full height.
fn print_frame(response: v1::GetOverviewResponse, client: &Client, output: Output) {
    let (overview, state) = (Overview(response), State::new());
    let endpoint = &client.options().endpoint;
    let frame =
        Frame { overview: &overview, rates: None, state: &state, endpoint, color: false, keys: false };
    let width = ratatui::crossterm::terminal::size().ok().filter(|_| stdout().is_terminal());
    let width = width.map_or(TEXT_WIDTH, |(width, _)| width.max(80));
    let area = Rect::new(0, 0, width, frame.full_height());
    let mut buffer = Buffer::empty(area);
    frame.draw(area, &mut buffer);
    text(&buffer).iter().for_each(|line| output.out.line(line));
}

/// The lines of a frame, without trailing blanks and empty lines.
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

/// Prints one JSON document per refresh.
async fn documents(
    args: &TopArgs,
    first: v1::GetOverviewResponse,
    client: &Client,
    output: Output,
) -> Result<Exit> {
    // One handler for the whole loop, so that a signal during a request is received too.
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
            let next = async {
                tokio::time::sleep(args.interval).await;
                client.get_overview(args.request()).await
            };
            let response = tokio::select! {
                response = next => response,
                _ = interrupted.recv() => return Ok(Exit::Ok),
            };
            match response {
                Ok(overview) => break overview,
                Err(error) if live::is_transient(&error) => output.error(&error, Some("retrying")),
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
