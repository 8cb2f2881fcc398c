use serde_json::json;

use super::*;

fn event(run: &str, name: &str, data: &Value) -> v1::Event {
    v1::Event { run_id: run.into(), r#type: name.into(), data: data.to_string(), ..Default::default() }
}

fn started(helpers: &mut Helpers, above: &str, run: &str, agent: &str) -> Vec<String> {
    let data =
        json!({ "call": "t", "session": "ses_1", "run": run, "agent": agent, "description": "look\nhere" });
    texts(helpers.event(&event(above, "subagent.started", &data)))
}

fn texts(told: Told) -> Vec<String> {
    told.lines.into_iter().map(|(_, text)| text).collect()
}

fn called(helpers: &mut Helpers, run: &str, id: &str, command: &str) -> Vec<String> {
    let call = json!({ "id": id, "tool": "Bash", "arguments": { "command": command } });
    let said =
        json!({ "message": "m", "role": "assistant", "parts": [{ "type": "tool_use", "call": call }] });
    assert_eq!(texts(helpers.event(&event(run, "message.completed", &said))), [""; 0]);
    let begun = json!({ "call": id, "tool": "Bash" });
    assert_eq!(texts(helpers.event(&event(run, "tool.started", &begun))), [""; 0]);
    let output = json!({ "exit_code": 1, "stdout": "long\noutput" });
    let outcome =
        json!({ "id": id, "tool": "Bash", "status": "completed", "output": output, "duration_ms": 3 });
    texts(helpers.event(&event(run, "tool.completed", &outcome)))
}

#[test]
fn each_call_takes_a_line_beneath_those_it_is_made_for() {
    let mut helpers = Helpers::default();
    assert_eq!(started(&mut helpers, "root", "run_a", "review"), ["  ▸ review: look here"]);
    assert_eq!(started(&mut helpers, "run_a", "run_b", "build"), ["    ▸ build: look here"]);
    assert_eq!(called(&mut helpers, "run_a", "t1", "make"), ["  │ review  ⏺ Bash  make · exit code 1"]);
    assert_eq!(helpers.activity(), Some("review: Bash make"));
    assert_eq!(called(&mut helpers, "run_b", "t2", "ls"), ["    │ build  ⏺ Bash  ls · exit code 1"]);
    let usage = json!({ "usage": { "input_tokens": 1000, "output_tokens": 200 } });
    helpers.event(&event("run_b", "model.completed", &usage));
    let done = helpers.event(&event("run_b", "run.completed", &Value::Null));
    assert_eq!(texts(done), ["    │ build  ✓ completed · 2 steps · 1.2k tokens"]);
}

#[test]
fn helpers_of_the_same_kind_are_told_apart() {
    let mut helpers = Helpers::default();
    started(&mut helpers, "root", "run_a", "review");
    assert_eq!(started(&mut helpers, "root", "run_b", "review"), ["  ▸ review 2: look here"]);
    assert_eq!(called(&mut helpers, "run_b", "t", "ls"), ["  │ review 2  ⏺ Bash  ls · exit code 1"]);
    assert_eq!(called(&mut helpers, "run_a", "t", "ls"), ["  │ review  ⏺ Bash  ls · exit code 1"]);
}

#[test]
fn an_end_is_told_once() {
    let mut helpers = Helpers::default();
    let over =
        |run: &str| json!({ "call": "t", "session": "s", "run": run, "agent": "review", "state": "failed" });
    for run in ["run_a", "run_b"] {
        started(&mut helpers, "root", run, "review");
    }
    let failed = json!({ "code": "tool_failed", "message": "no" });
    let told = helpers.event(&event("run_a", "run.failed", &failed));
    assert_eq!(texts(told), ["  │ review  ✗ failed: no"]);
    assert_eq!(texts(helpers.event(&event("root", "subagent.ended", &over("run_a")))), [""; 0]);
    // Its own end was never heard of.
    let told = helpers.event(&event("root", "subagent.ended", &over("run_b")));
    assert_eq!(texts(told), ["  │ review 2  ✗ failed"]);
    assert_eq!(helpers.activity(), None);
}

#[test]
fn who_waits_is_named() {
    let mut helpers = Helpers::default();
    started(&mut helpers, "root", "run_a", "review");
    let request = json!({ "tool": "Bash", "arguments": { "command": "rm x" } });
    let asked = event("run_a", "approval.requested", &json!({ "approval": "apr_1", "request": request }));
    let told = helpers.event(&asked);
    assert!(told.waits);
    assert_eq!(told.lines[0].1, "  │ review  ● waits for approval: Bash  rm x");
    let parked = event("run_a", "run.parked", &json!({ "reason": "budget" }));
    let told = helpers.event(&parked);
    assert!(told.waits && told.lines[1].1.contains("remuda budget set root "), "{told:?}");
}

#[test]
fn a_helper_that_nobody_told_of_has_the_end_of_its_id() {
    let mut helpers = Helpers::default();
    assert_eq!(called(&mut helpers, "run_123456789", "t", "ls"), ["  │ …456789  ⏺ Bash  ls · exit code 1"]);
    let end = event("run_other", "run.completed", &Value::Null);
    assert_eq!(helpers.event(&end), Told::default());
}
