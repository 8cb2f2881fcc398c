//! Runs with budgets.

use remuda_domain::{RunState, budget::Limit, run::ParkReason};
use remuda_engine::RunControl;
use remuda_store::BudgetTarget;
use remuda_testkit::wait_for;

use crate::harness::{Harness, TEST_TIMEOUT};

const TURNS: &str = r#"
turns:
  - { when: { turn: 1 }, say: One., usage: { input: 10000, output: 5000 }, call: [{ tool: Bash, arguments: { command: "echo one >> made" } }] }
  - { when: { turn: 2 }, say: Two., usage: { input: 10000, output: 5000 }, call: [{ tool: Bash, arguments: { command: "echo two >> made" } }] }
otherwise: { say: Three., usage: { input: 10000, output: 5000 } }
"#;

fn tokens(tokens: u64) -> Limit {
    Limit { tokens: Some(tokens), micros: None }
}

async fn harness(frontmatter: &str) -> Harness {
    let harness = Harness::new("turns: []").await;
    harness.write_agent_with_model("payer", &format!("max_tokens: 500\n{frontmatter}"), TURNS);
    harness.write(".openharness/settings.yaml", "default_agent: payer\n");
    harness
}

#[tokio::test]
async fn run_parks_when_its_budget_is_exhausted_and_resumes_when_it_is_raised() {
    let mut harness = harness("").await;
    harness.budget = Some(tokens(31_000));
    let id = harness.submit("please").await;
    harness.run_all().await;
    let run = harness.run(id).await;
    assert_eq!(
        (run.state, run.parked.map(|parked| parked.reason)),
        (RunState::Parked, Some(ParkReason::Budget))
    );
    assert_eq!(harness.read("made"), "one\ntwo\n");
    let budget = run.budget.unwrap();
    assert_eq!((budget.spent.tokens, budget.reserved.tokens), (30_000, 0));
    assert_eq!(run.spent.model_calls, 2);

    let little =
        harness.store.set_budget(harness.tenant, BudgetTarget::Run(id), tokens(31_001)).await.unwrap();
    assert!(little.resumed.is_empty());
    assert_eq!(harness.run_all().await, 0);
    let enough =
        harness.store.set_budget(harness.tenant, BudgetTarget::Run(id), tokens(200_000)).await.unwrap();
    assert_eq!(enough.resumed, [id]);
    harness.run_all().await;
    let run = harness.run(id).await;
    assert_eq!(
        (run.state, run.answer.as_deref()),
        (RunState::Completed, Some("Three.")),
        "{:?}",
        run.failure
    );
    assert_eq!(run.budget.unwrap().spent.tokens, 45_000);
    // One dollar per million input tokens, two for output.
    assert_eq!(run.spent.micros, 3 * (10_000 + 2 * 5_000));
    assert_eq!(harness.read("made"), "one\ntwo\n", "nothing was done twice");
}

#[tokio::test]
async fn children_spend_from_their_parents_budget() {
    let mut harness = harness("").await;
    let lead = "turns:\n  - { when: { turn: 1 }, usage: { input: 100, output: 100 }, call: [{ tool: SubAgent, arguments: { subagent_type: payer, prompt: pay } }] }\n\
                otherwise: { say: done, usage: { input: 100, output: 100 } }";
    harness.write_agent_with_model("lead", "max_tokens: 100\nsubagents: [payer]", lead);
    harness.write(
        ".openharness/agents/payer.md",
        "---\nmode: all\nmodel: workspace/payer\nmax_tokens: 500\n---\nYou are payer.\n",
    );
    harness.write(".openharness/settings.yaml", "default_agent: lead\n");
    harness.budget = Some(tokens(31_200));
    let id = harness.submit("please").await;
    harness.run_all().await;
    let run = harness.run(id).await;
    assert_eq!(run.parked.map(|parked| parked.reason), Some(ParkReason::Children));
    assert_eq!(run.budget.unwrap().spent.tokens, 200 + 30_000, "the child waits for its third question");
    harness.store.set_budget(harness.tenant, BudgetTarget::Run(id), tokens(200_000)).await.unwrap();
    harness.run_all().await;
    let run = harness.run(id).await;
    assert_eq!((run.state, run.answer.as_deref()), (RunState::Completed, Some("done")), "{:?}", run.failure);
    let (own, tree) = harness.store.run_totals(harness.tenant, id).await.unwrap();
    assert_eq!((own.model_calls, tree.model_calls), (2, 5));
    assert_eq!(run.budget.unwrap().spent.tokens, 400 + 45_000);
}

#[tokio::test]
async fn budget_in_money_requires_a_model_price() {
    let mut harness = Harness::new("otherwise: { say: hello }").await;
    harness.budget = Some(Limit { tokens: None, micros: Some(1_000_000) });
    let run = harness.run_message("please").await;
    assert_eq!(run.state, RunState::Failed);
    assert_eq!(run.failure.unwrap().code, "model_unpriced");
    assert_eq!(harness.model_call_count(), 0);
}

/// A budget that is set while a run executes limits it, although it began without one.
#[tokio::test]
async fn budget_set_during_a_run_limits_it() {
    let harness = harness("").await;
    harness.write(".openharness/payer.yaml", "turns:\n  - { when: { turn: 1 }, usage: { input: 10000, output: 5000 }, call: [{ tool: Bash, arguments: { command: \"touch begun; until [ -e go ]; do sleep 0.01; done\" } }] }\notherwise: { say: Two., usage: { input: 1, output: 1 }, call: [{ tool: Bash, arguments: { command: \"echo two >> made\" } }] }");
    let id = harness.submit("please").await;
    let begun = wait_for("the call", TEST_TIMEOUT, || {
        std::future::ready(harness.directory.path().join("begun").try_exists().unwrap())
    });
    let limit = async || {
        harness.store.set_budget(harness.tenant, BudgetTarget::Run(id), tokens(15_100)).await.unwrap();
        harness.write("go", "");
    };
    let (grant, execution) = harness.execute_until(&RunControl::default(), begun, limit).await;
    harness.commit_execution(&grant, execution).await;
    harness.run_all().await;
    // The second model call happened before the budget was read; the next one waits.
    let run = harness.run(id).await;
    assert_eq!(run.parked.map(|parked| parked.reason), Some(ParkReason::Budget), "{:?}", run.failure);
    assert!(run.spent.model_calls <= 2, "{:?}", run.spent);
}

/// Without reported usage, the budget still limits the run.
#[tokio::test]
async fn missing_usage_is_estimated() {
    let mut harness = harness("").await;
    harness.write(".openharness/payer.yaml", "otherwise: { say: Again., usage: { input: 0, output: 0 }, call: [{ tool: Bash, arguments: { command: \"echo {{turn}}\" } }] }");
    harness.budget = Some(tokens(4_000));
    let id = harness.submit("please").await;
    harness.run_all().await;
    let run = harness.run(id).await;
    assert_eq!(run.parked.map(|parked| parked.reason), Some(ParkReason::Budget), "{:?}", run.failure);
    let spent = run.budget.unwrap().spent.tokens;
    assert!(spent > 1000 && spent == run.spent.usage.input_tokens + run.spent.usage.output_tokens, "{spent}");
}

/// With a budget, the response is limited to the reservation.
#[tokio::test]
async fn responses_are_limited_to_their_reservation() {
    let mut harness = Harness::new("otherwise: { say: hello }").await;
    let free = harness.run_message("please").await;
    assert_eq!(harness.requests(free.id).await[0].parameters.max_tokens, None);
    harness.budget = Some(tokens(100_000));
    let limited = harness.run_message("please").await;
    assert!(harness.requests(limited.id).await[0].parameters.max_tokens.is_some());
}
