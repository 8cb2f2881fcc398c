use std::{io::Write as _, time::Duration};

use serde_json::json;
use tokio::time::timeout;

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

fn asked(approval: &str, always: &Value) -> v1::Event {
    let request = json!({ "call": "tool_1", "tool": "Bash", "arguments": { "command": "rm -rf build" }, "agent": "build",
        "call_hash": "abc", "permission": "bash", "patterns": [], "why": "a rule", "always": always });
    let data = json!({ "approval": approval, "request": request });
    v1::Event { r#type: "approval.requested".into(), data: data.to_string(), ..Default::default() }
}

fn decided(approval: &str) -> v1::Event {
    let data = json!({ "approval": approval, "call": "tool_1", "state": "approved", "by": "anna" });
    v1::Event { r#type: "approval.decided".into(), data: data.to_string(), ..Default::default() }
}

/// Someone who types into a pipe, which is read as a terminal is.
fn someone() -> (Asker, File, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tty");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let asker = Asker::at(&path).unwrap();
    let keys = File::options().write(true).open(&path).unwrap();
    (asker, keys, directory)
}

#[test]
fn answers_are_understood() {
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
    assert_eq!(parse("a\n", false), Reply::Unclear, "there is nothing that could be allowed always");
    assert_eq!(parse(&format!("n {}", "x".repeat(limits::MAX_REASON_CHARS + 1)), true), Reply::Unclear);
}

#[test]
fn what_is_decided_about_is_shown_exactly() {
    let data = json::embedded(
        &asked("apr_1", &json!([{ "permission": "bash", "pattern": "rm *", "action": "allow" }])).data,
    );
    let question = Question::of(&data).unwrap();
    let shown: Vec<String> = question.lines().into_iter().map(|(_, text)| text).collect();
    let expected =
        ["● build wants to call Bash", "    rm -rf build", "  why: a rule", "  always: allow bash rm *"];
    assert_eq!(shown, expected);
    let request = question.decide(Reply::Deny("no".into())).unwrap();
    assert_eq!((request.call_hash.as_str(), request.approve, request.message.as_str()), ("abc", false, "no"));
    assert!(question.decide(Reply::Always).unwrap().always);
    assert_eq!(question.decide(Reply::Later), None);
    // What a terminal would hide, and what is not the command, is not left out.
    assert_eq!(
        call_lines("Bash", &json!({ "command": "a", "timeout": 9 })),
        [r#"{"command":"a","timeout":9}"#]
    );
    let hidden = call_lines("Bash", &json!({ "command": "ls\u{1b}[8m; rm x" }));
    assert!(hidden[0].contains("rm x") && !hidden[0].contains('\u{1b}'), "{hidden:?}");
    let long = Question { arguments: json!({ "command": "x\n".repeat(100) }), ..question };
    assert!(long.lines().iter().any(|(_, text)| text.contains("40 more lines: remuda approvals show apr_1")));
}

#[tokio::test]
async fn only_what_is_typed_after_the_question_answers_it() {
    let (mut asker, mut keys, _directory) = someone();
    assert_eq!(asker.next_question(), None);
    keys.write_all(b"y\ny\n").unwrap();
    asker.hear(&asked("apr_1", &Value::Null));
    assert!(asker.prompt().is_none(), "it was not shown yet");
    assert!(asker.next_question().is_some() && asker.next_question().is_none());
    assert!(asker.prompt().is_some_and(|prompt| !prompt.contains("a(lways)")));
    assert!(timeout(Duration::from_millis(50), asker.reply()).await.is_err());
    keys.write_all(b"n not").unwrap();
    assert!(timeout(Duration::from_millis(50), asker.reply()).await.is_err(), "the line is not complete");
    keys.write_all(b" so\n").unwrap();
    let reply = timeout(PATIENCE, asker.reply()).await.unwrap().unwrap();
    assert_eq!(reply, Reply::Deny("not so".into()));
    assert_eq!(asker.take().unwrap().approval, "apr_1");
    assert!(asker.prompt().is_none());
}

#[tokio::test]
async fn a_question_that_others_answer_is_dropped() {
    let (mut asker, mut keys, _directory) = someone();
    for approval in ["apr_1", "apr_2", "apr_3"] {
        asker.hear(&asked(approval, &Value::Null));
    }
    assert!(asker.next_question().is_some());
    // While someone types, the first is decided elsewhere, and so is one that was not asked yet.
    asker.hear(&decided("apr_1"));
    asker.hear(&decided("apr_2"));
    assert!(asker.next_question().is_some(), "the next one is shown");
    // A terminal gives whole lines: this one may have been begun for the first question.
    keys.write_all(b"y\n").unwrap();
    assert_eq!(timeout(PATIENCE, asker.reply()).await.unwrap().unwrap(), Reply::Unclear);
    keys.write_all(b"y\n").unwrap();
    assert_eq!(timeout(PATIENCE, asker.reply()).await.unwrap().unwrap(), Reply::Approve);
    assert_eq!(asker.take().unwrap().approval, "apr_3");
    assert_eq!(asker.take(), None);
}

#[tokio::test]
async fn a_terminal_that_is_closed_is_not_asked() {
    let (mut asker, keys, _directory) = someone();
    asker.hear(&asked("apr_1", &Value::Null));
    assert!(asker.next_question().is_some());
    drop(keys);
    assert_eq!(timeout(PATIENCE, asker.reply()).await.unwrap().unwrap(), Reply::Later);
    for number in 0..2 * MAX_QUESTIONS {
        asker.hear(&asked(&format!("apr_{number}"), &Value::Null));
    }
    assert!(asker.questions.len() <= MAX_QUESTIONS);
}
