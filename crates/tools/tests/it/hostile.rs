//! Hostile and careless commands.

use std::time::Duration;

use remuda_domain::Code;
use serde_json::{Value, json};

use crate::fixture::{ToolFixture, alive, wait_until_gone};

async fn bash(fixture: &ToolFixture, command: &str) -> Value {
    fixture.call("Bash", json!({ "command": command })).await.unwrap()
}

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[tokio::test]
async fn huge_output_uses_bounded_memory_and_disk() {
    let mut fixture = ToolFixture::new();
    fixture.context.timeout = Duration::from_secs(120);
    let before = resident();
    let answer = bash(&fixture, "yes 0123456789abcdef | head -c 300000000").await;
    assert_eq!((&answer["exit_code"], &answer["stdout_bytes"]), (&json!(0), &json!(300_000_000)));
    assert!(answer["stdout"].as_str().unwrap().len() < 16_100);
    // Other tests run in this process at the same time.
    let grown = resident().saturating_sub(before);
    assert!(grown < 150 << 20, "{grown}");
    let path = answer["artifacts"]["stdout"].as_str().unwrap();
    assert_eq!(std::fs::metadata(fixture.workspace().join(path)).unwrap().len(), 16 << 20);
    assert!(answer["note"].as_str().unwrap().starts_with("the first 16 MiB of stdout"));
}

#[tokio::test]
async fn endless_output_ends_with_the_timeout() {
    let fixture = ToolFixture::new();
    let endless = json!({ "command": "echo $$ > pid; yes", "timeout_ms": 700 });
    let failure = fixture.call_with_output("Bash", endless).await.unwrap_err();
    assert_eq!(failure.error.code(), Code::ToolTimedOut);
    assert!(failure.output["stdout_bytes"].as_u64().unwrap() > 16_000);
    assert!(failure.output["stdout"].as_str().unwrap().starts_with("y\ny\n"));
    assert!(!alive(fixture.pid("pid").await));
}

#[tokio::test]
async fn output_bytes_become_valid_text() {
    let fixture = ToolFixture::new();
    let answer = bash(&fixture, r"printf 'a\xff\xfe\x00b\xc3'; printf '\xed\xa0\x80' >&2").await;
    assert_eq!(answer["stdout"], "a\u{fffd}\u{fffd}\u{fffd}b\u{fffd}");
    assert_eq!(answer["stderr"], "\u{fffd}\u{fffd}\u{fffd}");
    // A character written in two parts stays one character.
    let answer = bash(&fixture, r"printf '\xc3'; sleep 0.1; printf '\xa9'").await;
    assert_eq!(answer["stdout"], "é");
}

/// Clients escape them for display; tool results keep them as data.
#[tokio::test]
async fn terminal_escapes_are_returned_as_data() {
    let answer = bash(&ToolFixture::new(), r"printf '\033]0;title\007\033[2J\033]52;c;YQ==\007\r'").await;
    assert_eq!(answer["stdout"], "\u{1b}]0;title\u{7}\u{1b}[2J\u{1b}]52;c;YQ==\u{7}\r");
}

/// `CARGO_MANIFEST_DIR` in this process's environment stands for any secret of a worker.
#[tokio::test]
async fn environment_of_the_worker_is_hidden() {
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    let commands = ["env", "export -p", "cat /proc/self/environ", "cat /proc/$PPID/environ"];
    for command in commands {
        let answer = bash(&ToolFixture::new(), command).await;
        for stream in ["stdout", "stderr"] {
            let output = answer[stream].as_str().unwrap();
            assert!(
                !output.contains("CARGO_MANIFEST_DIR") && !output.contains("REMUDA_"),
                "{command}: {output}"
            );
        }
    }
}

#[tokio::test]
async fn no_process_survives_its_call() {
    for (what, command) in [
        ("ignores SIGTERM", "trap '' TERM; echo $$ > pid; while :; do sleep 1; done"),
        (
            "a daemon",
            "setsid -f sh -c 'echo $$ > pid; exec sleep 1000' >/dev/null 2>&1 </dev/null; sleep 1000",
        ),
        ("holds the pipe", "(echo $BASHPID > pid; exec sleep 1000) & sleep 1000"),
    ] {
        let fixture = ToolFixture::new();
        let arguments = json!({ "command": command, "timeout_ms": 1000 });
        let error = fixture.call("Bash", arguments).await.unwrap_err();
        assert_eq!(error.code(), Code::ToolTimedOut, "{what}");
        wait_until_gone(fixture.pid("pid").await).await;
    }
}

#[tokio::test]
async fn background_process_does_not_block_the_call() {
    let fixture = ToolFixture::new();
    for command in [
        "(echo $BASHPID > pid; exec sleep 1000) & while [ ! -s pid ]; do sleep 0.01; done; echo done",
        "setsid -f sh -c 'echo $$ > pid; exec sleep 1000'; while [ ! -s pid ]; do sleep 0.01; done; echo done",
    ] {
        let answer = bash(&fixture, command).await;
        assert_eq!((&answer["exit_code"], &answer["stdout"]), (&json!(0), &json!("done\n")), "{command}");
        wait_until_gone(fixture.pid("pid").await).await;
        std::fs::remove_file(fixture.workspace().join("pid")).unwrap();
    }
}
