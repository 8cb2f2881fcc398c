//! Formats durations and counts for people.

use std::time::Duration;

/// Rounds an estimate: to seconds, then to steps of 5 s, half a minute, 5 minutes, half an hour.
pub(super) fn rounded(guess: Duration) -> Duration {
    let seconds = guess.as_secs_f64();
    let step = match seconds {
        ..10.0 => 1.0,
        10.0..60.0 => 5.0,
        60.0..600.0 => 30.0,
        600.0..7200.0 => 300.0,
        _ => 1800.0,
    };
    Duration::try_from_secs_f64((seconds / step).round() * step).unwrap_or(Duration::MAX)
}

/// `35 ms`, `3.2 s`, `13 s`, `4 min`, `90 min`, `3 h`.
pub(super) fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..10 if duration.subsec_millis() >= 100 => {
            format!("{}.{} s", seconds, duration.subsec_millis() / 100)
        }
        1..100 => format!("{seconds} s"),
        100..7200 if seconds % 60 == 30 && seconds < 600 => format!("{}.5 min", seconds / 60),
        100..7200 => format!("{} min", (seconds + 30) / 60),
        _ if (seconds + 900) / 1800 % 2 == 1 => format!("{}.5 h", (seconds + 900) / 3600),
        _ => format!("{} h", (seconds + 900) / 3600),
    }
}

/// `1 run`, `2 runs`.
pub(super) fn plural(number: impl TryInto<u64>, what: &str) -> String {
    let number = number.try_into().unwrap_or(0);
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// `1 run is`, `2 runs are`.
pub(super) fn plural_are(number: impl TryInto<u64>, what: &str) -> String {
    let number = number.try_into().unwrap_or(0);
    format!("{} {}", plural(number, what), if number == 1 { "is" } else { "are" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_are_rounded_in_growing_steps() {
        let cases =
            [(0.4, 0), (0.6, 1), (9.4, 9), (12.4, 10), (43.0, 45), (61.0, 60), (100.0, 90), (1234.0, 1200)];
        for (seconds, expected) in cases {
            assert_eq!(rounded(Duration::from_secs_f64(seconds)).as_secs(), expected, "{seconds}");
        }
        assert_eq!(rounded(Duration::from_secs(8000)).as_secs(), 7200);
        assert!(rounded(Duration::MAX) > Duration::from_secs(1 << 40));
    }

    #[test]
    fn durations_are_formatted_with_fitting_units() {
        let cases = [
            (35, "35 ms"),
            (1000, "1 s"),
            (3210, "3.2 s"),
            (13_400, "13 s"),
            (90_000, "90 s"),
            (150_000, "2.5 min"),
            (240_000, "4 min"),
            (5_400_000, "90 min"),
            (9_000_000, "2.5 h"),
            (10_800_000, "3 h"),
        ];
        for (millis, expected) in cases {
            assert_eq!(format_duration(Duration::from_millis(millis)), expected);
        }
        assert_eq!((plural(1, "run"), plural_are(2, "run")), ("1 run".to_owned(), "2 runs are".to_owned()));
    }
}
