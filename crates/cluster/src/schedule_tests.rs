use std::collections::HashSet;

use super::*;

fn overlaps(faults: &[PlannedFault]) -> bool {
    faults.windows(2).any(|pair| pair[0].ends() > pair[1].at)
}

#[test]
fn same_seed_gives_the_same_schedule() {
    for seed in 0..20 {
        let schedule = FaultSchedule::new(seed, FaultKind::all(), 180);
        assert_eq!(schedule, FaultSchedule::new(seed, FaultKind::all(), 180));
        assert_eq!(
            schedule.clone().with_overlap(seed, FaultKind::all()),
            schedule.clone().with_overlap(seed, FaultKind::all())
        );
        assert_ne!(schedule.faults(), FaultSchedule::new(seed + 1, FaultKind::all(), 180).faults());
    }
}

#[test]
fn each_kind_occurs_if_time_allows_and_never_two_at_once() {
    for seed in 0..100 {
        for seconds in [120, 300] {
            let faults = FaultSchedule::new(seed, FaultKind::all(), seconds).faults();
            let kinds: HashSet<FaultKind> = faults.iter().map(|fault| fault.kind).collect();
            assert_eq!(kinds.len(), FaultKind::all().len(), "seed {seed}, {seconds} s: {faults:?}");
            assert!(!overlaps(&faults), "seed {seed}: {faults:?}");
            let end = faults.last().unwrap().ends();
            assert!(end <= Duration::from_secs(seconds).mul_f64(ACTIVE_SHARE), "seed {seed}: {end:?}");
        }
    }
}

#[test]
fn about_a_quarter_of_the_active_time_is_quiet() {
    let shares: Vec<f64> = (0..50)
        .map(|seed| {
            let faults = FaultSchedule::new(seed, FaultKind::all(), 1000).faults();
            let busy: Duration = faults.iter().map(|fault| fault.kind.expected()).sum();
            1.0 - busy.div_duration_f64(faults.last().unwrap().ends() - faults[0].at)
        })
        .collect();
    let mean = shares.iter().sum::<f64>() / 50.0;
    assert!((0.2..0.3).contains(&mean), "{mean}");
}

#[test]
fn short_times_and_few_kinds_yield_valid_schedules() {
    assert!(FaultSchedule::new(1, FaultKind::all(), 0).faults().is_empty());
    assert!(FaultSchedule::new(1, &[], 100).faults().is_empty());
    let faults = FaultSchedule::new(1, &[FaultKind::NatsKill; 2], 60).faults();
    assert!(faults.len() > 5 && faults.iter().all(|fault| fault.kind == FaultKind::NatsKill));
    // Not enough time for all: as many different kinds as fit.
    let faults = FaultSchedule::new(1, FaultKind::all(), 40).faults();
    let kinds: HashSet<FaultKind> = faults.iter().map(|fault| fault.kind).collect();
    assert!(kinds.len() >= 3, "{faults:?}");
}

#[test]
fn faults_overlap_only_with_overlap_requested() {
    let schedule = FaultSchedule::new(7, FaultKind::all(), 300).with_overlap(7, FaultKind::all());
    assert!(overlaps(&schedule.faults()));
    assert!(schedule.lanes.iter().all(|lane| !overlaps(lane)));
}
