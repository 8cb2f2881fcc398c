//! Log lines in both formats.

use std::{
    io,
    sync::{Arc, LazyLock, Mutex},
    time::Duration,
};

use proptest::prelude::*;
use serde_json::Value;
use tracing::{
    Dispatch,
    subscriber::{DefaultGuard, NoSubscriber, set_default},
};
use tracing_subscriber::{Layer as _, layer::SubscriberExt as _};

use super::{json::MAX_LINE, text::is_harmful, *};

/// A writer that captures log output.
#[derive(Clone, Default)]
struct CapturedOutput(Arc<Mutex<Vec<u8>>>);

impl CapturedOutput {
    fn text(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
    }

    fn lines(&self) -> Vec<Value> {
        let text = self.text();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
            .collect()
    }

    fn line(&self) -> Value {
        let mut lines = self.lines();
        assert_eq!(lines.len(), 1, "{lines:?}");
        lines.remove(0)
    }
}

impl io::Write for CapturedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A second subscriber that stays alive. With a single subscriber, a filter change would rebuild the callsite cache for
/// that one alone, without a lock, and silence a subscriber that another test creates concurrently.
static SECOND_SUBSCRIBER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::default()));

fn json(filter: &str) -> (CapturedOutput, Levels, DefaultGuard) {
    LazyLock::force(&SECOND_SUBSCRIBER);
    let (output, levels) = (CapturedOutput::default(), Levels::new(filter).unwrap());
    let writer = output.clone();
    let lines = LogLayer::json(move || writer.clone(), "remuda", "i1");
    let default = set_default(tracing_subscriber::registry().with(lines.with_filter(levels.filter())));
    (output, levels, default)
}

fn pretty(ansi: bool) -> (CapturedOutput, DefaultGuard) {
    LazyLock::force(&SECOND_SUBSCRIBER);
    let (output, levels) = (CapturedOutput::default(), Levels::new("trace").unwrap());
    let writer = output.clone();
    let lines = LogLayer::pretty(move || writer.clone(), ansi);
    let default = set_default(tracing_subscriber::registry().with(lines.with_filter(levels.filter())));
    (output, default)
}

#[test]
fn fields_are_unique_and_in_a_stable_order() {
    let (output, _, _default) = json("info");
    let outer =
        tracing::error_span!("session", session = "ses_1", tenant = "ten_1", run = "outer", attempt = 1);
    let inner = tracing::error_span!(parent: &outer, "run", run = "run_1", trace_id = tracing::field::Empty);
    inner.record("trace_id", "t1");
    inner.in_scope(|| tracing::warn!(ok = true, part = 0.5, run = "run_2", n = -1, level = 7, "hm"));
    let text = output.text();
    let names: Vec<&str> = text
        .split(['{', ','])
        .filter_map(|part| part.strip_prefix('"')?.split_once("\":").map(|(name, _)| name))
        .collect();
    let expected = [
        "timestamp",
        "level",
        "target",
        "message",
        "run",
        "session",
        "tenant",
        "trace_id",
        "service",
        "instance",
        "ok",
        "part",
        "n",
        "level_",
        "attempt",
    ];
    assert_eq!(names, expected, "{text}");
    let line: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&line["run"], &line["n"], &line["level_"], &line["part"]),
        (&"run_2".into(), &(-1).into(), &7.into(), &0.5.into())
    );
    assert_eq!((&line["level"], &line["target"]), (&"WARN".into(), &"remuda_telemetry::logs::tests".into()));
    let time = line["timestamp"].as_str().unwrap();
    assert!(time.ends_with('Z') && time.as_bytes()[10] == b'T', "{time}");
}

#[test]
fn pretty_lines_end_with_short_ids() {
    let (output, _default) = pretty(false);
    let run = "run_01h455vb4pex5vsknk084sn02q";
    let span = tracing::error_span!("run", session = "ses_01h455vb4pex5vsknk08abcdef", run, worker = "w");
    span.in_scope(|| tracing::info!(took = ?Duration::from_millis(5), why = "two words", "done"));
    let text = output.text();
    let (time, rest) = text.split_once(' ').unwrap();
    assert_eq!(time.len(), "12:00:00.000".len(), "{text}");
    assert_eq!(
        rest,
        format!(
            " INFO telemetry::logs::tests: done took=5ms why=\"two words\"  run={run} session=ses_…abcdef worker=w\n"
        )
    );
}

#[test]
fn ids_are_logged_at_every_filter_level() {
    let (output, levels, _default) = json("error");
    for filter in ["error", "warn,remuda_telemetry=error", "remuda_telemetry::logs=off,error"] {
        levels.set(filter, Duration::from_secs(60)).unwrap();
        let span = tracing::error_span!("run", run = "run_1");
        span.in_scope(|| tracing::error!(target: "elsewhere", "hm"));
        assert_eq!(output.line()["run"], "run_1", "{filter}");
    }
    // Logs ignore trace spans.
    let span = tracing::error_span!(target: "remuda_trace", "chat", run = "run_1");
    span.in_scope(|| tracing::error!(target: "elsewhere", "hm"));
    assert_eq!(output.line().get("run"), None);
}

#[test]
fn filter_takes_effect_at_once_and_can_be_reset() {
    let (output, levels, _default) = json("info");
    let log_lines = || {
        tracing::debug!("quiet");
        tracing::info!("loud");
        tracing::info!(target: AUDIT, "who");
        output.lines().len()
    };
    assert_eq!(log_lines(), 2);
    levels.set("warn,remuda_telemetry=debug", Duration::from_secs(60)).unwrap();
    assert_eq!(log_lines(), 3);
    levels.set("off", Duration::from_secs(60)).unwrap();
    assert_eq!(log_lines(), 1, "audit lines are always written");
    assert_eq!(levels.current().filter, "off");
    levels.reset();
    assert_eq!(log_lines(), 2);
    assert_eq!(levels.current(), Level { filter: "info".into(), start: "info".into(), until: None });
}

#[test]
fn filter_can_select_a_single_run() {
    let (output, levels, _default) = json("info");
    levels.set("info,[run{run=run_1}]=debug", Duration::from_secs(60)).unwrap();
    for run in ["run_1", "run_2"] {
        tracing::error_span!("run", run).in_scope(|| tracing::debug!("detail"));
    }
    assert_eq!(output.line()["run"], "run_1");
    levels.reset();
    tracing::error_span!("run", run = "run_1").in_scope(|| tracing::debug!("detail"));
    assert_eq!(output.text(), "");
}

#[tokio::test(start_paused = true)]
async fn temporary_filter_expires() {
    let levels = Levels::new("info").unwrap();
    levels.set("debug", Duration::from_secs(10)).unwrap();
    assert!(levels.current().until.is_some());
    tokio::time::advance(Duration::from_secs(5)).await;
    levels.set("trace", Duration::from_secs(10)).unwrap();
    let begun = tokio::time::Instant::now();
    let level = levels.wait_for_expiry().await;
    assert_eq!((level.filter.as_str(), level.until), ("info", None));
    assert!(begun.elapsed() >= Duration::from_secs(10), "the later change wins");
}

#[test]
fn filter_with_an_unknown_level_is_rejected() {
    for good in ["debug", "off", "info,remuda_worker=debug", "[run{run=run_1}]=trace,warn"] {
        check_change(good).unwrap();
    }
    for bad in
        ["deubg", "", "info,", "info,remuda_worker", "remuda_worker=loud", "a=b=c", &"x=info,".repeat(200)]
    {
        check_change(bad).unwrap_err();
    }
}

#[test]
fn long_values_and_lines_are_truncated() {
    let (output, _, _default) = json("info");
    let long = "é".repeat(1_000_000);
    let secret = "hunter2-hunter2-hunter2";
    mask_secret(secret);
    // The cut is within a secret and within a character.
    let split = format!("{}{secret}", "x".repeat(4 * 1024 - 8));
    tracing::info!(long, split, also = %format_args!("{long}{long}"), "{}", long);
    let text = output.text();
    assert!(text.len() < MAX_LINE, "{}", text.len());
    let line: Value = serde_json::from_str(&text).unwrap();
    assert!(line["long"].as_str().unwrap().ends_with("é… (1995904 bytes more)"), "{line}");
    assert!(line["split"].as_str().unwrap().contains("x***… ("), "{}", line["split"]);
    assert!(line["also"].as_str().unwrap().contains("bytes more"));
    assert!(!text.contains("hunter2"));
    // Each of these becomes six bytes.
    let bad = "\u{1}".repeat(10_000);
    tracing::info!(a = bad, b = bad, c = bad, d = bad, run = "run_1", "hm");
    let text = output.text();
    assert!(text.len() <= MAX_LINE, "{}", text.len());
    let line: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&line["omitted_fields"], &line["run"]), (&2.into(), &"run_1".into()));
}

#[test]
fn non_finite_numbers_are_strings_in_json() {
    let (output, _, _default) = json("info");
    tracing::info!(a = f64::NAN, b = f64::INFINITY, c = u64::MAX, "hm");
    let line = output.line();
    assert_eq!((&line["a"], &line["b"], &line["c"]), (&"NaN".into(), &"inf".into(), &u64::MAX.into()));
}

const HOSTILE: [&str; 6] = [
    "\u{1b}[31mred\u{1b}[0m",
    "two\nlines\r\nand {\"level\":\"ERROR\"}",
    "\u{1b}]0;title\u{7}",
    "\u{9b}2J\u{202e}txt\u{2028}x\u{feff}",
    "\"},{\"forged\":true",
    "\0\u{7f}\u{85}\u{e0041}\\",
];

#[test]
fn hostile_text_is_escaped() {
    for hostile in HOSTILE {
        let (output, _, default) = json("info");
        tracing::error_span!("run", run = hostile).in_scope(|| {
            tracing::info!(shown = %hostile, printed = ?hostile, "{hostile}");
        });
        let text = output.text();
        assert!(text.ends_with('\n') && !text.trim_end_matches('\n').chars().any(is_harmful), "{text:?}");
        let line: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((line["message"].as_str(), line["run"].as_str()), (Some(hostile), Some(hostile)));
        assert_eq!(line["shown"], hostile);
        drop(default);

        let (output, _default) = pretty(false);
        tracing::error_span!("run", run = hostile).in_scope(|| tracing::info!(shown = %hostile, "{hostile}"));
        let text = output.text();
        assert!(!text.trim_end_matches('\n').chars().any(is_harmful), "{text:?}");
    }
}

#[test]
fn no_format_shows_a_key() {
    let key = format!("rmd_{}", "7".repeat(64));
    for form in 0..2 {
        let (output, _default) = match form {
            0 => {
                let (output, _, default) = json("info");
                (output, default)
            }
            _ => pretty(true),
        };
        let span = tracing::error_span!("request", request_id = key);
        span.in_scope(|| tracing::info!(key, error = ?Some(&key), "refused {key}"));
        let text = output.text();
        assert!(!text.contains("7777") && text.contains("rmd_***"), "{text}");
    }
}

proptest! {
    #[test]
    fn masked_value_is_in_no_line(
        secret in "[a-zA-Z0-9 \\\\\"'/@:%é\u{1b}\n]{8,40}",
        before in "(?s).{0,60}",
        after in "(?s).{0,60}",
    ) {
        // Delimiters avoid matches with our own field names.
        let secret = format!("Q#{secret}#Z");
        mask_secret(&secret);
        let text = format!("{before}{secret}{after}");
        for ansi in [None, Some(false)] {
            let (output, _default) = match ansi {
                None => {
                    let (output, _, default) = json("info");
                    (output, default)
                }
                Some(ansi) => pretty(ansi),
            };
            tracing::error_span!("run", run = text).in_scope(|| {
                tracing::info!(plain = %text, printed = ?text, nested = ?Some(format!("{text:?}")), "{text}");
            });
            let mut line = output.text();
            prop_assert_eq!(line.matches('\n').count(), 1);
            if ansi.is_none() {
                // Also check the decoded values.
                let read: Value = serde_json::from_str(&line).unwrap();
                let fields = read.as_object().unwrap().values().filter_map(Value::as_str);
                line.push_str(&fields.collect::<Vec<_>>().join("\n"));
            }
            prop_assert!(!line.contains(&secret), "{secret:?} in {line}");
            let printed = format!("{secret:?}");
            prop_assert!(!line.contains(&printed[1..printed.len() - 1]), "{printed} in {line}");
        }
    }
}
