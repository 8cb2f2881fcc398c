//! `remuda tasks`: shows the background tasks of the control plane.

use std::time::Duration;

use remuda_client::Client;
use remuda_domain::error::Result;
use remuda_proto::{convert, v1};

use super::{exit::Exit, json};
use crate::output::{Output, Style, Table, ago, elapsed};

pub(super) const EXAMPLES: &str = "\
Examples:
  remuda tasks
  remuda tasks --json | jq 'select(.last.error)'      tasks whose last round failed";

pub(super) async fn tasks(client: &Client, output: Output) -> Result<Exit> {
    let tasks = client.list_tasks(v1::ListTasksRequest {}).await?.tasks;
    if output.json {
        tasks.iter().for_each(|task| output.json_line(&json::task(task)));
        return Ok(Exit::Ok);
    }
    if tasks.is_empty() {
        output.note("no background task has run yet");
        return Ok(Exit::Ok);
    }
    let now = chrono::Utc::now();
    let header = ["TASK", "LAST", "TOOK", "RESULT", "LAST WITH RESULT", "ROUNDS", "FAILURES", "ON"];
    let mut table = Table::new(output.out, &header);
    for task in tasks {
        let last = task.last.unwrap_or_default();
        let failed = !last.error.is_empty();
        let took: Option<Duration> = last.duration.and_then(|duration| duration.try_into().ok());
        let notable = task.last_notable.map(|round| format!("{}: {}", age(&round, now), result(&round)));
        table.row([
            (task.name, Some(Style::Bold)),
            (age(&last, now), None),
            (took.map(elapsed).unwrap_or_default(), None),
            (result(&last), failed.then_some(Style::Bad)),
            (notable.unwrap_or_default(), None),
            (task.rounds.to_string(), None),
            (task.failures.to_string(), (task.failures > 0).then_some(Style::Warn)),
            (last.holder, Some(Style::Dim)),
        ]);
    }
    table.print();
    Ok(Exit::Ok)
}

fn age(round: &v1::TaskRound, now: chrono::DateTime<chrono::Utc>) -> String {
    let started = round.started_at.as_ref().and_then(convert::from_timestamp);
    started.map(|at| ago(at, now)).unwrap_or_default()
}

/// The result of a round, such as `sessions 3, ended runs 1`, or its error.
fn result(round: &v1::TaskRound) -> String {
    if !round.error.is_empty() {
        return round.error.clone();
    }
    if round.counts.is_empty() {
        return "nothing to do".to_owned();
    }
    let counts = round.counts.iter().map(|(name, count)| format!("{} {count}", name.replace('_', " ")));
    counts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_shows_its_counts_or_its_error() {
        let mut round = v1::TaskRound::default();
        assert_eq!(result(&round), "nothing to do");
        round.counts = [("sessions".to_owned(), 3), ("ended_runs".to_owned(), 1)].into();
        assert_eq!(result(&round), "ended runs 1, sessions 3");
        round.error = "not connected to NATS".to_owned();
        assert_eq!(result(&round), "not connected to NATS");
    }
}
