//! What version 0.1.0 stored and sent is read, and written again, without a difference.
//!
//! The golden files were written by a release build of 0.1.0: JSON columns of its database and payloads of its bus. A Rust name may change;
//! a serialized name may not, because rows outlive a build and processes of two versions share a bus during a rolling upgrade.

#![expect(clippy::unwrap_used, reason = "a test")]

use remuda_domain::{
    Event, EventBody, RunInput,
    approval::ApprovalRequest,
    event::Delta,
    logs::Notice,
    message::Part,
    permission::SessionPermissions,
    run::{Failure, RunEndNotice},
    step::Step,
    worker::{Signal, SlotOffer},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

const STORED: &str = include_str!("golden/stored.tsv");
const BUS: &str = include_str!("golden/bus.tsv");

fn rewritten<T: Serialize + DeserializeOwned>(json: &str) -> Value {
    let value: T = serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"));
    serde_json::to_value(value).unwrap()
}

fn rewritten_as(kind: &str, json: &str) -> Value {
    match kind {
        "run_input" => rewritten::<RunInput>(json),
        "failure" => rewritten::<Failure>(json),
        "step" => rewritten::<Step>(json),
        "message_part" => rewritten::<Part>(json),
        "session_permissions" => rewritten::<SessionPermissions>(json),
        "approval_request" => rewritten::<ApprovalRequest>(json),
        "event" => rewritten::<Event>(json),
        "event_body" => rewritten::<EventBody>(json),
        "delta" => rewritten::<Delta>(json),
        "slot_offer" => rewritten::<SlotOffer>(json),
        "end_notices" => rewritten::<Vec<RunEndNotice>>(json),
        "signal" => rewritten::<Signal>(json),
        "notice" => rewritten::<Notice>(json),
        unknown => panic!("the golden files have a kind that this test does not know: {unknown}"),
    }
}

/// Checks every line, and that each of these kinds has lines.
fn check(file: &str, kinds: &[&str]) {
    let lines: Vec<(&str, &str)> = file.lines().map(|line| line.split_once('\t').unwrap()).collect();
    for (kind, json) in &lines {
        let golden: Value = serde_json::from_str(json).unwrap();
        assert_eq!(rewritten_as(kind, json), golden, "{kind}");
    }
    for kind in kinds {
        assert!(lines.iter().any(|(name, _)| name == kind), "no golden line of {kind}");
    }
}

#[test]
fn rows_of_version_0_1_0_are_read_and_written_unchanged() {
    check(
        STORED,
        &["run_input", "failure", "step", "message_part", "session_permissions", "approval_request", "event"],
    );
}

#[test]
fn bus_messages_of_version_0_1_0_are_read_and_written_unchanged() {
    check(BUS, &["event", "delta", "slot_offer", "end_notices", "signal", "notice"]);
}

#[test]
fn every_signal_has_a_golden_line() {
    let signals: Vec<Signal> = BUS
        .lines()
        .filter_map(|line| line.strip_prefix("signal\t"))
        .map(|json| serde_json::from_str(json).unwrap())
        .collect();
    let has = |name: &dyn Fn(&Signal) -> bool| signals.iter().any(name);
    assert!(has(&|signal| matches!(signal, Signal::Cancel { .. })));
    assert!(has(&|signal| matches!(signal, Signal::Drain)));
    assert!(has(&|signal| matches!(signal, Signal::ResendDeltas { .. })));
    assert!(has(&|signal| matches!(signal, Signal::ReclaimSession { .. })));
}
