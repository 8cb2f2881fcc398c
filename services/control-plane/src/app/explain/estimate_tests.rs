use remuda_domain::{RunId, WorkerId, run::Parked};
use remuda_store::FirstUnfinishedRun;

use super::{
    super::tests::{alive, at, diagnostics},
    *,
};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Twenty durations: eighteen of `median`, and two of twice as long.
fn pace(median: u64) -> Vec<Duration> {
    let mut pace = vec![seconds(median); 18];
    pace.extend([seconds(2 * median); 2]);
    pace
}

fn message(diagnostics: &RunDiagnostics) -> String {
    estimate(diagnostics, &[]).unwrap().message()
}

/// A run with `ahead` runs before it, the first of which has worked for `worked` seconds.
fn behind(ahead: i64, worked: u64) -> RunDiagnostics {
    let mut behind = diagnostics(RunState::Queued, alive(WorkerId::new()));
    behind.ahead = ahead;
    behind.estimate_inputs.session_pace = pace(13);
    let front = FirstUnfinishedRun {
        run: RunId::new(),
        state: RunState::Running,
        parked: None,
        worked: seconds(worked),
    };
    behind.estimate_inputs.front = Some(front);
    behind
}

#[test]
fn queued_run_is_estimated_from_the_durations_of_its_session() {
    let cases = [
        (behind(3, 0), "about 40 s: 3 runs are ahead, the last 20 of this session took 13 s each (median)"),
        (behind(1, 10), "about 3 s: 1 run is ahead, the last 20 of this session took 13 s each (median)"),
        // The first run is slower than most.
        (behind(2, 20), "about 20 s: 2 runs are ahead, the last 20 of this session took 13 s each (median)"),
        (
            behind(200, 0),
            "about 45 min: 200 runs are ahead, the last 20 of this session took 13 s each (median)",
        ),
    ];
    for (diagnostics, expected) in cases {
        assert_eq!(message(&diagnostics), expected);
    }
    let stuck = behind(2, 400);
    let front = stuck.estimate_inputs.front.unwrap().run;
    let expected = format!(
        "unknown: {front} ahead has worked for 7 min, and the last 20 of this session took 13 s each (median)"
    );
    assert_eq!(message(&stuck), expected);
}

#[test]
fn start_behind_a_parked_run_is_unknown() {
    let mut behind = behind(1, 0);
    let mut bases = Vec::new();
    for reason in ParkReason::ALL {
        let parked = Some(Parked { reason, at: at(0) });
        behind.estimate_inputs.front = behind.estimate_inputs.front.map(|front| FirstUnfinishedRun {
            state: RunState::Parked,
            parked,
            ..front
        });
        let guess = estimate(&behind, &[]).unwrap();
        assert_eq!((guess.of, guess.about), ("start", None));
        bases.push(guess.basis);
    }
    assert!(bases[0].ends_with("is ahead and waits for a person"), "{bases:?}");
    bases.sort();
    bases.dedup();
    assert_eq!(bases.len(), ParkReason::ALL.len());
}

#[test]
fn too_few_ended_runs_give_no_estimate() {
    let mut behind = behind(1, 0);
    behind.estimate_inputs.session_pace = pace(13)[..2].to_vec();
    assert!(message(&behind).starts_with("unknown: too few runs"), "{}", message(&behind));
    behind.estimate_inputs.pool_pace = pace(60);
    assert_eq!(
        message(&behind),
        "about 60 s: 1 run is ahead, the last 20 of yours in this pool took 60 s each (median)"
    );
}

/// A run that could start, with `ahead` sessions of one run each before it and `free_slots` of eight slots free.
fn waiting(ahead: i64, free_slots: u32) -> RunDiagnostics {
    let mut waiting = diagnostics(RunState::Queued, Owner::Nobody);
    (waiting.workers, waiting.free_slots, waiting.estimate_inputs.slots) = (2, free_slots, 8);
    waiting.estimate_inputs.place = Some(QueuePosition { ahead, runs_ahead: ahead, at_least: false });
    waiting.estimate_inputs.pool_pace = pace(20);
    waiting
}

#[test]
fn start_is_estimated_from_position_slots_and_durations() {
    let yours = "the last 20 of yours in this pool took 20 s each (median)";
    let cases = [
        (waiting(0, 3), "any moment: 3 slots are free".to_owned()),
        (waiting(0, 0), format!("about 3 s: no session before it for 8 slots, {yours}")),
        (
            waiting(15, 0),
            format!("about 40 s: about 15 sessions with 15 runs before it for 8 slots, {yours}"),
        ),
        (waiting(1, 1), format!("about 3 s: about 1 session with 1 run before it for 8 slots, {yours}")),
    ];
    for (diagnostics, expected) in cases {
        assert_eq!(message(&diagnostics), expected);
    }
    // The sessions ahead keep their slots for several runs.
    let mut long = waiting(15, 0);
    long.estimate_inputs.place = Some(QueuePosition { ahead: 15, runs_ahead: 159, at_least: false });
    let expected = format!("about 6.5 min: about 15 sessions with 159 runs before it for 8 slots, {yours}");
    assert_eq!(message(&long), expected);
    // The current runs take longer than the earlier ones.
    let mut late = waiting(15, 0);
    late.estimate_inputs.now = at(81);
    assert_eq!(message(&late), format!("unknown: it has waited for 81 s, though {yours}"));
    late.estimate_inputs.now = at(79);
    assert_eq!(
        message(&late),
        format!("about 40 s: about 15 sessions with 15 runs before it for 8 slots, {yours}")
    );
    let mut quick = waiting(0, 0);
    quick.estimate_inputs.pool_pace = vec![Duration::from_millis(35); 9];
    assert!(message(&quick).starts_with("about 1 s: "), "{}", message(&quick));
    let mut many = waiting(10_000, 0);
    many.estimate_inputs.place = Some(QueuePosition { ahead: 10_000, runs_ahead: 10_000, at_least: true });
    assert_eq!(message(&many), "unknown: at least 10000 sessions of the pool come before it");
    let mut new = waiting(0, 0);
    new.estimate_inputs.pool_pace.clear();
    assert!(message(&new).starts_with("unknown: all 8 slots are busy, too few"), "{}", message(&new));
}

#[test]
fn start_without_a_worker_is_unknown() {
    let mut lonely = waiting(0, 0);
    lonely.workers = 0;
    assert_eq!(message(&lonely), "unknown: no worker of the pool default is alive");
    lonely.estimate_inputs.draining = 1;
    assert_eq!(message(&lonely), "unknown: the pool's 1 worker is being drained");
    // The same for the runs behind it.
    lonely.ahead = 2;
    let front = FirstUnfinishedRun {
        run: RunId::new(),
        state: RunState::Queued,
        parked: None,
        worked: Duration::ZERO,
    };
    lonely.estimate_inputs.front = Some(front);
    assert_eq!(message(&lonely), "unknown: the pool's 1 worker is being drained");
    (lonely.workers, lonely.free_slots) = (1, 1);
    let expected = "about 40 s: 2 runs are ahead, the last 20 of yours in this pool took 20 s each (median)";
    assert_eq!(message(&lonely), expected);
}

#[test]
fn started_run_gets_an_estimate_of_its_resume() {
    let mut lost = waiting(0, 1);
    lost.run.attempt = 1;
    assert_eq!(estimate(&lost, &[]).unwrap().of, "resume");
    lost.head.owner = Owner::Expired { worker: WorkerId::new() };
    lost.run.state = RunState::Running;
    assert_eq!(estimate(&lost, &[]).unwrap().of, "resume");
}

#[test]
fn end_is_estimated_from_earlier_runs() {
    let mut executing = diagnostics(RunState::Running, alive(WorkerId::new()));
    executing.run.timeout = seconds(3600);
    executing.run.started_at = Some(at(100));
    executing.estimate_inputs.session_pace = pace(13);
    let guesses = [
        (103, "about 10 s: it has worked for 3 s, the last 20 of this session took 13 s each (median)"),
        (
            120,
            "about 6 s: it has worked for 20 s, the last 20 of this session took 13 s each (median), nine of ten at most 26 s",
        ),
        (140, "unknown: it has worked for 40 s, and the last 20 of this session took 13 s each (median)"),
    ];
    for (now, expected) in guesses {
        executing.estimate_inputs.now = at(now);
        let guess = estimate(&executing, &[]).unwrap();
        assert_eq!((guess.of, guess.message().as_str(), guess.at_latest), ("end", expected, Some(at(3700))));
    }
    executing.estimate_inputs.session_pace.clear();
    assert!(message(&executing).starts_with("unknown: too few"));
    let cancel = remuda_domain::run::CancelRequest {
        at: at(1),
        reason: String::new(),
        delivered_at: None,
        stopped_at: None,
    };
    executing.run.cancel = Some(cancel);
    assert_eq!(message(&executing), "any moment: it is being stopped");
}

#[test]
fn resume_of_a_parked_run_is_unknown() {
    let mut parked = diagnostics(RunState::Parked, Owner::Nobody);
    let wait = |kind, expires_at| Wait { kind, expires_at, ..Wait::default() };
    let mut guess = |reason, waits: &[Wait]| {
        parked.run.parked = Some(Parked { reason, at: at(0) });
        let guess = estimate(&parked, waits).unwrap();
        (guess.message(), guess.at_latest)
    };
    let person = || "unknown: it waits for a person".to_owned();
    let asked = [wait("approval", Some(at(7))), wait("approval", Some(at(9)))];
    assert_eq!(guess(ParkReason::Approval, &asked), (person(), Some(at(9))));
    assert_eq!(guess(ParkReason::Approval, &[wait("approval", None)]), (person(), None));
    let (child, both) = ([wait("child", None)], [wait("child", None), wait("approval", Some(at(9)))]);
    let (message, _) = guess(ParkReason::Children, &child);
    assert_eq!(message, "unknown: it waits for 1 child run, each with an estimate of its own");
    assert_eq!(guess(ParkReason::Children, &both), (person(), None));
    let (message, _) = guess(ParkReason::Budget, &[wait("budget", None)]);
    assert_eq!(message, "unknown: it waits for someone to raise a budget");
    assert_eq!(guess(ParkReason::External, &[]).0, "unknown: it waits for something outside");
    assert_eq!(guess(ParkReason::Budget, &[]).0, "any moment: what it waited for has come");
}

#[test]
fn ended_run_has_no_estimate() {
    for state in RunState::ALL.into_iter().filter(|state| state.is_terminal()) {
        assert_eq!(estimate(&diagnostics(state, Owner::Nobody), &[]), None);
    }
}
