//! The measurements of each size, compared with the smallest size.

use serde_json::{Value, json};

use crate::svg_chart::grouped;

/// The least share of the rate at the smallest size that every other size should reach.
pub(super) const GOAL: f64 = 0.8;

/// One measurement.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) per_second: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    /// Resident memory by process, in MiB: before the load, and after it.
    pub(super) idle_memory: Vec<(String, f64)>,
    pub(super) memory: Vec<(String, f64)>,
    pub(super) violations: u64,
}

/// All measurements of one size.
#[derive(Clone, Debug)]
pub(super) struct Point {
    pub(super) size: u64,
    pub(super) samples: Vec<Sample>,
}

impl Point {
    fn median(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        let mut figures: Vec<f64> = self.samples.iter().map(of).collect();
        figures.sort_unstable_by(f64::total_cmp);
        figures.get(figures.len() / 2).copied().unwrap_or_default()
    }

    pub(super) fn per_second(&self) -> f64 {
        self.median(|sample| sample.per_second)
    }

    pub(super) fn violations(&self) -> u64 {
        self.samples.iter().map(|sample| sample.violations).sum()
    }

    /// Names of the processes.
    pub(super) fn processes(&self) -> Vec<String> {
        let last = self.samples.last();
        last.map(|sample| sample.memory.iter().map(|(name, _)| name.clone()).collect()).unwrap_or_default()
    }

    /// MiB after the load.
    pub(super) fn memory(&self, process: &str) -> f64 {
        self.median(|sample| named(&sample.memory, process))
    }

    /// MiB before the load.
    pub(super) fn idle_memory(&self, process: &str) -> f64 {
        self.median(|sample| named(&sample.idle_memory, process))
    }
}

fn named(memory: &[(String, f64)], process: &str) -> f64 {
    memory.iter().find(|(name, _)| name == process).map_or(0.0, |(_, mib)| *mib)
}

/// One quantity that grows, such as the number of sessions.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) name: &'static str,
    pub(super) points: Vec<Point>,
}

impl Series {
    pub(super) fn new(name: &'static str, sizes: &[u64]) -> Self {
        Self { name, points: sizes.iter().map(|size| Point { size: *size, samples: Vec::new() }).collect() }
    }

    /// The rate relative to that of the smallest size.
    pub(super) fn share(&self, point: &Point) -> f64 {
        let smallest = self.smallest().map_or(0.0, Point::per_second);
        if smallest > 0.0 { point.per_second() / smallest } else { 0.0 }
    }

    fn smallest(&self) -> Option<&Point> {
        self.points.iter().min_by_key(|point| point.size)
    }

    /// Idle memory of all processes per additional item, in bytes, between the smallest and the largest size.
    fn bytes_per_item(&self) -> Option<f64> {
        let (smallest, largest) = (self.smallest()?, self.points.iter().max_by_key(|point| point.size)?);
        let all =
            |point: &Point| point.processes().iter().map(|process| point.idle_memory(process)).sum::<f64>();
        let more = largest.size.checked_sub(smallest.size).filter(|more| *more > 0)?;
        Some((all(largest) - all(smallest)) * 1024.0 * 1024.0 / more as f64)
    }

    pub(super) fn json(&self) -> Value {
        let point = |point: &Point| {
            let by_process = |of: &dyn Fn(&str) -> f64| -> Value {
                Value::Object(point.processes().into_iter().map(|it| (it.clone(), json!(of(&it)))).collect())
            };
            json!({
                "size": point.size,
                "runs_per_s": point.per_second(),
                "p50_ms": point.median(|sample| sample.p50_ms),
                "p99_ms": point.median(|sample| sample.p99_ms),
                "of_smallest": self.share(point),
                "reached": self.share(point) >= GOAL,
                "idle_memory_mib": by_process(&|process| point.idle_memory(process)),
                "memory_mib": by_process(&|process| point.memory(process)),
                "violations": point.violations(),
            })
        };
        let points: Vec<Value> = self.points.iter().map(point).collect();
        json!({ "points": points, "idle_bytes_each": self.bytes_per_item() })
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let Some(first) = self.points.first() else { return Vec::new() };
        let processes = first.processes();
        let mut head =
            format!("{:>12} {:>8} {:>9} {:>9} {:>9}", self.name, "runs/s", "of least", "p50 ms", "p99 ms");
        for process in &processes {
            head.push_str(&format!(" {process:>17}"));
        }
        let mut lines = vec![head];
        for point in &self.points {
            let share = self.share(point);
            let (p50, p99) = (point.median(|sample| sample.p50_ms), point.median(|sample| sample.p99_ms));
            let (size, rate) = (grouped(point.size as f64), grouped(point.per_second()));
            let mut line = format!("{size:>12} {rate:>8} {:>7.0} % {p50:>9.1} {p99:>9.1}", share * 100.0);
            for process in &processes {
                let memory = format!("{:.0} → {:.0} MiB", point.idle_memory(process), point.memory(process));
                line.push_str(&format!(" {memory:>17}"));
            }
            if share < GOAL {
                line.push_str(&format!("  BELOW {:.0} %", GOAL * 100.0));
            }
            lines.push(line);
        }
        if let Some(bytes) = self.bytes_per_item() {
            lines.push(format!(
                "  idle memory of all processes together: {bytes:.0} bytes for each of the {}",
                self.name
            ));
        }
        lines
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn series() -> Series {
        let mut series = Series::new("sessions", &[1000, 101_000]);
        for (point, (rate, mib)) in series.points.iter_mut().zip([(4000.0, 50.0), (3000.0, 60.0)]) {
            let memory = vec![("control-plane-0".to_owned(), mib), ("worker-0".to_owned(), 40.0)];
            point.samples.push(Sample {
                per_second: rate,
                p50_ms: 60.0,
                p99_ms: 120.0,
                idle_memory: memory.clone(),
                memory,
                violations: 0,
            });
        }
        series
    }

    #[test]
    fn sizes_are_compared_with_the_smallest() {
        let series = series();
        let line = series.json();
        assert_eq!(line["points"][0]["of_smallest"], 1.0);
        assert_eq!(
            (&line["points"][1]["of_smallest"], &line["points"][1]["reached"]),
            (&json!(0.75), &json!(false))
        );
        let lines = series.lines();
        assert_eq!(lines.len(), 4);
        assert!(lines[2].contains("101,000") && lines[2].ends_with("BELOW 80 %"), "{}", lines[2]);
        assert!(!lines[1].contains("BELOW"));
    }

    #[test]
    fn idle_memory_is_reported_per_item() {
        // Ten MiB for 100,000 items.
        let bytes = series().bytes_per_item().unwrap();
        assert!((bytes - 104.857_6).abs() < 1e-6, "{bytes}");
        assert_eq!(Series::new("sessions", &[5]).bytes_per_item(), None);
    }

    #[test]
    fn rate_is_the_median_of_the_samples() {
        let mut series = series();
        let sample = series.points[0].samples[0].clone();
        series.points[0]
            .samples
            .extend([Sample { per_second: 1.0, ..sample.clone() }, Sample { per_second: 4100.0, ..sample }]);
        assert_eq!(series.points[0].per_second(), 4000.0);
    }
}
