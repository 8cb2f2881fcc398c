//! Delays between attempts.

use std::time::{Duration, SystemTime};

use chrono::{DateTime, Utc};
use reqwest::header::{HeaderMap, RETRY_AFTER};

use crate::ModelOptions;

/// Exponential backoff after an attempt, counted from 1, with a quarter of jitter, so that calls that failed together
/// do not retry together.
pub(crate) fn backoff(options: &ModelOptions, attempt: u32) -> Duration {
    let doubled = options.base_delay.saturating_mul(2_u32.saturating_pow(attempt.saturating_sub(1)));
    doubled.min(options.max_delay).mul_f64(rand::random_range(0.75..1.25)).min(options.max_delay)
}

/// The delay that a provider asked for, plus jitter.
pub(crate) fn requested_delay(options: &ModelOptions, requested: Duration) -> Duration {
    requested + options.base_delay.mul_f64(rand::random_range(0.0..0.25))
}

/// The delay that a provider asks for in its headers.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let millis = text("retry-after-ms")
        .and_then(|text| text.parse().ok())
        .and_then(|millis: f64| seconds(millis / 1e3));
    millis.or_else(|| parse(text(RETRY_AFTER.as_str())?, SystemTime::now()))
}

/// `Retry-After`: seconds or a date.
fn parse(text: &str, now: SystemTime) -> Option<Duration> {
    if let Ok(number) = text.parse() {
        return seconds(number);
    }
    let date = DateTime::parse_from_rfc2822(text).ok()?.with_timezone(&Utc);
    Some((date - DateTime::<Utc>::from(now)).to_std().unwrap_or_default())
}

fn seconds(number: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_read_from_headers() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_770);
        let parse = |text| parse(text, now);
        assert_eq!(parse("7"), Some(Duration::from_secs(7)));
        assert_eq!(parse("0.5"), Some(Duration::from_millis(500)));
        assert_eq!(parse("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::from_secs(7)));
        assert_eq!(parse("Sun, 06 Nov 1994 08:40:00 GMT"), Some(Duration::ZERO), "it has passed");
        for bad in ["", "-1", "soon", "NaN", "inf", "1e300"] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
        let mut headers = HeaderMap::new();
        assert_eq!(retry_after(&headers), None);
        headers.insert("retry-after", "3".parse().unwrap());
        assert_eq!(retry_after(&headers), Some(Duration::from_secs(3)));
        headers.insert("retry-after-ms", "1500".parse().unwrap());
        assert_eq!(retry_after(&headers), Some(Duration::from_millis(1500)));
    }

    #[test]
    fn backoff_grows_up_to_a_limit() {
        let options = ModelOptions::default();
        for attempt in 1..100 {
            let wait = backoff(&options, attempt);
            let least = if attempt == 1 {
                1.5
            } else if attempt >= 5 {
                22.5
            } else {
                3.0
            };
            assert!(wait.as_secs_f64() >= least && wait <= options.max_delay, "{attempt}: {wait:?}");
        }
    }
}
