//! The recovery time after a fault, computed from the times at which runs ended.

use std::ops::Range;

use crate::observed_history::Micros;

/// The window of a rate: long enough for a meaningful rate at a few dozen runs per second.
const WINDOW: Micros = 2_000_000;
const STEP: Micros = 100_000;
/// The share of the rate before the faults that counts as recovered.
const ENOUGH: f64 = 0.9;

/// A fault that was injected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: String,
    /// What it hit; may be empty.
    pub(crate) target: String,
    pub(crate) began: Micros,
    pub(crate) ended: Micros,
}

/// The recovery of the rate after one fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recovery {
    /// When the rate had recovered; `None` if the next fault or the end of the load came first.
    pub(crate) recovered: Option<Micros>,
    pub(crate) from_end: Option<Micros>,
    /// Zero if the rate never fell.
    pub(crate) from_beginning: Option<Micros>,
    /// From the fault's beginning to the next run that ended.
    pub(crate) first_run: Option<Micros>,
}

/// The rate of ended runs over time.
#[derive(Debug)]
pub(crate) struct Rates {
    /// Sorted.
    ends: Vec<Micros>,
    load: Range<Micros>,
}

impl Rates {
    /// `load` is the period in which clients submitted.
    pub(crate) fn new(mut ends: Vec<Micros>, load: Range<Micros>) -> Self {
        ends.sort_unstable();
        Self { ends, load }
    }

    /// Runs per second in the window that ends at `at`.
    fn rate(&self, at: Micros) -> f64 {
        let before = |time: Micros| self.ends.partition_point(|end| *end <= time);
        (before(at) - before(at - WINDOW)) as f64 / (WINDOW as f64 / 1e6)
    }

    /// The median rate within a period; `None` if it is shorter than a window.
    pub(crate) fn median(&self, period: Range<Micros>) -> Option<f64> {
        let mut rates: Vec<f64> = steps(period.start + WINDOW..period.end).map(|at| self.rate(at)).collect();
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied()
    }

    /// The median rate before the first fault.
    pub(crate) fn before(&self, faults: &[Fault]) -> Option<f64> {
        let first = faults.iter().map(|fault| fault.began).min().unwrap_or(self.load.end);
        self.median(self.load.start..first)
    }

    /// The median rate after the recovery from the last fault.
    pub(crate) fn after(&self, faults: &[Fault], recoveries: &[Recovery]) -> Option<f64> {
        let recovered = recoveries.iter().filter_map(|recovery| recovery.recovered);
        let last = faults.iter().map(|fault| fault.ended).chain(recovered).max()?;
        self.median((last - WINDOW).max(self.load.start)..self.load.end)
    }

    /// The recovery from each fault. Faults must be sorted by time.
    pub(crate) fn recoveries(&self, faults: &[Fault]) -> Vec<Recovery> {
        let Some(before) = self.before(faults) else { return Vec::new() };
        let limit = before * ENOUGH;
        let one = |(index, fault): (usize, &Fault)| {
            let next = faults.get(index + 1).map_or(self.load.end, |next| next.began);
            let recovered = steps(fault.ended..next).find(|at| self.rate(*at) >= limit);
            let fell = |until: Micros| steps(fault.began..until).any(|at| self.rate(at) < limit);
            let first = self.ends.partition_point(|end| *end <= fault.began);
            Recovery {
                recovered,
                from_end: recovered.map(|at| at - fault.ended),
                from_beginning: recovered.map(|at| if fell(at) { at - fault.began } else { 0 }),
                first_run: self.ends.get(first).map(|end| end - fault.began),
            }
        };
        faults.iter().enumerate().map(one).collect()
    }
}

fn steps(period: Range<Micros>) -> impl Iterator<Item = Micros> {
    let count = usize::try_from((period.end - period.start).max(0) / STEP).unwrap_or_default();
    (0..count).scan(period.start, |at, _| {
        let this = *at;
        *at += STEP;
        Some(this)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Micros = 1_000_000;

    /// 50 runs per second for 60 s, except none from second 20 to 25.
    fn dip() -> Rates {
        let ends = (0..3000).map(|run| run * 20_000).filter(|at| !(20 * SECOND..25 * SECOND).contains(at));
        Rates::new(ends.collect(), 0..60 * SECOND)
    }

    fn fault(began: Micros, ended: Micros) -> Fault {
        Fault { kind: "kill".into(), target: String::new(), began, ended }
    }

    #[test]
    fn recovery_lasts_until_the_rate_is_back() {
        let (rates, faults) = (dip(), [fault(20 * SECOND, 22 * SECOND)]);
        assert_eq!(rates.before(&faults), Some(50.0));
        let [recovery] = rates.recoveries(&faults)[..] else { panic!("one fault") };
        // Nine tenths of a window of two seconds after second 25.
        assert_eq!(recovery.from_end, Some(4_800_000));
        assert_eq!(recovery.from_beginning, Some(6_800_000));
        assert_eq!(recovery.first_run, Some(5 * SECOND));
        assert_eq!(rates.after(&faults, &[recovery]), Some(50.0));
    }

    #[test]
    fn fault_without_a_drop_recovers_at_once() {
        let recoveries = dip().recoveries(&[fault(40 * SECOND, 41 * SECOND)]);
        // The drop at second 20 does not change the median.
        assert_eq!((recoveries[0].from_end, recoveries[0].from_beginning), (Some(0), Some(0)));
    }

    #[test]
    fn no_recovery_is_reported_when_the_next_fault_comes_first() {
        let faults = [fault(20 * SECOND, 21 * SECOND), fault(23 * SECOND, 24 * SECOND)];
        let recoveries = dip().recoveries(&faults);
        assert_eq!(recoveries[0].recovered, None);
        assert_eq!(recoveries[1].recovered, Some(26_800_000));
    }

    #[test]
    fn no_recovery_is_reported_without_a_period_before_the_faults() {
        assert!(dip().recoveries(&[fault(SECOND, 2 * SECOND)]).is_empty());
        assert_eq!(Rates::new(Vec::new(), 0..SECOND).before(&[]), None);
    }
}
