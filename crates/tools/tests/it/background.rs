use std::{sync::Arc, time::Duration};

use remuda_domain::Code;
use remuda_tools::{BackgroundTasks, MAX_RUNNING};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::fixture::{ToolFixture, alive, rejection, wait_until_gone};

impl ToolFixture {
    async fn start(&self, command: &str) -> String {
        let answer =
            self.call("Bash", json!({ "command": command, "run_in_background": true })).await.unwrap();
        assert_eq!(answer["status"], "running");
        answer["task_id"].as_str().unwrap().to_owned()
    }

    async fn report(&self, task: &str) -> Value {
        self.call("BashOutput", json!({ "task_id": task })).await.unwrap()
    }

    /// Polls until the task has ended. Returns its remaining stdout and the last report.
    async fn end(&self, task: &str) -> (String, Value) {
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut output = String::new();
        loop {
            let answer = self.report(task).await;
            output.push_str(answer["stdout"].as_str().unwrap());
            if answer["status"] != "running" && answer.get("more").is_none() {
                return (output, answer);
            }
            assert!(Instant::now() < deadline, "{answer}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Polls until the task has written this text.
    async fn wait_for_output(&self, task: &str, text: &str) {
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut output = String::new();
        while !output.contains(text) {
            output.push_str(self.report(task).await["stdout"].as_str().unwrap());
            assert!(Instant::now() < deadline, "{output:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn background_task_reports_only_new_output() {
    let fixture = ToolFixture::new();
    let task = fixture
        .start("echo ready; until [ -e go ]; do sleep 0.02; done; echo done; echo bad >&2; exit 3")
        .await;
    assert_eq!(task, "bash_1");
    fixture.wait_for_output(&task, "ready\n").await;
    let quiet = fixture.report(&task).await;
    assert_eq!(quiet, json!({ "task_id": "bash_1", "status": "running", "stdout": "", "stderr": "" }));
    fixture.call("Bash", json!({ "command": "touch go" })).await.unwrap();
    let (output, answer) = fixture.end(&task).await;
    assert_eq!(output, "done\n");
    assert_eq!((&answer["status"], &answer["exit_code"]), (&json!("exited"), &json!(3)));
    // The final status stays, and output is returned only once.
    let again = fixture.report(&task).await;
    assert_eq!(
        (&again["exit_code"], &again["stdout"], &again["stderr"]),
        (&json!(3), &json!(""), &json!(""))
    );
}

#[tokio::test]
async fn killed_task_leaves_no_process() {
    let fixture = ToolFixture::new();
    let task =
        fixture.start("trap '' TERM; sleep 1000 & echo $! > child; echo $$ > shell; echo up; wait").await;
    fixture.wait_for_output(&task, "up").await;
    let (shell, child) = (fixture.pid("shell").await, fixture.pid("child").await);
    let answer = fixture.call("KillBash", json!({ "task_id": task })).await.unwrap();
    assert_eq!(answer["status"], "killed");
    assert!(!alive(shell) && !alive(child));
    // Killing twice is harmless.
    let answer = fixture.call("KillBash", json!({ "task_id": task })).await.unwrap();
    assert_eq!(answer["status"], "killed");
    let ended = fixture.start("true").await;
    fixture.end(&ended).await;
    let answer = fixture.call("KillBash", json!({ "task_id": ended })).await.unwrap();
    assert_eq!(answer["status"], "exited");
}

#[tokio::test]
async fn shutdown_ends_all_tasks_and_prevents_new_ones() {
    let fixture = ToolFixture::new();
    for number in 0..3 {
        fixture.start(&format!("echo $$ > pid{number}; exec sleep 1000")).await;
    }
    let pids = [fixture.pid("pid0").await, fixture.pid("pid1").await, fixture.pid("pid2").await];
    assert!(pids.into_iter().all(alive));
    assert_eq!(fixture.context.background.shutdown().await, 3);
    assert!(!pids.into_iter().any(alive));
    assert_eq!(fixture.report("bash_2").await["status"], "killed");
    let late =
        fixture.call("Bash", json!({ "command": "true", "run_in_background": true })).await.unwrap_err();
    assert_eq!(late.code(), Code::Cancelled);
    assert_eq!(fixture.context.background.shutdown().await, 0);
}

#[tokio::test]
async fn dropping_the_run_kills_its_tasks() {
    let mut fixture = ToolFixture::new();
    fixture.start("echo $$ > pid; exec sleep 1000").await;
    let pid = fixture.pid("pid").await;
    fixture.context.background = Arc::new(BackgroundTasks::new(Instant::now()));
    wait_until_gone(pid).await;
}

#[tokio::test]
async fn task_time_limit_is_the_deadline_of_the_run() {
    let mut fixture = ToolFixture::new();
    fixture.context.background = Arc::new(BackgroundTasks::new(Instant::now() + Duration::from_millis(300)));
    let command = json!({ "command": "echo a; sleep 1000", "timeout_ms": 1, "run_in_background": true });
    fixture.call("Bash", command).await.unwrap();
    let (output, answer) = fixture.end("bash_1").await;
    assert_eq!((output.as_str(), &answer["status"]), ("a\n", &json!("timed_out")));
}

#[tokio::test]
async fn cancelling_a_call_does_not_end_the_task() {
    let mut fixture = ToolFixture::new();
    let task = fixture.start("echo $$ > pid; exec sleep 1000").await;
    let pid = fixture.pid("pid").await;
    fixture.context.cancel.cancel();
    fixture.context.cancel = tokio_util::sync::CancellationToken::new();
    assert!(alive(pid));
    assert_eq!(fixture.report(&task).await["status"], "running");
}

#[tokio::test]
async fn running_and_ended_tasks_are_limited() {
    let fixture = ToolFixture::new();
    for _ in 0..MAX_RUNNING {
        fixture.start("exec sleep 1000").await;
    }
    let error =
        fixture.call("Bash", json!({ "command": "true", "run_in_background": true })).await.unwrap_err();
    assert_eq!(error.code(), Code::Overloaded);
    fixture.call("KillBash", json!({ "task_id": "bash_1" })).await.unwrap();
    assert_eq!(fixture.start("exec sleep 1000").await, "bash_9");
    for number in 2..=9 {
        fixture.call("KillBash", json!({ "task_id": format!("bash_{number}") })).await.unwrap();
    }
    for _ in 0..20 {
        let task = fixture.start("true").await;
        fixture.end(&task).await;
    }
    let error = fixture.call("BashOutput", json!({ "task_id": "bash_1" })).await.unwrap_err();
    assert_eq!((error.code(), error.field()), (Code::TaskNotFound, Some("arguments.task_id")));
    fixture.report("bash_29").await;
}

#[tokio::test]
async fn tasks_of_other_runs_are_not_found() {
    let (fixture, other) = (ToolFixture::new(), ToolFixture::new());
    fixture.start("true").await;
    for (tool, task) in
        [("BashOutput", "bash_1"), ("KillBash", "bash_1"), ("BashOutput", ""), ("KillBash", "bash_01")]
    {
        let error = other.call(tool, json!({ "task_id": task })).await.unwrap_err();
        assert_eq!(error.code(), Code::TaskNotFound);
        assert!(error.message().contains("end with their run"), "{}", error.message());
    }
}

#[tokio::test]
async fn overwritten_output_is_counted_as_missed() {
    let fixture = ToolFixture::new();
    let task =
        fixture.start("yes 0123456 | head -c 3000000; echo; echo the end; echo 1 > ended; sleep 1000").await;
    fixture.pid("ended").await;
    // Only the newest half mebibyte is kept, and is returned in parts.
    let (mut missed, mut output) = (0, String::new());
    let deadline = Instant::now() + Duration::from_secs(30);
    while !output.ends_with("the end\n") {
        let answer = fixture.report(&task).await;
        missed += answer.get("stdout_missed_bytes").and_then(Value::as_u64).unwrap_or(0);
        let news = answer["stdout"].as_str().unwrap();
        assert!(news.len() <= 16_000);
        output.push_str(news);
        assert!(Instant::now() < deadline, "{answer}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(output.len() as u64 + missed, 3_000_009);
    assert!(missed > 2_000_000, "{missed}");
}

#[tokio::test]
async fn filter_returns_matching_lines_only() {
    let fixture = ToolFixture::new();
    let task = fixture.start("echo error 1; echo fine; echo error 2").await;
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut output = String::new();
    loop {
        let answer =
            fixture.call("BashOutput", json!({ "task_id": task, "filter": "^error" })).await.unwrap();
        output.push_str(answer["stdout"].as_str().unwrap());
        if answer["status"] != "running" {
            break;
        }
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(output, "error 1\nerror 2\n");
    for filter in ["(", "a{1000}{1000}{1000}"] {
        let rejected = rejection("BashOutput", json!({ "task_id": "bash_1", "filter": filter })).await;
        assert_eq!(rejected, (Code::InvalidArgument, "arguments.filter".to_owned()));
    }
}
