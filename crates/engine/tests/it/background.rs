//! Children whose parents do not wait for them.

use remuda_domain::{EventBody, RunState};

use crate::{
    delegation::{all_runs, children, lab, leader},
    lab::Lab,
    look::verdicts,
};

/// Delegates in the background and says something else meanwhile; tells what it hears.
const PATIENT: &str = "turns:\n  - when: { turn: 1 }\n    say: Go.\n    call: [{ tool: SubAgent, arguments: { prompt: dig, run_in_background: true } }]\n\
                       \x20 - when: { turn: 2 }\n    say: Meanwhile I wait.\n\
                       conversations:\n  - { on: { user_contains: task_notification }, turns: [{ say: \"I heard: {{user}}\" }] }\n";

/// To what is told of children, which is the beginning of a conversation of its own.
const HEARD: &str = "conversations:\n  - { on: { user_contains: task_notification }, turns: [], otherwise: { say: heard } }\n";

/// How often the model was told that a child has ended, and how often readers were.
async fn told(lab: &Lab) -> (usize, usize) {
    let said = lab.transcript().await;
    let notices = said.iter().filter(|line| line.starts_with("user: <task_notification>")).count();
    let events = lab.events().await;
    let ended = events.iter().filter(|event| matches!(event.body, EventBody::SubagentEnded { .. })).count();
    (notices, ended)
}

#[tokio::test]
async fn the_result_of_a_child_in_the_background_reaches_its_parent() {
    let turns = "turns:\n  - when: { turn: 1 }\n    say: Go.\n    call: [{ tool: SubAgent, arguments: { prompt: dig, run_in_background: true } }]\n\
                 \x20 - when: { turn: 2 }\n    say: Meanwhile I wait.\n\
                 conversations:\n  - { on: { user_contains: task_notification }, turns: [{ say: \"I heard: {{user}}\" }] }\n";
    let lab = lab("subagents: [helper]", turns).await;
    lab.write_other("helper", "mode: subagent", "otherwise: { say: gold }");
    let id = lab.submit("please").await;
    lab.drive().await;
    let run = lab.run(id).await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    assert!(run.answer.as_ref().unwrap().contains("gold"), "{:?}", run.answer);
    let told = lab.transcript().await;
    assert!(told.iter().any(|line| line.contains("Meanwhile I wait.")), "{told:?}");
    assert_eq!(
        told.iter().filter(|line| line.contains("<task_notification>")).count(),
        2,
        "said once, and quoted once: {told:?}"
    );
    let ended = lab.events().await.iter().filter(|event| event.body.name() == "subagent.ended").count();
    assert_eq!(ended, 1);
}

/// Those that have ended and were not heard of yet do not count as being at work.
#[tokio::test]
async fn more_than_may_work_at_once_wait_for_their_turn() {
    for (limit, width) in [(4, 5), (1, 3)] {
        let policy = format!("subagents: [helper]\npolicy: {{ max_concurrent_subagents: {limit} }}");
        let turns = leader(width, "helper", ", run_in_background: true");
        let lab = lab(&policy, &format!("{turns}\n{HEARD}")).await;
        lab.write_other("helper", "mode: subagent", "otherwise: { say: ok }");
        let id = lab.submit("please").await;
        let turns = lab.drive().await;
        let run = lab.run(id).await;
        assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
        assert_eq!(children(&lab, lab.session).await.len(), width);
        assert_eq!(told(&lab).await, (width, width));
        assert!(turns < 4 * width, "{turns} turns for {width} children");
    }
}

#[tokio::test]
async fn one_that_is_waited_for_takes_the_place_of_one_that_is_not() {
    let turns = "turns:\n  - when: { turn: 1 }\n    call:\n      - { tool: SubAgent, arguments: { prompt: dig, run_in_background: true } }\n      - { tool: SubAgent, arguments: { prompt: dig } }\notherwise: { say: done }";
    let lab =
        lab("subagents: [helper]\npolicy: { max_concurrent_subagents: 1 }", &format!("{turns}\n{HEARD}"))
            .await;
    lab.write_other("helper", "mode: subagent", "otherwise: { say: ok }");
    let id = lab.submit("please").await;
    let turns = lab.drive().await;
    let run = lab.run(id).await;
    assert_eq!((run.state, verdicts(&run)), (RunState::Completed, vec!["completed".to_owned(); 2]));
    assert_eq!(told(&lab).await, (1, 2), "of the one that was waited for there is a result");
    assert!(turns < 8, "{turns} turns");
    lab.assert_complete().await;
}

#[tokio::test]
async fn dying_after_any_commit_tells_of_a_child_once() {
    for commit in 1..=8 {
        let lab = lab("subagents: [helper]", PATIENT).await;
        lab.write_other("helper", "mode: subagent", "otherwise: { say: gold }");
        let id = lab.submit("please").await;
        let mut left = commit;
        // The parent's commits are counted over its turns; the child's are not.
        while left > 0 && lab.run(id).await.state != RunState::Completed {
            let Some(next) = lab.store.runnable_sessions(None, 10).await.unwrap().pop() else { break };
            if next.session == lab.session {
                lab.die_or_leave_after(left).await;
                left = 0;
            } else {
                let grant = lab.claim_session(next.session).await;
                let execution = lab.engine.execute(&grant, &remuda_engine::RunControl::default()).await;
                lab.leave(&grant, execution).await;
            }
        }
        lab.drive().await;
        let run = lab.run(id).await;
        assert_eq!(run.state, RunState::Completed, "after commit {commit}: {:?}", run.failure);
        assert!(run.answer.as_ref().unwrap().contains("gold"), "after commit {commit}: {:?}", run.answer);
        assert_eq!(told(&lab).await, (1, 1), "after commit {commit}: {:?}", lab.transcript().await);
        assert_eq!(all_runs(&lab).await.len(), 2, "after commit {commit}");
        lab.assert_complete().await;
    }
}

/// The worker dies while it asks the question that tells of a child.
#[tokio::test]
async fn a_question_that_is_asked_again_tells_the_same() {
    for commit in 1..=3 {
        let lab = lab("subagents: [helper]", PATIENT).await;
        lab.write_other("helper", "mode: subagent", "otherwise: { say: gold }");
        let id = lab.submit("please").await;
        let first = lab.claim().await;
        let execution = lab.engine.execute(&first, &remuda_engine::RunControl::default()).await;
        lab.leave(&first, execution).await;
        let child = children(&lab, lab.session).await.remove(0).id;
        let grant = lab.claim_session(child).await;
        let execution = lab.engine.execute(&grant, &remuda_engine::RunControl::default()).await;
        lab.leave(&grant, execution).await;
        lab.die_or_leave_after(commit).await;
        lab.drive().await;
        let run = lab.run(id).await;
        assert_eq!(run.state, RunState::Completed, "after commit {commit}: {:?}", run.failure);
        assert_eq!(told(&lab).await, (1, 1), "after commit {commit}: {:?}", lab.transcript().await);
        let reported: Vec<usize> =
            lab.requests(id).await.iter().map(|request| request.reported.len()).collect();
        assert_eq!(reported.iter().sum::<usize>(), 1, "after commit {commit}: {reported:?}");
    }
}

/// An agent without steps hears of its children all the same, and its answer is the last word.
#[tokio::test]
async fn children_of_an_agent_without_steps_are_heard() {
    let lab = lab("subagents: [helper]\npolicy: { max_steps: 2 }", PATIENT).await;
    lab.write_other("helper", "mode: subagent", "turns:\n  - fail: { status: 400, message: broken }\n");
    let id = lab.submit("please").await;
    lab.drive().await;
    let run = lab.run(id).await;
    assert_eq!(run.state, RunState::Completed, "{:?}", run.failure);
    assert!(run.answer.as_ref().unwrap().contains("broken"), "a failure is told too: {:?}", run.answer);
    assert_eq!(told(&lab).await, (1, 1));
}

#[tokio::test]
async fn a_long_answer_is_kept_in_a_file() {
    let lab = lab("subagents: [helper]", PATIENT).await;
    lab.write_other(
        "helper",
        "mode: subagent",
        &format!("otherwise: {{ say: \"{}\" }}", "gold ".repeat(20_000)),
    );
    let id = lab.submit("please").await;
    lab.drive().await;
    assert_eq!(lab.run(id).await.state, RunState::Completed);
    let said = lab.transcript().await;
    let notice = said.iter().find(|line| line.starts_with("user: <task_notification>")).unwrap();
    assert!(notice.len() < 60_000 && notice.contains("all of it is in"), "{} characters", notice.len());
}
