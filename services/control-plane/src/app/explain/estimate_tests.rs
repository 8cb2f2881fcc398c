use remuda_domain::{RunId, WorkerId, run::Parked};
use remuda_store::Front;

use super::{
    super::tests::{alive, at, situation},
    *,
};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Twenty runs, the fourteenth of which in order took `median`, and the slowest two twice as long.
fn pace(median: u64) -> Vec<Duration> {
    let mut pace = vec![seconds(median); 18];
    pace.extend([seconds(2 * median); 2]);
    pace
}

fn message(situation: &Situation) -> String {
    estimate(situation, &[]).unwrap().message()
}

/// One with so many ahead, the first of which has worked for so long.
fn behind(ahead: i64, worked: u64) -> Situation {
    let mut behind = situation(RunState::Queued, alive(WorkerId::new()));
    behind.ahead = ahead;
    behind.outlook.session_pace = pace(13);
    let front = Front { run: RunId::new(), state: RunState::Running, parked: None, worked: seconds(worked) };
    behind.outlook.front = Some(front);
    behind
}

#[test]
fn a_line_moves_at_the_pace_of_its_session() {
    let cases = [
        (behind(3, 0), "about 40 s: 3 runs are ahead, the last 20 of this session took 13 s each (median)"),
        (behind(1, 10), "about 3 s: 1 run is ahead, the last 20 of this session took 13 s each (median)"),
        // The first one is slower than most.
        (behind(2, 20), "about 20 s: 2 runs are ahead, the last 20 of this session took 13 s each (median)"),
        (
            behind(200, 0),
            "about 45 min: 200 runs are ahead, the last 20 of this session took 13 s each (median)",
        ),
    ];
    for (situation, expected) in cases {
        assert_eq!(message(&situation), expected);
    }
    let stuck = behind(2, 400);
    let front = stuck.outlook.front.unwrap().run;
    let expected = format!(
        "unknown: {front} ahead has worked for 7 min, and the last 20 of this session took 13 s each (median)"
    );
    assert_eq!(message(&stuck), expected);
}

#[test]
fn behind_one_that_waits_nothing_can_be_said() {
    let mut behind = behind(1, 0);
    let mut seen = Vec::new();
    for reason in ParkReason::ALL {
        let parked = Some(Parked { reason, at: at(0) });
        behind.outlook.front =
            behind.outlook.front.map(|front| Front { state: RunState::Parked, parked, ..front });
        let guess = estimate(&behind, &[]).unwrap();
        assert_eq!((guess.of, guess.about), ("start", None));
        seen.push(guess.basis);
    }
    assert!(seen[0].ends_with("is ahead and waits for a person"), "{seen:?}");
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), ParkReason::ALL.len());
}

#[test]
fn too_little_to_go_by_is_said() {
    let mut behind = behind(1, 0);
    behind.outlook.session_pace = pace(13)[..2].to_vec();
    assert!(message(&behind).starts_with("unknown: too few runs"), "{}", message(&behind));
    behind.outlook.pool_pace = pace(60);
    assert_eq!(
        message(&behind),
        "about 60 s: 1 run is ahead, the last 20 of yours in this pool took 60 s each (median)"
    );
}

/// One that could start, with so many sessions of a run each before it and so many of eight slots free.
fn waiting(ahead: i64, free_slots: u32) -> Situation {
    let mut waiting = situation(RunState::Queued, Owner::Nobody);
    (waiting.workers, waiting.free_slots, waiting.outlook.slots) = (2, free_slots, 8);
    waiting.outlook.place = Some(Place { ahead, runs_ahead: ahead, at_least: false });
    waiting.outlook.pool_pace = pace(20);
    waiting
}

#[test]
fn a_place_in_the_pool_is_worth_its_share_of_the_slots() {
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
    for (situation, expected) in cases {
        assert_eq!(message(&situation), expected);
    }
    // Each of those ahead keeps its slot for a while.
    let mut long = waiting(15, 0);
    long.outlook.place = Some(Place { ahead: 15, runs_ahead: 159, at_least: false });
    let expected = format!("about 6.5 min: about 15 sessions with 159 runs before it for 8 slots, {yours}");
    assert_eq!(message(&long), expected);
    // Those that run now take longer than those before them.
    let mut late = waiting(15, 0);
    late.outlook.now = at(81);
    assert_eq!(message(&late), format!("unknown: it has waited for 81 s, though {yours}"));
    late.outlook.now = at(79);
    assert_eq!(
        message(&late),
        format!("about 40 s: about 15 sessions with 15 runs before it for 8 slots, {yours}")
    );
    let mut quick = waiting(0, 0);
    quick.outlook.pool_pace = vec![Duration::from_millis(35); 9];
    assert!(message(&quick).starts_with("about 1 s: "), "{}", message(&quick));
    let mut many = waiting(10_000, 0);
    many.outlook.place = Some(Place { ahead: 10_000, runs_ahead: 10_000, at_least: true });
    assert_eq!(message(&many), "unknown: at least 10000 sessions of the pool come before it");
    let mut new = waiting(0, 0);
    new.outlook.pool_pace.clear();
    assert!(message(&new).starts_with("unknown: all 8 slots are busy, too few"), "{}", message(&new));
}

#[test]
fn without_a_worker_nothing_can_be_said() {
    let mut lonely = waiting(0, 0);
    lonely.workers = 0;
    assert_eq!(message(&lonely), "unknown: no worker of the pool default is alive");
    lonely.outlook.draining = 1;
    assert_eq!(message(&lonely), "unknown: the pool's 1 worker is being drained");
    // The same for those behind it.
    lonely.ahead = 2;
    let front = Front { run: RunId::new(), state: RunState::Queued, parked: None, worked: Duration::ZERO };
    lonely.outlook.front = Some(front);
    assert_eq!(message(&lonely), "unknown: the pool's 1 worker is being drained");
    (lonely.workers, lonely.free_slots) = (1, 1);
    let expected = "about 40 s: 2 runs are ahead, the last 20 of yours in this pool took 20 s each (median)";
    assert_eq!(message(&lonely), expected);
}

#[test]
fn a_run_that_has_begun_goes_on() {
    let mut lost = waiting(0, 1);
    lost.run.attempt = 1;
    assert_eq!(estimate(&lost, &[]).unwrap().of, "resume");
    lost.head.owner = Owner::Expired { worker: WorkerId::new() };
    lost.run.state = RunState::Running;
    assert_eq!(estimate(&lost, &[]).unwrap().of, "resume");
}

#[test]
fn the_end_of_a_run_is_guessed_from_others() {
    let mut executing = situation(RunState::Running, alive(WorkerId::new()));
    executing.run.timeout = seconds(3600);
    executing.run.started_at = Some(at(100));
    executing.outlook.session_pace = pace(13);
    let guesses = [
        (103, "about 10 s: it has worked for 3 s, the last 20 of this session took 13 s each (median)"),
        (
            120,
            "about 6 s: it has worked for 20 s, the last 20 of this session took 13 s each (median), nine of ten at most 26 s",
        ),
        (140, "unknown: it has worked for 40 s, and the last 20 of this session took 13 s each (median)"),
    ];
    for (now, expected) in guesses {
        executing.outlook.now = at(now);
        let guess = estimate(&executing, &[]).unwrap();
        assert_eq!((guess.of, guess.message().as_str(), guess.at_latest), ("end", expected, Some(at(3700))));
    }
    executing.outlook.session_pace.clear();
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
fn what_others_decide_is_not_guessed() {
    let mut parked = situation(RunState::Parked, Owner::Nobody);
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
fn what_is_over_has_no_estimate() {
    for state in RunState::ALL.into_iter().filter(|state| state.is_terminal()) {
        assert_eq!(estimate(&situation(state, Owner::Nobody), &[]), None);
    }
}
