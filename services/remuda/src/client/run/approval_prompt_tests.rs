use std::{io::Write as _, time::Duration};

use serde_json::json;
use tokio::time::timeout;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(20);

fn requested(approval: &str, always: &Value) -> v1::Event {
    let request = json!({ "call": "tool_1", "tool": "Bash", "arguments": { "command": "rm -rf build" }, "agent": "build",
        "call_hash": "abc", "permission": "bash", "patterns": [], "why": "a rule", "always": always });
    let data = json!({ "approval": approval, "request": request });
    v1::Event { r#type: "approval.requested".into(), data: data.to_string(), ..Default::default() }
}

fn decided(approval: &str) -> v1::Event {
    let data = json!({ "approval": approval, "call": "tool_1", "state": "approved", "by": "anna" });
    v1::Event { r#type: "approval.decided".into(), data: data.to_string(), ..Default::default() }
}

/// A prompt that reads from a named pipe instead of a terminal.
fn prompt_on_pipe() -> (ApprovalPrompt, File, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tty");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let prompt = ApprovalPrompt::at(&path).unwrap();
    let keys = File::options().write(true).open(&path).unwrap();
    (prompt, keys, directory)
}

#[test]
fn replies_are_parsed() {
    let deny = |text: &str| Reply::Deny(text.to_owned());
    let cases = [
        ("y\n", Reply::Approve),
        (" YES \n", Reply::Approve),
        ("n\n", deny("")),
        ("no use make instead\n", deny("use make instead")),
        ("a\n", Reply::Always),
        ("\n", Reply::Unclear),
        ("yes please\n", Reply::Unclear),
        ("maybe\n", Reply::Unclear),
        ("yn\n", Reply::Unclear),
    ];
    for (line, expected) in cases {
        assert_eq!(parse(line, true), expected, "{line:?}");
    }
    assert_eq!(parse("a\n", false), Reply::Unclear, "the approval has no rules to add");
    assert_eq!(parse(&format!("n {}", "x".repeat(limits::MAX_REASON_CHARS + 1)), true), Reply::Unclear);
}

#[test]
fn call_is_shown_exactly_and_decided_by_hash() {
    let data = json::embedded(
        &requested("apr_1", &json!([{ "permission": "bash", "pattern": "rm *", "action": "allow" }])).data,
    );
    let pending_approval = PendingApproval::from_event(&data).unwrap();
    let shown: Vec<String> = pending_approval.lines().into_iter().map(|(_, text)| text).collect();
    let expected =
        ["● build wants to call Bash", "    rm -rf build", "  why: a rule", "  always: allow bash rm *"];
    assert_eq!(shown, expected);
    let request = pending_approval.decide(Reply::Deny("no".into())).unwrap();
    assert_eq!((request.call_hash.as_str(), request.approve, request.message.as_str()), ("abc", false, "no"));
    assert!(pending_approval.decide(Reply::Always).unwrap().always);
    assert_eq!(pending_approval.decide(Reply::Later), None);
    // Hidden characters and further arguments are shown.
    assert_eq!(
        call_lines("Bash", &json!({ "command": "a", "timeout": 9 })),
        [r#"{"command":"a","timeout":9}"#]
    );
    let hidden = call_lines("Bash", &json!({ "command": "ls\u{1b}[8m; rm x" }));
    assert!(hidden[0].contains("rm x") && !hidden[0].contains('\u{1b}'), "{hidden:?}");
    let long = PendingApproval { arguments: json!({ "command": "x\n".repeat(100) }), ..pending_approval };
    assert!(long.lines().iter().any(|(_, text)| text.contains("40 more lines: remuda approvals show apr_1")));
}

#[tokio::test]
async fn input_before_the_prompt_is_discarded() {
    let (mut prompt, mut keys, _directory) = prompt_on_pipe();
    assert_eq!(prompt.show_next(), None);
    keys.write_all(b"y\ny\n").unwrap();
    prompt.receive(&requested("apr_1", &Value::Null));
    assert!(prompt.prompt().is_none(), "the approval is not shown yet");
    assert!(prompt.show_next().is_some() && prompt.show_next().is_none());
    assert!(prompt.prompt().is_some_and(|text| !text.contains("a(lways)")));
    assert!(timeout(Duration::from_millis(50), prompt.reply()).await.is_err());
    keys.write_all(b"n not").unwrap();
    assert!(timeout(Duration::from_millis(50), prompt.reply()).await.is_err(), "the line is not complete");
    keys.write_all(b" so\n").unwrap();
    let reply = timeout(TIMEOUT, prompt.reply()).await.unwrap().unwrap();
    assert_eq!(reply, Reply::Deny("not so".into()));
    assert_eq!(prompt.take().unwrap().approval, "apr_1");
    assert!(prompt.prompt().is_none());
}

#[tokio::test]
async fn approval_decided_elsewhere_is_dropped() {
    let (mut prompt, mut keys, _directory) = prompt_on_pipe();
    for approval in ["apr_1", "apr_2", "apr_3"] {
        prompt.receive(&requested(approval, &Value::Null));
    }
    assert!(prompt.show_next().is_some());
    // While the user types, the shown approval and a queued one are decided elsewhere.
    prompt.receive(&decided("apr_1"));
    prompt.receive(&decided("apr_2"));
    assert!(prompt.show_next().is_some(), "the next one is shown");
    // A terminal delivers whole lines: this line may have been begun for the first approval.
    keys.write_all(b"y\n").unwrap();
    assert_eq!(timeout(TIMEOUT, prompt.reply()).await.unwrap().unwrap(), Reply::Unclear);
    keys.write_all(b"y\n").unwrap();
    assert_eq!(timeout(TIMEOUT, prompt.reply()).await.unwrap().unwrap(), Reply::Approve);
    assert_eq!(prompt.take().unwrap().approval, "apr_3");
    assert_eq!(prompt.take(), None);
}

#[tokio::test]
async fn closed_terminal_gives_no_decision() {
    let (mut prompt, keys, _directory) = prompt_on_pipe();
    prompt.receive(&requested("apr_1", &Value::Null));
    assert!(prompt.show_next().is_some());
    drop(keys);
    assert_eq!(timeout(TIMEOUT, prompt.reply()).await.unwrap().unwrap(), Reply::Later);
    for number in 0..2 * MAX_PENDING {
        prompt.receive(&requested(&format!("apr_{number}"), &Value::Null));
    }
    assert!(prompt.pending.len() <= MAX_PENDING);
}
