use chrono::TimeDelta;

use super::*;

fn at(ms: i64) -> Option<prost_types::Timestamp> {
    Some(convert::timestamp(Timestamp::UNIX_EPOCH + TimeDelta::milliseconds(ms)))
}

fn span(id: &str, parent: &str, name: &str, from: i64, to: Option<i64>) -> v1::TraceSpan {
    v1::TraceSpan {
        span_id: id.to_owned(),
        parent_span_id: parent.to_owned(),
        name: name.to_owned(),
        started_at: at(from),
        ended_at: to.and_then(at),
        ..v1::TraceSpan::default()
    }
}

fn trace(spans: Vec<v1::TraceSpan>) -> v1::GetRunTraceResponse {
    v1::GetRunTraceResponse { spans, now: at(1000), ..v1::GetRunTraceResponse::default() }
}

#[test]
fn spans_are_drawn_as_a_tree_on_a_common_scale() {
    let mut tool = span("3", "2", "execute_tool Bash", 500, Some(1000));
    tool.attributes.insert("process.exit.code".to_owned(), "1".to_owned());
    let spans = vec![
        span("1", "elsewhere", "run tools", 0, Some(1000)),
        span("w", "1", "wait in queue", 0, Some(1)),
        span("2", "1", "attempt", 0, Some(1000)),
        tool,
    ];
    let lines = draw(&trace(spans), 105);
    let names: Vec<&str> = lines.iter().map(|line| line.name.trim_end()).collect();
    assert_eq!(names, ["run tools", "├ wait in queue", "└ attempt", "  └ execute_tool Bash"]);
    let bars: Vec<&str> = lines.iter().map(|line| line.bar.as_str()).collect();
    assert_eq!(
        bars,
        [
            "█".repeat(16),
            format!("▏{}", " ".repeat(15)),
            "█".repeat(16),
            format!("{}{}", " ".repeat(8), "█".repeat(8))
        ]
    );
    assert_eq!((lines[3].duration.trim(), lines[3].detail.as_str()), ("500 ms", "exit 1"));
}

#[test]
fn open_spans_end_in_an_arrow_and_failures_are_shown() {
    let mut lost = span("2", "1", "attempt", 0, Some(200));
    lost.failure = "the worker was lost".to_owned();
    let lines = draw(&trace(vec![span("1", "", "run message", 0, None), lost]), 200);
    assert!(lines[0].bar.ends_with('▶'), "{:?}", lines[0]);
    assert!(lines[1].failed && lines[1].detail == "✗ the worker was lost", "{:?}", lines[1]);
}

#[test]
fn self_parented_and_empty_traces_are_drawn() {
    let itself = span("1", "1", &"é".repeat(100), 5, Some(5));
    let lines = draw(&trace(vec![itself]), 20);
    assert_eq!((lines.len(), lines[0].name.chars().count()), (1, NAME_WIDTH));
    assert!(draw(&trace(Vec::new()), 80).is_empty());
}
