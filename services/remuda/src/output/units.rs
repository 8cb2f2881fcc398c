//! Human-readable durations, times and numbers.

use std::time::Duration;

use chrono::{DateTime, Local, Utc};
use remuda_domain::Timestamp;

/// `35 ms`, `3.2 s`, `2m 05s`, `1h 02m`, `3d 04h`.
pub(crate) fn elapsed(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{}.{} s", seconds, duration.subsec_millis() / 100),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h {:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d {:02}h", seconds / 86400, seconds % 86400 / 3600),
    }
}

/// The time since `at`, such as `1m 30s ago`; `now` if `at` is in the future, since clocks differ.
pub(crate) fn ago(at: Timestamp, now: DateTime<Utc>) -> String {
    match (now - at).to_std() {
        Ok(duration) if duration.as_secs() > 0 => {
            format!("{} ago", elapsed(Duration::from_secs(duration.as_secs())))
        }
        _ => "now".to_owned(),
    }
}

/// The time of day in the local time zone.
pub(crate) fn local_time(at: Timestamp) -> String {
    at.with_timezone(&Local).format("%H:%M:%S%.3f").to_string()
}

/// A rounded number, such as `12.3k`.
pub(crate) fn count(number: u64) -> String {
    match number {
        0..1000 => number.to_string(),
        1000..1_000_000 => format!("{}.{}k", number / 1000, number % 1000 / 100),
        _ => format!("{}.{}M", number / 1_000_000, number % 1_000_000 / 100_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded() {
        let cases = [(0, "0"), (999, "999"), (1000, "1.0k"), (12_345, "12.3k"), (999_999, "999.9k")];
        for (number, text) in cases {
            assert_eq!(count(number), text);
        }
        assert_eq!(count(2_500_000), "2.5M");
    }

    #[test]
    fn durations_use_fitting_units() {
        let cases = [(0, "0 ms"), (35, "35 ms"), (3210, "3.2 s"), (125_000, "2m 05s"), (3_720_000, "1h 02m")];
        for (millis, text) in cases {
            assert_eq!(elapsed(Duration::from_millis(millis)), text);
        }
        assert_eq!(elapsed(Duration::from_secs(86400 * 3 + 4 * 3600)), "3d 04h");
    }

    #[test]
    fn future_times_are_shown_as_now() {
        let now = Utc::now();
        assert_eq!(ago(now + chrono::Duration::seconds(9), now), "now");
        assert_eq!(ago(now - chrono::Duration::seconds(90), now), "1m 30s ago");
    }
}
