use remuda_proto::convert::timestamp;

use super::*;

fn at(second: i64) -> Option<prost_types::Timestamp> {
    Some(timestamp(Timestamp::from_timestamp(1_800_000_000 + second, 0).unwrap()))
}

fn counted(second: i64, submitted: u64) -> v1::GetOverviewResponse {
    let counts = v1::Counts {
        submitted,
        completed: submitted / 2,
        cost_micros: submitted * 1000,
        ..Default::default()
    };
    v1::GetOverviewResponse { at: at(second), counts: Some(counts), ..Default::default() }
}

#[test]
fn rates_cover_the_window() {
    let mut history = History::default();
    assert_eq!(history.rates(), None);
    history.push(&counted(0, 100));
    assert_eq!(history.rates(), None, "one sample has no rate");
    history.push(&counted(0, 100));
    assert_eq!(history.rates(), None, "a repeated sample is ignored");
    history.push(&counted(2, 120));
    let rates = history.rates().unwrap();
    assert_eq!((rates.submitted, rates.completed, rates.failed), (10.0, 5.0, 0.0));
    assert!((rates.dollars - 0.6).abs() < 1e-9, "{rates:?}");
    // Samples outside of the window are dropped.
    for second in 3..=60 {
        history.push(&counted(second, 120));
    }
    assert_eq!(history.rates().unwrap().submitted, 0.0);
    assert!(history.0.len() <= 17, "{}", history.0.len());
    // An older sample from another control plane.
    history.push(&counted(59, 119));
    assert_eq!(history.rates().unwrap().submitted, 0.0);
    // Another database.
    history.push(&counted(61, 3));
    assert_eq!(history.rates(), None);
}

fn run(name: &str, session: &str, cost_micros: u64, position: i64) -> v1::RunGlance {
    v1::RunGlance {
        run_id: name.into(),
        session_name: session.into(),
        session_id: "ses_0123456789".into(),
        cost_micros,
        position,
        worker_id: "wrk_1".into(),
        ..Default::default()
    }
}

#[test]
fn rows_are_sorted_and_filtered() {
    let overview = Overview(v1::GetOverviewResponse {
        running: vec![run("run_1", "b", 1, 0), run("run_2", "a", 5, 2), run("run_3", "", 3, 1)],
        workers: vec![
            v1::Worker { id: "wrk_1".into(), host: "Node-1".into(), busy: 1, ..Default::default() },
            v1::Worker { id: "wrk_2".into(), host: "anvil".into(), busy: 3, ..Default::default() },
        ],
        ..Default::default()
    });
    let keys = |order, filter| overview.keys(Panel::Running, order, filter);
    assert_eq!(keys(Order::Time, ""), ["run_1", "run_2", "run_3"]);
    assert_eq!(keys(Order::Cost, ""), ["run_2", "run_3", "run_1"]);
    assert_eq!(keys(Order::Name, ""), ["run_2", "run_1", "run_3"]);
    assert_eq!(keys(Order::Time, "RUN_2"), ["run_2"]);
    assert_eq!(keys(Order::Time, "node"), ["run_1", "run_2", "run_3"], "by the host of their worker");
    assert!(keys(Order::Time, "nothing").is_empty());
    assert_eq!(overview.keys(Panel::Workers, Order::Busy, ""), ["wrk_2", "wrk_1"]);
    assert_eq!(overview.keys(Panel::Workers, Order::Name, ""), ["wrk_1", "wrk_2"]);
    assert_eq!(overview.worker_host("wrk_9"), "wrk_9");
    assert_eq!(session_label(&overview.0.running[2]), "…456789");
}

#[test]
fn ids_are_shortened_to_their_end() {
    assert_eq!(
        (short("run_01k9abcdef"), short("run_1"), short("")),
        ("…abcdef".into(), "run_1".into(), String::new())
    );
    assert_eq!(short("ééééééé"), "…éééééé");
}
