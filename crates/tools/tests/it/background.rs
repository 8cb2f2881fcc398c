use std::{sync::Arc, time::Duration};

use remuda_domain::Code;
use remuda_tools::{BackgroundTasks, MAX_RUNNING};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::bench::{Bench, alive, gone, refused};

impl Bench {
    async fn start(&self, command: &str) -> String {
        let answer =
            self.call("Bash", json!({ "command": command, "run_in_background": true })).await.unwrap();
        assert_eq!(answer["status"], "running");
        answer["task_id"].as_str().unwrap().to_owned()
    }

    async fn look(&self, task: &str) -> Value {
        self.call("BashOutput", json!({ "task_id": task })).await.unwrap()
    }

    /// Looks until the task has ended. Everything it said since the last look, and how it ended.
    async fn end(&self, task: &str) -> (String, Value) {
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut said = String::new();
        loop {
            let answer = self.look(task).await;
            said.push_str(answer["stdout"].as_str().unwrap());
            if answer["status"] != "running" && answer.get("more").is_none() {
                return (said, answer);
            }
            assert!(Instant::now() < deadline, "{answer}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Looks until the task has said something.
    async fn hear(&self, task: &str, text: &str) {
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut said = String::new();
        while !said.contains(text) {
            said.push_str(self.look(task).await["stdout"].as_str().unwrap());
            assert!(Instant::now() < deadline, "{said:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn a_task_goes_on_while_others_work_and_tells_what_is_new() {
    let bench = Bench::new();
    let task = bench
        .start("echo ready; until [ -e go ]; do sleep 0.02; done; echo done; echo bad >&2; exit 3")
        .await;
    assert_eq!(task, "bash_1");
    bench.hear(&task, "ready\n").await;
    let quiet = bench.look(&task).await;
    assert_eq!(quiet, json!({ "task_id": "bash_1", "status": "running", "stdout": "", "stderr": "" }));
    bench.call("Bash", json!({ "command": "touch go" })).await.unwrap();
    let (said, answer) = bench.end(&task).await;
    assert_eq!(said, "done\n");
    assert_eq!((&answer["status"], &answer["exit_code"]), (&json!("exited"), &json!(3)));
    // It stays as it ended, and what was seen is seen.
    let again = bench.look(&task).await;
    assert_eq!(
        (&again["exit_code"], &again["stdout"], &again["stderr"]),
        (&json!(3), &json!(""), &json!(""))
    );
}

#[tokio::test]
async fn a_killed_task_is_gone_with_all_it_started() {
    let bench = Bench::new();
    let task =
        bench.start("trap '' TERM; sleep 1000 & echo $! > child; echo $$ > shell; echo up; wait").await;
    bench.hear(&task, "up").await;
    let (shell, child) = (bench.pid("shell").await, bench.pid("child").await);
    let answer = bench.call("KillBash", json!({ "task_id": task })).await.unwrap();
    assert_eq!(answer["status"], "killed");
    assert!(!alive(shell) && !alive(child));
    // Again is no harm.
    let answer = bench.call("KillBash", json!({ "task_id": task })).await.unwrap();
    assert_eq!(answer["status"], "killed");
    let ended = bench.start("true").await;
    bench.end(&ended).await;
    let answer = bench.call("KillBash", json!({ "task_id": ended })).await.unwrap();
    assert_eq!(answer["status"], "exited");
}

#[tokio::test]
async fn tasks_end_with_their_run() {
    let bench = Bench::new();
    for number in 0..3 {
        bench.start(&format!("echo $$ > pid{number}; exec sleep 1000")).await;
    }
    let pids = [bench.pid("pid0").await, bench.pid("pid1").await, bench.pid("pid2").await];
    assert!(pids.into_iter().all(alive));
    assert_eq!(bench.context.background.shutdown().await, 3);
    assert!(!pids.into_iter().any(alive));
    assert_eq!(bench.look("bash_2").await["status"], "killed");
    let late = bench.call("Bash", json!({ "command": "true", "run_in_background": true })).await.unwrap_err();
    assert_eq!(late.code(), Code::Cancelled);
    assert_eq!(bench.context.background.shutdown().await, 0);
}

#[tokio::test]
async fn a_run_that_is_dropped_leaves_nothing() {
    let mut bench = Bench::new();
    bench.start("echo $$ > pid; exec sleep 1000").await;
    let pid = bench.pid("pid").await;
    bench.context.background = Arc::new(BackgroundTasks::new(Instant::now()));
    gone(pid).await;
}

#[tokio::test]
async fn the_time_limit_is_the_runs() {
    let mut bench = Bench::new();
    bench.context.background = Arc::new(BackgroundTasks::new(Instant::now() + Duration::from_millis(300)));
    let command = json!({ "command": "echo a; sleep 1000", "timeout_ms": 1, "run_in_background": true });
    bench.call("Bash", command).await.unwrap();
    let (said, answer) = bench.end("bash_1").await;
    assert_eq!((said.as_str(), &answer["status"]), ("a\n", &json!("timed_out")));
}

#[tokio::test]
async fn a_cancelled_call_does_not_end_the_task() {
    let mut bench = Bench::new();
    let task = bench.start("echo $$ > pid; exec sleep 1000").await;
    let pid = bench.pid("pid").await;
    bench.context.cancel.cancel();
    bench.context.cancel = tokio_util::sync::CancellationToken::new();
    assert!(alive(pid));
    assert_eq!(bench.look(&task).await["status"], "running");
}

#[tokio::test]
async fn only_so_many_run_and_are_remembered() {
    let bench = Bench::new();
    for _ in 0..MAX_RUNNING {
        bench.start("exec sleep 1000").await;
    }
    let error =
        bench.call("Bash", json!({ "command": "true", "run_in_background": true })).await.unwrap_err();
    assert_eq!(error.code(), Code::Overloaded);
    bench.call("KillBash", json!({ "task_id": "bash_1" })).await.unwrap();
    assert_eq!(bench.start("exec sleep 1000").await, "bash_9");
    for number in 2..=9 {
        bench.call("KillBash", json!({ "task_id": format!("bash_{number}") })).await.unwrap();
    }
    for _ in 0..20 {
        let task = bench.start("true").await;
        bench.end(&task).await;
    }
    let error = bench.call("BashOutput", json!({ "task_id": "bash_1" })).await.unwrap_err();
    assert_eq!((error.code(), error.field()), (Code::TaskNotFound, Some("arguments.task_id")));
    bench.look("bash_29").await;
}

#[tokio::test]
async fn other_runs_have_other_tasks() {
    let (bench, other) = (Bench::new(), Bench::new());
    bench.start("true").await;
    for (tool, task) in
        [("BashOutput", "bash_1"), ("KillBash", "bash_1"), ("BashOutput", ""), ("KillBash", "bash_01")]
    {
        let error = other.call(tool, json!({ "task_id": task })).await.unwrap_err();
        assert_eq!(error.code(), Code::TaskNotFound);
        assert!(error.message().contains("end with their run"), "{}", error.message());
    }
}

#[tokio::test]
async fn what_nobody_looked_at_in_time_is_counted() {
    let bench = Bench::new();
    let task =
        bench.start("yes 0123456 | head -c 3000000; echo; echo the end; echo 1 > ended; sleep 1000").await;
    bench.pid("ended").await;
    // Only the newest half mebibyte is kept, and comes in parts.
    let (mut missed, mut said) = (0, String::new());
    let deadline = Instant::now() + Duration::from_secs(30);
    while !said.ends_with("the end\n") {
        let answer = bench.look(&task).await;
        missed += answer.get("stdout_missed_bytes").and_then(Value::as_u64).unwrap_or(0);
        let news = answer["stdout"].as_str().unwrap();
        assert!(news.len() <= 16_000);
        said.push_str(news);
        assert!(Instant::now() < deadline, "{answer}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(said.len() as u64 + missed, 3_000_009);
    assert!(missed > 2_000_000, "{missed}");
}

#[tokio::test]
async fn a_filter_shows_matching_lines_only() {
    let bench = Bench::new();
    let task = bench.start("echo error 1; echo fine; echo error 2").await;
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut said = String::new();
    loop {
        let answer = bench.call("BashOutput", json!({ "task_id": task, "filter": "^error" })).await.unwrap();
        said.push_str(answer["stdout"].as_str().unwrap());
        if answer["status"] != "running" {
            break;
        }
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(said, "error 1\nerror 2\n");
    for filter in ["(", "a{1000}{1000}{1000}"] {
        let refusal = refused("BashOutput", json!({ "task_id": "bash_1", "filter": filter })).await;
        assert_eq!(refusal, (Code::InvalidArgument, "arguments.filter".to_owned()));
    }
}
