use serde_json::json;

use super::*;
use crate::output::Style;

fn event(name: &str, data: &Value) -> v1::Event {
    v1::Event { r#type: name.into(), data: data.to_string(), ..Default::default() }
}

fn model_started(live: &mut LiveRun, message: &str) -> Vec<DisplayItem> {
    live.event(&event(
        "model.started",
        &json!({ "message": message, "agent": "build", "model": "platform/m" }),
    ))
}

fn delta(message: &str, kind: &str, offset: u64, text: &str) -> v1::Delta {
    v1::Delta {
        run_id: String::new(),
        message_id: message.into(),
        kind: kind.into(),
        offset,
        text: text.into(),
        ..v1::Delta::default()
    }
}

fn message_completed(live: &mut LiveRun, message: &str, parts: &Value) -> Vec<DisplayItem> {
    live.event(&event(
        "message.completed",
        &json!({ "message": message, "role": "assistant", "parts": parts }),
    ))
}

fn text(text: &str) -> DisplayItem {
    DisplayItem::Text(text.to_owned())
}

const END: DisplayItem = DisplayItem::MessageEnd { calls: false };

#[test]
fn streamed_text_is_not_repeated_by_the_complete_message() {
    let mut live = LiveRun::default();
    let header = DisplayItem::Header { agent: "build".into(), model: "platform/m".into() };
    assert_eq!(model_started(&mut live, "m1"), [header]);
    assert_eq!(live.delta(delta("m1", "reasoning", 0, "Hm.")), [DisplayItem::Reasoning("Hm.".into())]);
    assert_eq!(live.delta(delta("m1", "text", 0, "Hello")), [text("Hello")]);
    let parts = json!([{ "type": "reasoning", "reasoning": { "text": "Hm." } }, { "type": "text", "text": "Hello world" }]);
    assert_eq!(message_completed(&mut live, "m1", &parts), [text(" world"), END]);
    assert_eq!(model_started(&mut live, "m2"), [], "the same agent needs no new header");
}

#[test]
fn message_without_deltas_is_shown_whole() {
    let parts =
        json!([{ "type": "reasoning", "reasoning": { "text": "Hm." } }, { "type": "text", "text": "Hi" }]);
    let mut live = LiveRun::default();
    assert_eq!(
        message_completed(&mut live, "m1", &parts),
        [DisplayItem::Reasoning("Hm.".into()), text("Hi"), END]
    );
}

#[test]
fn missing_deltas_are_filled_in_by_the_complete_message() {
    let mut live = LiveRun::default();
    model_started(&mut live, "m1");
    assert_eq!(live.delta(delta("m1", "text", 0, "one ")), [text("one ")]);
    assert_eq!(live.delta(delta("m1", "text", 8, "three ")), [], "two is missing");
    assert_eq!(live.delta(delta("m1", "text", 14, "four")), []);
    let parts = json!([{ "type": "text", "text": "one two three four" }]);
    assert_eq!(message_completed(&mut live, "m1", &parts), [text("two three four"), END]);
}

#[test]
fn restarted_message_replaces_what_was_shown() {
    let mut live = LiveRun::default();
    model_started(&mut live, "m1");
    live.delta(delta("m1", "text", 0, "Well, I"));
    assert_eq!(live.delta(delta("m1", "text", 0, "Sure")), [DisplayItem::Restarted, text("Sure")]);
    let parts = json!([{ "type": "text", "text": "Sure." }]);
    assert_eq!(message_completed(&mut live, "m1", &parts), [text("."), END]);

    // On another worker, with the same message; and with a complete message that differs from the deltas.
    model_started(&mut live, "m2");
    live.delta(delta("m2", "text", 0, "Wel"));
    assert_eq!(model_started(&mut live, "m2"), [DisplayItem::Restarted]);
    live.delta(delta("m2", "text", 0, "No"));
    let parts = json!([{ "type": "text", "text": "Yes" }]);
    assert_eq!(message_completed(&mut live, "m2", &parts), [DisplayItem::Restarted, text("Yes"), END]);
}

#[test]
fn early_deltas_wait_for_the_start_of_their_message() {
    let mut live = LiveRun::default();
    assert_eq!(live.delta(delta("m1", "text", 0, "Hi")), []);
    let items = model_started(&mut live, "m1");
    assert_eq!(items.last(), Some(&text("Hi")));
    let parts = json!([{ "type": "text", "text": "Hi" }]);
    assert_eq!(message_completed(&mut live, "m1", &parts), [END]);
    for _ in 0..2 * MAX_EARLY_DELTAS {
        assert_eq!(live.delta(delta("m1", "text", 0, "late")), []);
    }
    assert!(live.early_deltas.len() <= MAX_EARLY_DELTAS);
}

#[test]
fn result_names_its_call_unless_it_follows_directly() {
    let mut live = LiveRun::default();
    let call = |id: &str, command: &str| json!({ "type": "tool_use", "call": { "id": id, "tool": "Bash", "arguments": { "command": command } } });
    let parts = json!([call("t1", "make"), call("t2", "make test")]);
    assert_eq!(message_completed(&mut live, "m1", &parts), [DisplayItem::MessageEnd { calls: true }]);
    let started = |live: &mut LiveRun, id: &str| {
        live.event(&event("tool.started", &json!({ "call": id, "tool": "Bash" })))
    };
    assert_eq!(started(&mut live, "t1"), [], "parallel calls are shown with their results");
    assert_eq!(live.activity(), "Bash make");
    assert_eq!(started(&mut live, "t2"), []);
    let ended = |live: &mut LiveRun, id: &str| {
        let outcome = json!({ "id": id, "tool": "Bash", "status": "completed", "output": { "exit_code": 0 }, "duration_ms": 1 });
        match live.event(&event("tool.completed", &outcome)).remove(0) {
            DisplayItem::Result { call, lines } => (call, lines[0].1.clone()),
            other => panic!("{other:?}"),
        }
    };
    let named = |detail: &str| (Some(("Bash".to_owned(), detail.to_owned())), "exit code 0".to_owned());
    assert_eq!(ended(&mut live, "t1"), named("make"));
    assert_eq!(ended(&mut live, "t2"), named("make test"));
    assert_eq!(started(&mut live, "t3"), [DisplayItem::Call { tool: "Bash".into(), detail: String::new() }]);
    assert_eq!(ended(&mut live, "t3").0, None);
    assert_eq!(live.totals().steps, 3);
}

#[test]
fn control_sequences_split_over_deltas_are_removed() {
    let mut live = LiveRun::default();
    model_started(&mut live, "m1");
    assert_eq!(live.delta(delta("m1", "text", 0, "a\u{1b}")), [text("a")]);
    assert_eq!(live.delta(delta("m1", "text", 2, "[2")), []);
    assert_eq!(live.delta(delta("m1", "text", 4, "Jb")), [text("b")]);
}

#[test]
fn tokens_and_cost_are_added_up() {
    let mut live = LiveRun::default();
    let data = json!({ "message": "m", "finish": "stop", "usage": { "input_tokens": 10, "output_tokens": 5 }, "cost": 7 });
    live.event(&event("model.completed", &data));
    live.event(&event("model.completed", &data));
    assert_eq!(live.totals(), RunTotals { steps: 2, input_tokens: 20, output_tokens: 10, micros: 14 });
}

#[test]
fn child_runs_are_shown_between_their_call_and_its_result() {
    let mut live = LiveRun::for_run("root");
    let parts = json!([{ "type": "tool_use", "call": { "id": "t1", "tool": "SubAgent", "arguments": {} } }]);
    live.event(&v1::Event {
        run_id: "root".into(),
        ..event("message.completed", &json!({ "message": "m0", "role": "assistant", "parts": parts }))
    });
    let for_run = |run: &str, name: &str, data: &Value| v1::Event { run_id: run.into(), ..event(name, data) };
    let begun =
        json!({ "call": "t1", "session": "ses_1", "run": "run_a", "agent": "review", "description": "look" });
    let facts = |text: &str| [DisplayItem::Notice(vec![(Some(Style::Dim), text.to_owned())])];
    let call = DisplayItem::Call { tool: "SubAgent".into(), detail: String::new() };
    assert_eq!(
        live.event(&for_run("root", "tool.started", &json!({ "call": "t1", "tool": "SubAgent" }))),
        [call]
    );
    assert_eq!(live.event(&for_run("root", "subagent.started", &begun)), facts("  ▸ review: look"));
    assert_eq!(live.event(&for_run("root", "run.parked", &json!({ "reason": "children" }))), []);
    let model_started = json!({ "message": "m1", "agent": "review", "model": "platform/m" });
    assert_eq!(
        live.event(&for_run("run_a", "model.started", &model_started)),
        [],
        "a child run gets no header"
    );
    assert_eq!(live.activity(), "review thinks");
    let piece = v1::Delta { run_id: "run_a".into(), ..delta("m1", "text", 0, "Hm") };
    assert_eq!(live.delta(piece), []);
    assert_eq!(
        live.event(&for_run("run_a", "run.completed", &Value::Null)),
        facts("  │ review  ✓ completed")
    );
    let over =
        json!({ "call": "t1", "session": "ses_1", "run": "run_a", "agent": "review", "state": "completed" });
    assert_eq!(live.event(&for_run("root", "subagent.ended", &over)), []);
    assert_eq!(live.event(&for_run("root", "run.resumed", &Value::Null)), []);
    assert_eq!(live.totals(), RunTotals::default());
    let outcome = json!({ "id": "t1", "tool": "SubAgent", "status": "completed", "output": { "result": "fine" }, "duration_ms": 1 });
    let result = live.event(&for_run("root", "tool.completed", &outcome));
    assert!(
        matches!(&result[..], [DisplayItem::Result { call: None, .. }]),
        "directly below the call: {result:?}"
    );
}

#[test]
fn command_output_is_shown_between_its_call_and_its_result() {
    let mut live = LiveRun::default();
    let started = |live: &mut LiveRun, call: &str| {
        live.event(&event("tool.started", &json!({ "call": call, "tool": "Bash" })))
    };
    let prints = |live: &mut LiveRun, call: &str, kind: &str, offset, text: &str| {
        live.delta(v1::Delta { call_id: call.into(), ..delta("", kind, offset, text) })
    };
    let ended = |live: &mut LiveRun, call: &str, stdout: &str| {
        let output = json!({ "exit_code": 0, "stdout": stdout, "stderr": "oops\n" });
        let outcome =
            json!({ "id": call, "tool": "Bash", "status": "completed", "output": output, "duration_ms": 1 });
        live.event(&event("tool.completed", &outcome))
    };
    let lines = |piece: &DisplayItem| match piece {
        DisplayItem::CallOutput(lines) | DisplayItem::Result { lines, .. } => {
            lines.iter().map(|(_, text)| text.clone()).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    started(&mut live, "t1");
    assert_eq!(lines(&prints(&mut live, "t1", "stdout", 0, "one\ntw")[0]), ["one"]);
    assert_eq!(prints(&mut live, "t1", "stdout", 6, "o"), []);
    assert_eq!(lines(&prints(&mut live, "t1", "stderr", 0, "oops\n")[0]), ["oops"]);
    let result = ended(&mut live, "t1", "one\ntwo\nthree\n");
    assert!(
        matches!(&result[..], [DisplayItem::Result { call: None, .. }]),
        "directly below the call: {result:?}"
    );
    assert_eq!(lines(&result[0]), ["exit code 0", "two", "three"]);

    // With two calls in parallel the output could not be attributed.
    started(&mut live, "t2");
    started(&mut live, "t3");
    assert_eq!(prints(&mut live, "t3", "stdout", 0, "three\n"), []);
    assert_eq!(lines(&ended(&mut live, "t3", "three\n")[0]), ["exit code 0", "three", "oops"]);
}

#[test]
fn waits_and_their_ends_are_shown() {
    let mut live = LiveRun::default();
    let request = json!({ "tool": "Bash", "arguments": { "command": "rm x" } });
    let model_started =
        live.event(&event("approval.requested", &json!({ "approval": "apr_1", "request": request })));
    assert!(
        matches!(&model_started[..], [DisplayItem::ActionNeeded(lines)] if lines[1].1.contains("approve apr_1")),
        "{model_started:?}"
    );
    assert_eq!(live.event(&event("run.parked", &json!({ "reason": "approval" }))), []);
    assert_eq!(live.activity(), "waiting for approval");
    assert_eq!(live.event(&event("run.resumed", &Value::Null)), []);
    let parked = live.event(&event("run.parked", &json!({ "reason": "budget" })));
    assert!(matches!(&parked[..], [DisplayItem::ActionNeeded(_)]), "{parked:?}");
    let resumed = live.event(&event("run.resumed", &Value::Null));
    assert!(matches!(&resumed[..], [DisplayItem::Event(_)]), "{resumed:?}");
}
