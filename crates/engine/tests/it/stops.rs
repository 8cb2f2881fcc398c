//! Runs that are stopped: by someone, or by the time.

use std::time::Duration;

use remuda_domain::{Run, RunId, RunState, message::Role, tool::CallStatus};
use remuda_engine::RunControl;
use remuda_testkit::{process, wait_for};

use crate::{
    lab::{Lab, PATIENCE},
    look::{code, verdicts},
};

const SPEECH: &str = r#"
pace: 5ms
conversations:
  - on: { user_contains: next }
    turns: [{ say: I go on. }]
turns:
  - think: Let me see.
    say: "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty and so on for a long time until somebody has heard enough of it"
"#;

/// Says nothing for as long as a test could last.
const SILENCE: &str = r#"
conversations:
  - on: { user_contains: next }
    turns: [{ say: I go on. }]
turns:
  - delay: 10m
    say: too late
"#;

const WORK: &str = r#"
conversations:
  - on: { user_contains: next }
    turns: [{ say: I go on. }]
turns:
  - say: I work.
    call:
      - { tool: Bash, arguments: { command: "echo $$ > pid; sleep 300" } }
      - { tool: Bash, arguments: { command: echo x > never } }
  - say: done
"#;

/// Submits, waits for `moment` of its execution, and cancels it as a worker is told to.
async fn cancel_at(lab: &Lab, moment: impl Future<Output = ()>) -> Run {
    let id = lab.submit("go").await;
    let control = RunControl::default();
    let cancel = async || {
        lab.store.request_cancel(lab.tenant, id, "enough of it").await.unwrap();
        control.cancel.cancel();
    };
    let (grant, execution) = lab.execute_until(&control, moment, cancel).await;
    lab.finish(&grant, execution).await
}

async fn goes_on(lab: &Lab) {
    let next = lab.ask("next").await;
    assert_eq!(
        (next.state, next.answer.as_deref()),
        (RunState::Completed, Some("I go on.")),
        "{:?}",
        next.failure
    );
    lab.assert_complete().await;
}

/// The command is dead, if it came to its first line at all.
fn assert_gone(lab: &Lab) {
    if let Ok(pid) = lab.read("pid").trim().parse() {
        assert_eq!(process(pid), None);
    }
}

async fn one_question(lab: &Lab) {
    wait_for("the question", PATIENCE, async || lab.questions() == 1).await;
}

#[tokio::test]
async fn who_is_cut_short_has_said_what_was_heard() {
    let lab = Lab::new(SPEECH).await;
    let mut deltas = lab.deltas().await;
    let mut heard = String::new();
    let moment = async {
        while !heard.contains("three") {
            let pieces = deltas.next().await.unwrap();
            let texts = pieces.iter().filter(|delta| delta.kind == remuda_domain::event::DeltaKind::Text);
            texts.for_each(|delta| heard.push_str(&delta.text));
        }
    };
    let run = cancel_at(&lab, moment).await;
    assert_eq!((run.state, code(&run)), (RunState::Cancelled, "cancelled"));
    assert_eq!(run.failure.unwrap().message, "enough of it");
    let messages = lab.messages().await;
    let last = messages.last().unwrap();
    assert_eq!((messages.len(), last.role), (2, Role::Assistant));
    let said = last.text();
    assert!(said.starts_with(&heard) && !said.contains("enough of it"), "{said}");
    let (request, outcome) = lab.model_steps(run.id).await.remove(0);
    let outcome = outcome.unwrap();
    assert_eq!((request.message, outcome.status), (last.id, CallStatus::Cancelled));
    assert_eq!(remuda_domain::message::text_of(&outcome.parts), said);
    let names = lab.event_names(run.id).await;
    let ends = ["message.completed", "run.stopped", "run.cancelled"];
    assert!(names.ends_with(&ends), "{names:?}");
    goes_on(&lab).await;
    assert_eq!(lab.questions(), 2);
}

#[tokio::test]
async fn who_said_nothing_leaves_nothing() {
    let lab = Lab::new(SILENCE).await;
    let run = cancel_at(&lab, one_question(&lab)).await;
    assert_eq!(run.state, RunState::Cancelled);
    assert_eq!(lab.transcript().await, ["user: go"]);
    goes_on(&lab).await;
}

#[tokio::test]
async fn a_cancelled_call_leaves_no_process() {
    for parallel in [false, true] {
        let lab = Lab::new(WORK).await;
        lab.write_agent(&format!("policy: {{ parallel_tool_calls: {parallel} }}"));
        let moment = async {
            wait_for("the command", PATIENCE, async || {
                lab.read("pid").ends_with('\n') && (!parallel || !lab.read("never").is_empty())
            })
            .await;
        };
        let run = cancel_at(&lab, moment).await;
        assert_eq!(run.state, RunState::Cancelled);
        let pid = lab.read("pid").trim().parse().unwrap();
        assert_eq!(process(pid), None);
        assert_eq!(verdicts(&run)[0], "cancelled cancelled");
        if !parallel {
            assert_eq!(verdicts(&run)[1], "cancelled", "it was not begun");
            assert_eq!(lab.read("never"), "");
        }
        assert!(lab.steps(run.id).await.iter().all(|step| step.is_finished()));
        lab.assert_complete().await;
        goes_on(&lab).await;
    }
}

#[tokio::test]
async fn a_run_ends_with_its_time() {
    // Far less than what the model or the command would take, and the agent's own limit where it is the shorter one.
    for (scenario, run_time, agents) in [
        (SILENCE, Duration::from_millis(400), None),
        (WORK, Duration::from_millis(1500), None),
        (SILENCE, Duration::from_secs(60), Some("0.4")),
        (WORK, Duration::from_secs(60), Some("1.5")),
        (SILENCE, Duration::from_millis(400), Some("50")),
    ] {
        let lab = Lab::new(scenario).await;
        let limit = agents.map_or_else(String::new, |agents| format!(", run_timeout_seconds: {agents}"));
        lab.write_agent(&format!("policy: {{ parallel_tool_calls: false{limit} }}"));
        let id: RunId = lab.submit_for(run_time, "go").await;
        let run = lab.execute().await;
        assert_eq!((run.id, run.state, code(&run)), (id, RunState::TimedOut, "run_timed_out"));
        // It says which limit that was.
        let limit = agents.map_or(run_time, |agents| Duration::from_secs_f64(agents.parse().unwrap()));
        let message = run.failure.unwrap().message;
        assert!(message.contains(&format!("{:?}", limit.min(run_time))), "{message}");
        if scenario == WORK {
            assert_eq!(run.outcomes.len(), 2);
            assert_gone(&lab);
        }
        assert!(lab.steps(id).await.iter().all(|step| step.is_finished()));
        lab.assert_complete().await;
        goes_on(&lab).await;
    }
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_a_result() {
    let lab = Lab::new(WORK).await;
    lab.write_agent("policy: { parallel_tool_calls: false, tool_timeout_seconds: 2 }");
    let run = lab.ask("go").await;
    assert_eq!((run.state, run.answer.as_deref()), (RunState::Completed, Some("done")), "{:?}", run.failure);
    assert_eq!(verdicts(&run), ["timed_out tool_timed_out", "completed"]);
    assert_gone(&lab);
}

#[tokio::test]
async fn an_abandoned_run_writes_nothing_more() {
    for before in [true, false] {
        let lab = Lab::new(SILENCE).await;
        let id = lab.submit("go").await;
        let control = RunControl::default();
        let execution = if before {
            control.abandon.cancel();
            let grant = lab.claim().await;
            lab.engine.execute(&grant, &control).await
        } else {
            lab.execute_until(&control, one_question(&lab), async || control.abandon.cancel()).await.1
        };
        assert!(matches!(execution, remuda_engine::Execution::Abandoned), "{execution:?}");
        assert!(lab.steps(id).await.iter().all(|step| !step.is_finished()));
    }
}
