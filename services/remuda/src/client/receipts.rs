//! The stages of a run's cancellation, for humans.

use std::time::Duration;

use remuda_domain::Timestamp;
use remuda_proto::{convert::from_timestamp, v1};

use crate::output::{Sink, Style, elapsed, local_time, one_line};

/// The stages reached so far, oldest first.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Receipts(Vec<(String, Timestamp)>);

impl Receipts {
    pub(super) fn of_run(run: &v1::Run) -> Self {
        let Some(cancel) = &run.cancel else { return Self(Vec::new()) };
        let stages = [
            ("requested", cancel.requested_at.as_ref()),
            ("delivered", cancel.delivered_at.as_ref()),
            ("stopped", cancel.stopped_at.as_ref()),
            ("released", cancel.released_at.as_ref()),
        ];
        let reached =
            stages.into_iter().filter_map(|(name, at)| Some((name.to_owned(), from_timestamp(at?)?)));
        Self(reached.collect())
    }

    pub(super) fn of_explanation(explanation: &v1::ExplainRunResponse) -> Self {
        let reached =
            |receipt: &v1::Receipt| Some((receipt.name.clone(), from_timestamp(receipt.at.as_ref()?)?));
        Self(explanation.receipts.iter().filter_map(reached).collect())
    }

    /// One line per stage, with the time since the request.
    fn lines(&self) -> Vec<(String, String)> {
        let Some((_, requested)) = self.0.first() else { return Vec::new() };
        let line = |(name, at): &(String, Timestamp)| {
            // Clocks of different machines may differ slightly.
            let since = (*at - *requested).to_std().unwrap_or(Duration::ZERO);
            let stage = match name.as_str() {
                "stopped" => "processes dead".to_owned(),
                "released" => "slot free".to_owned(),
                name => one_line(name),
            };
            (stage, format!("{:>8}  {}", format!("+{}", elapsed(since)), local_time(*at)))
        };
        self.0.iter().map(line).collect()
    }

    pub(super) fn text_lines(&self, sink: Sink) -> Vec<String> {
        let line = |(stage, when)| format!("  {} {when}", sink.paint(Style::Dim, &format!("{stage:15}")));
        self.lines().into_iter().map(line).collect()
    }

    pub(super) fn print(&self, sink: Sink) {
        self.text_lines(sink).iter().for_each(|line| sink.line(line));
    }
}

#[cfg(test)]
mod tests {
    use remuda_proto::convert::timestamp;

    use super::*;

    #[test]
    fn stages_are_shown_with_the_time_since_the_request() {
        let at = |millis: i64| Some(timestamp(Timestamp::from_timestamp_millis(millis).unwrap()));
        let cancel = v1::CancelReceipts {
            requested_at: at(1000),
            delivered_at: at(1007),
            stopped_at: at(1520),
            released_at: at(3600),
            ..Default::default()
        };
        let run = v1::Run { cancel: Some(cancel), ..Default::default() };
        let lines = Receipts::of_run(&run).lines();
        let shown: Vec<(&str, &str)> = lines
            .iter()
            .map(|(stage, when)| {
                (stage.as_str(), when.split("  ").find(|part| part.contains('+')).unwrap().trim())
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("requested", "+0 ms"),
                ("delivered", "+7 ms"),
                ("processes dead", "+520 ms"),
                ("slot free", "+2.6 s")
            ]
        );
        assert!(Receipts::of_run(&v1::Run::default()).lines().is_empty());
    }

    #[test]
    fn explanation_and_run_give_the_same_receipts() {
        let at = Some(timestamp(Timestamp::from_timestamp_millis(5).unwrap()));
        let explanation = v1::ExplainRunResponse {
            receipts: vec![v1::Receipt { name: "requested".into(), at }],
            ..Default::default()
        };
        let cancel = v1::CancelReceipts { requested_at: at, ..Default::default() };
        let run = v1::Run { cancel: Some(cancel), ..Default::default() };
        assert_eq!(Receipts::of_explanation(&explanation), Receipts::of_run(&run));
    }
}
