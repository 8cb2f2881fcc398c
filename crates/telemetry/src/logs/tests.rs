//! Lines as they come out, in both forms.

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

/// Collects what is logged.
#[derive(Clone, Default)]
struct Paper(Arc<Mutex<Vec<u8>>>);

impl Paper {
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

impl io::Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A subscriber that stays. While there is only one, a change of its filter asks that one alone which places may log, without a lock: a
/// subscriber that another test makes at the same moment would be silenced.
static ANOTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::default()));

fn json(filter: &str) -> (Paper, Levels, DefaultGuard) {
    LazyLock::force(&ANOTHER);
    let (paper, levels) = (Paper::default(), Levels::new(filter).unwrap());
    let writer = paper.clone();
    let lines = Lines::json(move || writer.clone(), "remuda", "i1");
    let default = set_default(tracing_subscriber::registry().with(lines.with_filter(levels.filter())));
    (paper, levels, default)
}

fn pretty(ansi: bool) -> (Paper, DefaultGuard) {
    LazyLock::force(&ANOTHER);
    let (paper, levels) = (Paper::default(), Levels::new("trace").unwrap());
    let writer = paper.clone();
    let lines = Lines::pretty(move || writer.clone(), ansi);
    let default = set_default(tracing_subscriber::registry().with(lines.with_filter(levels.filter())));
    (paper, default)
}

#[test]
fn names_stand_in_a_stable_order_and_once() {
    let (paper, _, _default) = json("info");
    let outer =
        tracing::error_span!("session", session = "ses_1", tenant = "ten_1", run = "outer", attempt = 1);
    let inner = tracing::error_span!(parent: &outer, "run", run = "run_1", trace_id = tracing::field::Empty);
    inner.record("trace_id", "t1");
    inner.in_scope(|| tracing::warn!(ok = true, part = 0.5, run = "run_2", n = -1, level = 7, "hm"));
    let text = paper.text();
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
    let (paper, _default) = pretty(false);
    let run = "run_01h455vb4pex5vsknk084sn02q";
    let span = tracing::error_span!("run", session = "ses_01h455vb4pex5vsknk08abcdef", run, worker = "w");
    span.in_scope(|| tracing::info!(took = ?Duration::from_millis(5), why = "two words", "done"));
    let text = paper.text();
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
fn ids_are_there_whatever_the_level() {
    let (paper, levels, _default) = json("error");
    for filter in ["error", "warn,remuda_telemetry=error", "remuda_telemetry::logs=off,error"] {
        levels.set(filter, Duration::from_secs(60)).unwrap();
        let span = tracing::error_span!("run", run = "run_1");
        span.in_scope(|| tracing::error!(target: "elsewhere", "hm"));
        assert_eq!(paper.line()["run"], "run_1", "{filter}");
    }
    // What is traced is none of the log's.
    let span = tracing::error_span!(target: "remuda_trace", "chat", run = "run_1");
    span.in_scope(|| tracing::error!(target: "elsewhere", "hm"));
    assert_eq!(paper.line().get("run"), None);
}

#[test]
fn a_filter_takes_effect_at_once_and_goes_back() {
    let (paper, levels, _default) = json("info");
    let speak = || {
        tracing::debug!("quiet");
        tracing::info!("loud");
        tracing::info!(target: AUDIT, "who");
        paper.lines().len()
    };
    assert_eq!(speak(), 2);
    levels.set("warn,remuda_telemetry=debug", Duration::from_secs(60)).unwrap();
    assert_eq!(speak(), 3);
    levels.set("off", Duration::from_secs(60)).unwrap();
    assert_eq!(speak(), 1, "who changed what is always said");
    assert_eq!(levels.current().filter, "off");
    levels.reset();
    assert_eq!(speak(), 2);
    assert_eq!(levels.current(), Level { filter: "info".into(), start: "info".into(), until: None });
}

#[test]
fn one_run_can_be_looked_at() {
    let (paper, levels, _default) = json("info");
    levels.set("info,[run{run=run_1}]=debug", Duration::from_secs(60)).unwrap();
    for run in ["run_1", "run_2"] {
        tracing::error_span!("run", run).in_scope(|| tracing::debug!("detail"));
    }
    assert_eq!(paper.line()["run"], "run_1");
    levels.reset();
    tracing::error_span!("run", run = "run_1").in_scope(|| tracing::debug!("detail"));
    assert_eq!(paper.text(), "");
}

#[tokio::test(start_paused = true)]
async fn time_brings_the_start_value_back() {
    let levels = Levels::new("info").unwrap();
    levels.set("debug", Duration::from_secs(10)).unwrap();
    assert!(levels.current().until.is_some());
    tokio::time::advance(Duration::from_secs(5)).await;
    levels.set("trace", Duration::from_secs(10)).unwrap();
    let begun = tokio::time::Instant::now();
    let level = levels.keep().await;
    assert_eq!((level.filter.as_str(), level.until), ("info", None));
    assert!(begun.elapsed() >= Duration::from_secs(10), "the later change counts");
}

#[test]
fn a_word_that_is_no_level_is_refused() {
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
fn long_values_are_cut_and_lines_are_bounded() {
    let (paper, _, _default) = json("info");
    let long = "é".repeat(1_000_000);
    let secret = "hunter2-hunter2-hunter2";
    hide(secret);
    // The place where it is cut is in the middle of a secret, and of a character.
    let split = format!("{}{secret}", "x".repeat(4 * 1024 - 8));
    tracing::info!(long, split, also = %format_args!("{long}{long}"), "{}", long);
    let text = paper.text();
    assert!(text.len() < MAX_LINE, "{}", text.len());
    let line: Value = serde_json::from_str(&text).unwrap();
    assert!(line["long"].as_str().unwrap().ends_with("é… (1995904 bytes more)"), "{line}");
    assert!(line["split"].as_str().unwrap().contains("x***… ("), "{}", line["split"]);
    assert!(line["also"].as_str().unwrap().contains("bytes more"));
    assert!(!text.contains("hunter2"));
    // Each of these becomes six bytes.
    let bad = "\u{1}".repeat(10_000);
    tracing::info!(a = bad, b = bad, c = bad, d = bad, run = "run_1", "hm");
    let text = paper.text();
    assert!(text.len() <= MAX_LINE, "{}", text.len());
    let line: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&line["omitted_fields"], &line["run"]), (&2.into(), &"run_1".into()));
}

#[test]
fn numbers_that_json_does_not_know_are_words() {
    let (paper, _, _default) = json("info");
    tracing::info!(a = f64::NAN, b = f64::INFINITY, c = u64::MAX, "hm");
    let line = paper.line();
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
fn hostile_text_stays_text() {
    for hostile in HOSTILE {
        let (paper, _, default) = json("info");
        tracing::error_span!("run", run = hostile).in_scope(|| {
            tracing::info!(shown = %hostile, printed = ?hostile, "{hostile}");
        });
        let text = paper.text();
        assert!(text.ends_with('\n') && !text.trim_end_matches('\n').chars().any(is_harmful), "{text:?}");
        let line: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((line["message"].as_str(), line["run"].as_str()), (Some(hostile), Some(hostile)));
        assert_eq!(line["shown"], hostile);
        drop(default);

        let (paper, _default) = pretty(false);
        tracing::error_span!("run", run = hostile).in_scope(|| tracing::info!(shown = %hostile, "{hostile}"));
        let text = paper.text();
        assert!(!text.trim_end_matches('\n').chars().any(is_harmful), "{text:?}");
    }
}

#[test]
fn no_form_shows_a_key() {
    let key = format!("rmd_{}", "7".repeat(64));
    for form in 0..2 {
        let (paper, _default) = match form {
            0 => {
                let (paper, _, default) = json("info");
                (paper, default)
            }
            _ => pretty(true),
        };
        let span = tracing::error_span!("request", request_id = key);
        span.in_scope(|| tracing::info!(key, error = ?Some(&key), "refused {key}"));
        let text = paper.text();
        assert!(!text.contains("7777") && text.contains("rmd_***"), "{text}");
    }
}

proptest! {
    #[test]
    fn a_hidden_value_is_in_no_line(
        secret in "[a-zA-Z0-9 \\\\\"'/@:%é\u{1b}\n]{8,40}",
        before in "(?s).{0,60}",
        after in "(?s).{0,60}",
    ) {
        // Words of ours would be found where they are no secret.
        let secret = format!("Q#{secret}#Z");
        hide(&secret);
        let text = format!("{before}{secret}{after}");
        for ansi in [None, Some(false)] {
            let (paper, _default) = match ansi {
                None => {
                    let (paper, _, default) = json("info");
                    (paper, default)
                }
                Some(ansi) => pretty(ansi),
            };
            tracing::error_span!("run", run = text).in_scope(|| {
                tracing::info!(plain = %text, printed = ?text, nested = ?Some(format!("{text:?}")), "{text}");
            });
            let mut line = paper.text();
            prop_assert_eq!(line.matches('\n').count(), 1);
            if ansi.is_none() {
                // As its readers see it.
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
