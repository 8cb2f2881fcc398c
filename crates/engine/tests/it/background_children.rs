//! Background children, which their parents do not wait for.

use remuda_domain::{EventBody, RunState};

use crate::{
    delegation::{all_runs, children, harness, leader},
    harness::Harness,
    inspect::statuses_and_codes,
};

/// Delegates in the background, responds meanwhile, and repeats the notice that it gets.
const BACKGROUND: &str = "turns:\n  - when: { turn: 1 }\n    say: Go.\n    call: [{ tool: SubAgent, arguments: { prompt: dig, run_in_background: true } }]\n\
                       \x20 - when: { turn: 2 }\n    say: Meanwhile I wait.\n\
                       conversations:\n  - { on: { user_contains: task_notification }, turns: [{ say: \"I heard: {{user}}\" }] }\n";

/// Responds to notices, each of which begins a new exchange.
const NOTICE_RESPONSE: &str = "conversations:\n  - { on: { user_contains: task_notification }, turns: [], otherwise: { say: heard } }\n";

/// The number of notices for the model, and of events, about ended children.
async fn report_counts(harness: &Harness) -> (usize, usize) {
    let transcript = harness.transcript().await;
    let notices = transcript.iter().filter(|line| line.starts_with("user: <task_notification>")).count();
    let events = harness.events().await;
    let ended = events.iter().filter(|event| matches!(event.body, EventBody::SubagentEnded { .. })).count();
    (notices, ended)
}

#[tokio::test]
async fn result_of_a_background_child_reaches_its_parent() {
    let turns = "turns:\n  - when: { turn: 1 }\n    say: Go.\n    call: [{ tool: SubAgent, arguments: { prompt: dig, run_in_background: true } }]\n\
                 \x20 - when: { turn: 2 }\n    say: Meanwhile I wait.\n\
                 conversations:\n  - { on: { user_contains: task_notification }, turns: [{ say: \"I heard: {{user}}\" }] }\n";
    let harness = harness("subagents: [helper]", turns).await;
    harness.write_agent_with_model("helper", "mode: subagent", "otherwise: { say: gold }");
    let id = harness.submit("please").await;
    harness.run_all().await;
    let run = harness.run(id).await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    assert!(run.answer.as_ref().unwrap().contains("gold"), "{:?}", run.answer);
    let transcript = harness.transcript().await;
    assert!(transcript.iter().any(|line| line.contains("Meanwhile I wait.")), "{transcript:?}");
    assert_eq!(
        transcript.iter().filter(|line| line.contains("<task_notification>")).count(),
        2,
        "said once, and quoted once: {transcript:?}"
    );
    let ended = harness.events().await.iter().filter(|event| event.body.name() == "subagent.ended").count();
    assert_eq!(ended, 1);
}

/// Children that have ended but were not reported yet do not count as running.
#[tokio::test]
async fn children_above_the_concurrency_limit_wait() {
    for (limit, width) in [(4, 5), (1, 3)] {
        let policy = format!("subagents: [helper]\npolicy: {{ max_concurrent_subagents: {limit} }}");
        let turns = leader(width, "helper", ", run_in_background: true");
        let harness = harness(&policy, &format!("{turns}\n{NOTICE_RESPONSE}")).await;
        harness.write_agent_with_model("helper", "mode: subagent", "otherwise: { say: ok }");
        let id = harness.submit("please").await;
        let turns = harness.run_all().await;
        let run = harness.run(id).await;
        assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
        assert_eq!(children(&harness, harness.session).await.len(), width);
        assert_eq!(report_counts(&harness).await, (width, width));
        assert!(turns < 4 * width, "{turns} turns for {width} children");
    }
}

#[tokio::test]
async fn foreground_child_starts_when_a_background_child_has_ended() {
    let turns = "turns:\n  - when: { turn: 1 }\n    call:\n      - { tool: SubAgent, arguments: { prompt: dig, run_in_background: true } }\n      - { tool: SubAgent, arguments: { prompt: dig } }\notherwise: { say: done }";
    let harness = harness(
        "subagents: [helper]\npolicy: { max_concurrent_subagents: 1 }",
        &format!("{turns}\n{NOTICE_RESPONSE}"),
    )
    .await;
    harness.write_agent_with_model("helper", "mode: subagent", "otherwise: { say: ok }");
    let id = harness.submit("please").await;
    let turns = harness.run_all().await;
    let run = harness.run(id).await;
    assert_eq!((run.state, statuses_and_codes(&run)), (RunState::Completed, vec!["completed".to_owned(); 2]));
    assert_eq!(report_counts(&harness).await, (1, 2), "of the one that was waited for there is a result");
    assert!(turns < 8, "{turns} turns");
    harness.assert_results_complete().await;
}

#[tokio::test]
async fn crash_after_any_commit_reports_a_child_once() {
    for commit in 1..=8 {
        let harness = harness("subagents: [helper]", BACKGROUND).await;
        harness.write_agent_with_model("helper", "mode: subagent", "otherwise: { say: gold }");
        let id = harness.submit("please").await;
        let mut remaining = commit;
        // The parent's commits are counted over its attempts; the child's are not.
        while remaining > 0 && harness.run(id).await.state != RunState::Completed {
            let Some(next) = harness.store.runnable_sessions(None, 10).await.unwrap().pop() else { break };
            if next.session == harness.session {
                harness.kill_or_commit_after(remaining).await;
                remaining = 0;
            } else {
                let grant = harness.claim_session(next.session).await;
                let execution = harness.engine.execute(&grant, &remuda_engine::RunControl::default()).await;
                harness.commit_execution(&grant, execution).await;
            }
        }
        harness.run_all().await;
        let run = harness.run(id).await;
        assert_eq!(run.state, RunState::Completed, "after commit {commit}: {:?}", run.failure);
        assert!(run.answer.as_ref().unwrap().contains("gold"), "after commit {commit}: {:?}", run.answer);
        assert_eq!(
            report_counts(&harness).await,
            (1, 1),
            "after commit {commit}: {:?}",
            harness.transcript().await
        );
        assert_eq!(all_runs(&harness).await.len(), 2, "after commit {commit}");
        harness.assert_results_complete().await;
    }
}

/// The worker dies during the model call that reports a child.
#[tokio::test]
async fn repeated_model_call_reports_the_same_children() {
    for commit in 1..=3 {
        let harness = harness("subagents: [helper]", BACKGROUND).await;
        harness.write_agent_with_model("helper", "mode: subagent", "otherwise: { say: gold }");
        let id = harness.submit("please").await;
        let first = harness.claim().await;
        let execution = harness.engine.execute(&first, &remuda_engine::RunControl::default()).await;
        harness.commit_execution(&first, execution).await;
        let child = children(&harness, harness.session).await.remove(0).id;
        let grant = harness.claim_session(child).await;
        let execution = harness.engine.execute(&grant, &remuda_engine::RunControl::default()).await;
        harness.commit_execution(&grant, execution).await;
        harness.kill_or_commit_after(commit).await;
        harness.run_all().await;
        let run = harness.run(id).await;
        assert_eq!(run.state, RunState::Completed, "after commit {commit}: {:?}", run.failure);
        assert_eq!(
            report_counts(&harness).await,
            (1, 1),
            "after commit {commit}: {:?}",
            harness.transcript().await
        );
        let reported: Vec<usize> =
            harness.requests(id).await.iter().map(|request| request.reported.len()).collect();
        assert_eq!(reported.iter().sum::<usize>(), 1, "after commit {commit}: {reported:?}");
    }
}

/// An agent without steps left still gets the reports, and its response is the final one.
#[tokio::test]
async fn children_of_an_agent_without_steps_are_reported() {
    let harness = harness("subagents: [helper]\npolicy: { max_steps: 2 }", BACKGROUND).await;
    harness.write_agent_with_model(
        "helper",
        "mode: subagent",
        "turns:\n  - fail: { status: 400, message: broken }\n",
    );
    let id = harness.submit("please").await;
    harness.run_all().await;
    let run = harness.run(id).await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    assert!(
        run.answer.as_ref().unwrap().contains("broken"),
        "a failure is reported as well: {:?}",
        run.answer
    );
    assert_eq!(report_counts(&harness).await, (1, 1));
}

#[tokio::test]
async fn long_result_of_a_child_is_stored_in_a_file() {
    let harness = harness("subagents: [helper]", BACKGROUND).await;
    harness.write_agent_with_model(
        "helper",
        "mode: subagent",
        &format!("otherwise: {{ say: \"{}\" }}", "gold ".repeat(20_000)),
    );
    let id = harness.submit("please").await;
    harness.run_all().await;
    assert_eq!(harness.run(id).await.state, RunState::Completed);
    let transcript = harness.transcript().await;
    let notice = transcript.iter().find(|line| line.starts_with("user: <task_notification>")).unwrap();
    assert!(notice.len() < 60_000 && notice.contains("all of it is in"), "{} characters", notice.len());
}
