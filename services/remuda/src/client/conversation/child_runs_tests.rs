use serde_json::json;

use super::*;

fn event(run: &str, name: &str, data: &Value) -> v1::Event {
    v1::Event { run_id: run.into(), r#type: name.into(), data: data.to_string(), ..Default::default() }
}

fn started(children: &mut ChildRuns, above: &str, run: &str, agent: &str) -> Vec<String> {
    let data =
        json!({ "call": "t", "session": "ses_1", "run": run, "agent": agent, "description": "look\nhere" });
    texts(children.event(&event(above, "subagent.started", &data)))
}

fn texts(notice: ChildNotice) -> Vec<String> {
    notice.lines.into_iter().map(|(_, text)| text).collect()
}

fn called(children: &mut ChildRuns, run: &str, id: &str, command: &str) -> Vec<String> {
    let call = json!({ "id": id, "tool": "Bash", "arguments": { "command": command } });
    let message =
        json!({ "message": "m", "role": "assistant", "parts": [{ "type": "tool_use", "call": call }] });
    assert_eq!(texts(children.event(&event(run, "message.completed", &message))), [""; 0]);
    let begun = json!({ "call": id, "tool": "Bash" });
    assert_eq!(texts(children.event(&event(run, "tool.started", &begun))), [""; 0]);
    let output = json!({ "exit_code": 1, "stdout": "long\noutput" });
    let outcome =
        json!({ "id": id, "tool": "Bash", "status": "completed", "output": output, "duration_ms": 3 });
    texts(children.event(&event(run, "tool.completed", &outcome)))
}

#[test]
fn each_tool_call_takes_one_line_below_its_parent() {
    let mut children = ChildRuns::default();
    assert_eq!(started(&mut children, "root", "run_a", "review"), ["  ▸ review: look here"]);
    assert_eq!(started(&mut children, "run_a", "run_b", "build"), ["    ▸ build: look here"]);
    assert_eq!(called(&mut children, "run_a", "t1", "make"), ["  │ review  ⏺ Bash  make · exit code 1"]);
    assert_eq!(children.activity(), Some("review: Bash make"));
    assert_eq!(called(&mut children, "run_b", "t2", "ls"), ["    │ build  ⏺ Bash  ls · exit code 1"]);
    let usage = json!({ "usage": { "input_tokens": 1000, "output_tokens": 200 } });
    children.event(&event("run_b", "model.completed", &usage));
    let done = children.event(&event("run_b", "run.completed", &Value::Null));
    assert_eq!(texts(done), ["    │ build  ✓ completed · 2 steps · 1.2k tokens"]);
}

#[test]
fn children_with_the_same_agent_are_numbered() {
    let mut children = ChildRuns::default();
    started(&mut children, "root", "run_a", "review");
    assert_eq!(started(&mut children, "root", "run_b", "review"), ["  ▸ review 2: look here"]);
    assert_eq!(called(&mut children, "run_b", "t", "ls"), ["  │ review 2  ⏺ Bash  ls · exit code 1"]);
    assert_eq!(called(&mut children, "run_a", "t", "ls"), ["  │ review  ⏺ Bash  ls · exit code 1"]);
}

#[test]
fn the_end_of_a_child_is_shown_once() {
    let mut children = ChildRuns::default();
    let over =
        |run: &str| json!({ "call": "t", "session": "s", "run": run, "agent": "review", "state": "failed" });
    for run in ["run_a", "run_b"] {
        started(&mut children, "root", run, "review");
    }
    let failed = json!({ "code": "tool_failed", "message": "no" });
    let notice = children.event(&event("run_a", "run.failed", &failed));
    assert_eq!(texts(notice), ["  │ review  ✗ failed: no"]);
    assert_eq!(texts(children.event(&event("root", "subagent.ended", &over("run_a")))), [""; 0]);
    // Its own end event was never received.
    let notice = children.event(&event("root", "subagent.ended", &over("run_b")));
    assert_eq!(texts(notice), ["  │ review 2  ✗ failed"]);
    assert_eq!(children.activity(), None);
}

#[test]
fn blocked_child_is_named() {
    let mut children = ChildRuns::default();
    started(&mut children, "root", "run_a", "review");
    let request = json!({ "tool": "Bash", "arguments": { "command": "rm x" } });
    let requested = event("run_a", "approval.requested", &json!({ "approval": "apr_1", "request": request }));
    let notice = children.event(&requested);
    assert!(notice.action_needed);
    assert_eq!(notice.lines[0].1, "  │ review  ● waits for approval: Bash  rm x");
    let parked = event("run_a", "run.parked", &json!({ "reason": "budget" }));
    let notice = children.event(&parked);
    assert!(notice.action_needed && notice.lines[1].1.contains("remuda budget set root "), "{notice:?}");
}

#[test]
fn child_without_a_start_event_is_named_by_the_end_of_its_id() {
    let mut children = ChildRuns::default();
    assert_eq!(called(&mut children, "run_123456789", "t", "ls"), ["  │ …456789  ⏺ Bash  ls · exit code 1"]);
    let end = event("run_other", "run.completed", &Value::Null);
    assert_eq!(children.event(&end), ChildNotice::default());
}
