use ratatui::{Terminal, backend::TestBackend};
use remuda_domain::Timestamp;
use remuda_proto::{convert::timestamp, v1};

use super::*;
use crate::top::state::{Key, Popup};

fn at(second: i64) -> Option<prost_types::Timestamp> {
    Some(timestamp(Timestamp::from_timestamp(1_800_000_000 + second, 0).unwrap()))
}

fn worker(id: &str, host: &str, busy: u32, state: &str) -> v1::Worker {
    v1::Worker {
        id: id.into(),
        host: host.into(),
        version: "0.1.0".into(),
        pool: "default".into(),
        slots: 4,
        busy,
        state: state.into(),
        started_at: at(0),
        lease_until: at(112),
    }
}

fn run(id: &str, session: &str, since: i64) -> v1::RunGlance {
    v1::RunGlance {
        run_id: id.into(),
        session_id: "ses_01k9000000".into(),
        session_name: session.into(),
        pool: "default".into(),
        kind: "tools".into(),
        since: at(since),
        ..Default::default()
    }
}

fn overview() -> v1::GetOverviewResponse {
    let pool = |name: &str, runnable_sessions, workers, oldest| v1::PoolOverview {
        stats: Some(v1::PoolStats {
            pool: name.into(),
            runnable_sessions,
            running_sessions: 1,
            queued_runs: 12_345,
            workers,
            slots: workers * 4,
            oldest_runnable_at: at(oldest),
        }),
        parked_sessions: 1,
        busy: 3,
        draining: 1,
    };
    let step = v1::StepGlance {
        index: 2,
        kind: "tool_call".into(),
        name: "Bash".into(),
        started_at: at(88),
        finished_at: None,
    };
    let running = v1::RunGlance {
        step: Some(step),
        reason: "executing".into(),
        worker_id: "wrk_01aaaaaa".into(),
        cost_micros: 120_000,
        kind: "message".into(),
        agent: "build".into(),
        ..run("run_01k9abcdef", "nightly", 5)
    };
    let why = |reason: &str, why: &str, run: v1::RunGlance| v1::RunGlance {
        reason: reason.into(),
        why: why.into(),
        ..run
    };
    v1::GetOverviewResponse {
        at: at(100),
        now: at(100),
        version: "0.1.0".into(),
        mode: "split".into(),
        pools: vec![pool("default", 2, 1, 60), pool("gpu", 7, 0, 10)],
        workers: vec![
            worker("wrk_01aaaaaa", "node-1", 3, "active"),
            worker("wrk_01bbbbbb", "node-2", 0, "draining"),
        ],
        counts: Some(v1::Counts { submitted: 20, completed: 10, failed: 1, ..Default::default() }),
        running: vec![running],
        waiting: vec![
            why("parked", "parked: approval", run("run_01k9000001", "release", 40)),
            v1::RunGlance {
                position: 3,
                ..why("behind_other_runs", "behind 3 runs", run("run_01k9000002", "", 90))
            },
        ],
        ..Default::default()
    }
}

fn frame<'a>(data: &'a Overview, state: &'a State) -> Frame<'a> {
    Frame { overview: data, rates: None, state, endpoint: "http://127.0.0.1:7777", color: true, keys: true }
}

/// What a terminal of this size shows.
fn lines(frame: &Frame<'_>, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|target| frame.draw(target.area(), target.buffer_mut())).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let row = |y: u16| (0..width).map(|x| buffer.cell((x, y)).unwrap().symbol()).collect::<String>();
    (0..height).map(|y| row(y).trim_end().to_owned()).collect()
}

#[test]
fn all_panels_fit_on_a_small_terminal() {
    let (data, state) = (Overview(overview()), State::new());
    let lines = lines(&frame(&data, &state), 80, 24);
    let expected = [
        "20 submitted  10 completed  1 failed  0 tokens  $0.00 so far",
        "",
        "POOLS  2, by name",
        "POOL          RUNNABLE RUNNING  QUEUED PARKED   OLDEST WORKERS SLOTS",
        "default              2       1   12.3k      1   40 s     1+1 ██████░░ 3/4",
        "gpu                  7       1   12.3k      1  1m 30s      0+1 ░░░░░░░░ 3/0",
        "",
        "WORKERS  2, by pool",
        "WORKER   HOST               POOL       STATE    SLOTS              LEASE VERSION",
        "…aaaaaa  node-1             default    active   ██████░░ 3/4      12 s 0.1.0",
        "…bbbbbb  node-2             default    draining ░░░░░░░░ 0/4      12 s 0.1.0",
        "",
        " SLOWEST RUNS   1, by time",
        "SESSION       RUN     WHAT       STEP            WORKER      ELAPSED     COST",
        "nightly       …abcdef build      3 Bash 12 s   node-1       1m 35s    $0.12",
        "",
        "LONGEST WAITING  2, by time",
        "SESSION               RUN     WHAT       WHY                   AHEAD   WAITED",
        "release               …000001 tools      parked: approval          0    1m 00s",
        "…000000               …000002 tools      behind 3 runs             3   10 s",
    ];
    let squeeze = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(lines[0].starts_with("remuda top  http://127.0.0.1:7777  split 0.1.0"), "{}", lines[0]);
    assert!(lines[0].ends_with("  live"), "{}", lines[0]);
    for (line, expected) in lines[1..].iter().zip(expected) {
        assert_eq!(squeeze(line), squeeze(expected), "in\n{}", lines.join("\n"));
    }
    assert!(lines[23].starts_with("q quit  ? help  tab panel"), "{}", lines[23]);
}

#[test]
fn hidden_rows_are_counted_and_the_selection_is_visible() {
    let mut overview = overview();
    overview.running =
        (0..60).map(|n| run(&format!("run_01k900{n:04}"), &format!("session-{n}"), n)).collect();
    let (data, mut state) = (Overview(overview), State::new());
    let before = lines(&frame(&data, &state), 80, 24).join("\n");
    assert!(before.contains("of 60, by time") && before.contains("session-0 "), "{before}");
    assert!(before.contains("release"), "every panel has its share:\n{before}");
    state.press(Key::End, &data);
    let after = lines(&frame(&data, &state), 80, 24).join("\n");
    assert!(after.contains("session-59") && !after.contains("session-0 "), "{after}");
}

#[test]
fn every_terminal_size_is_drawn() {
    let (data, mut state) = (Overview(overview()), State::new());
    for mode in [Mode::Panels, Mode::Help, Mode::Confirm("run_1".into())] {
        state.mode = mode;
        for (width, height) in [(1, 1), (3, 2), (10, 5), (20, 10), (79, 23), (300, 100)] {
            lines(&frame(&data, &state), width, height);
        }
    }
    let empty = Overview::default();
    let shown = lines(&frame(&empty, &State::new()), 80, 24).join("\n");
    assert_eq!(shown.matches("  none").count(), 4, "{shown}");
}

#[test]
fn lost_connection_is_shown() {
    let (data, mut state) = (Overview(overview()), State::new());
    state.connection =
        ConnectionState::Lost { for_: Duration::from_millis(3700), error: "cannot reach it".into() };
    let shown = lines(&frame(&data, &state), 100, 24);
    assert!(shown[0].ends_with("reconnecting for 3 s: cannot reach it"), "{}", shown[0]);
    assert!(shown.join("\n").contains("nightly"), "the last overview stays visible");
    state.connection = ConnectionState::Slow(Duration::from_secs(5));
    assert!(lines(&frame(&data, &state), 80, 24)[0].ends_with("no answer for 5 s"));
}

#[test]
fn prompts_and_popups_are_shown_over_the_panels() {
    let (data, mut state) = (Overview(overview()), State::new());
    state.press(Key::Char('c'), &data);
    assert!(lines(&frame(&data, &state), 80, 24)[23].starts_with("cancel run_01k9abcdef?  y/n"));
    state.press(Key::Char('n'), &data);
    state.press(Key::Char('?'), &data);
    let help = lines(&frame(&data, &state), 80, 24).join("\n");
    assert!(help.contains("explain the selected run, with its steps"), "{help}");
    let text_lines = vec!["one \u{1b}[31mword".to_owned(), "long ".repeat(40)];
    state.mode = Mode::Popup(Popup { title: "explain".into(), lines: text_lines, scroll: 0 });
    let popup = lines(&frame(&data, &state), 80, 24).join("\n");
    assert!(
        popup.contains("┌ explain ") && popup.contains("one word") && !popup.contains('\u{1b}'),
        "{popup}"
    );
    assert_eq!(popup.matches("long").count(), 40, "it is wrapped, not cut:\n{popup}");
}

#[test]
fn popup_scrolls_to_its_last_row() {
    let (data, mut state) = (Overview(overview()), State::new());
    let text_lines = vec!["word ".repeat(500), "the end".to_owned()];
    state.mode = Mode::Popup(Popup { title: "explain".into(), lines: text_lines, scroll: 0 });
    assert!(!lines(&frame(&data, &state), 80, 24).join("\n").contains("the end"));
    state.press(Key::End, &data);
    let last = frame(&data, &state).last_scroll(Rect::new(0, 0, 80, 24));
    state.scroll_at_most(last);
    let popup = lines(&frame(&data, &state), 80, 24);
    assert!(popup[21].contains("the end") && popup[20].contains("word"), "{popup:#?}");
}

#[test]
fn rates_replace_totals() {
    let (data, state) = (Overview(overview()), State::new());
    let rates = Rates {
        submitted: 12.34,
        completed: 0.51,
        failed: 0.2,
        cancelled: 0.0,
        timed_out: 0.0,
        tokens: 61_000.0,
        dollars: 0.128,
    };
    let frame = Frame { rates: Some(rates), ..frame(&data, &state) };
    let expected = "12 submitted/s  0.5 completed/s  0.2 failed/s  61.0k tokens/min  $0.13 /min";
    assert_eq!(lines(&frame, 80, 24)[1], expected);
}

#[test]
fn no_colour_is_used_if_disabled() {
    let (data, state) = (Overview(overview()), State::new());
    let colours = |color| {
        let frame = Frame { color, ..frame(&data, &state) };
        let area = Rect::new(0, 0, 80, 24);
        let mut buffer = Buffer::empty(area);
        frame.draw(area, &mut buffer);
        buffer.content.iter().filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset).count()
    };
    assert!(colours(true) > 20);
    assert_eq!(colours(false), 0);
}

#[test]
fn text_frame_shows_all_rows() {
    let (data, state) = (Overview(overview()), State::new());
    let frame = Frame { keys: false, color: false, ..frame(&data, &state) };
    let area = Rect::new(0, 0, 100, frame.full_height());
    let mut buffer = Buffer::empty(area);
    frame.draw(area, &mut buffer);
    let text = crate::top::text(&buffer);
    for wanted in ["gpu", "node-2", "nightly", "behind 3 runs"] {
        assert_eq!(
            text.iter().filter(|line| line.contains(wanted)).count(),
            1,
            "{wanted} in\n{}",
            text.join("\n")
        );
    }
    assert!(!text.iter().any(|line| line.contains("quit")), "a text frame shows no keys");
}

#[test]
fn rows_are_shared_between_panels() {
    assert_eq!(allocate_rows(21, [1, 1, 3, 3]), [1, 1, 3, 3]);
    assert_eq!(allocate_rows(21, [9, 9, 9, 9]), [3, 3, 2, 2]);
    assert_eq!(allocate_rows(21, [1, 20, 0, 0]), [1, 11, 0, 0]);
    assert_eq!(allocate_rows(3, [5, 5, 5, 5]), [0, 0, 0, 0]);
}
