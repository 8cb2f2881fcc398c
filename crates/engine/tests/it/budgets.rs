//! Runs that may spend only so much.

use remuda_domain::{RunState, budget::Limit, run::ParkReason};
use remuda_engine::RunControl;
use remuda_store::BudgetOf;
use remuda_testkit::wait_for;

use crate::lab::{Lab, PATIENCE};

const TURNS: &str = r#"
turns:
  - { when: { turn: 1 }, say: One., usage: { input: 10000, output: 5000 }, call: [{ tool: Bash, arguments: { command: "echo one >> made" } }] }
  - { when: { turn: 2 }, say: Two., usage: { input: 10000, output: 5000 }, call: [{ tool: Bash, arguments: { command: "echo two >> made" } }] }
otherwise: { say: Three., usage: { input: 10000, output: 5000 } }
"#;

fn tokens(tokens: u64) -> Limit {
    Limit { tokens: Some(tokens), micros: None }
}

async fn lab(frontmatter: &str) -> Lab {
    let lab = Lab::new("turns: []").await;
    lab.write_other("payer", &format!("max_tokens: 500\n{frontmatter}"), TURNS);
    lab.write(".openharness/settings.yaml", "default_agent: payer\n");
    lab
}

#[tokio::test]
async fn a_run_waits_when_its_budget_is_used_up_and_goes_on_when_it_is_raised() {
    let mut lab = lab("").await;
    lab.budget = Some(tokens(31_000));
    let id = lab.submit("please").await;
    lab.drive().await;
    let run = lab.run(id).await;
    assert_eq!(
        (run.state, run.parked.map(|parked| parked.reason)),
        (RunState::Parked, Some(ParkReason::Budget))
    );
    assert_eq!(lab.read("made"), "one\ntwo\n");
    let budget = run.budget.unwrap();
    assert_eq!((budget.spent.tokens, budget.reserved.tokens), (30_000, 0));
    assert_eq!(run.spent.model_calls, 2);

    let little = lab.store.set_budget(lab.tenant, BudgetOf::Run(id), tokens(31_001)).await.unwrap();
    assert!(little.resumed.is_empty());
    assert_eq!(lab.drive().await, 0);
    let enough = lab.store.set_budget(lab.tenant, BudgetOf::Run(id), tokens(200_000)).await.unwrap();
    assert_eq!(enough.resumed, [id]);
    lab.drive().await;
    let run = lab.run(id).await;
    assert_eq!(
        (run.state, run.answer.as_deref()),
        (RunState::Completed, Some("Three.")),
        "{:?}",
        run.failure
    );
    assert_eq!(run.budget.unwrap().spent.tokens, 45_000);
    // A dollar for a million tokens of input, two for output.
    assert_eq!(run.spent.micros, 3 * (10_000 + 2 * 5_000));
    assert_eq!(lab.read("made"), "one\ntwo\n", "nothing was done twice");
}

#[tokio::test]
async fn children_spend_from_the_same_purse() {
    let mut lab = lab("").await;
    let lead = "turns:\n  - { when: { turn: 1 }, usage: { input: 100, output: 100 }, call: [{ tool: SubAgent, arguments: { subagent_type: payer, prompt: pay } }] }\n\
                otherwise: { say: done, usage: { input: 100, output: 100 } }";
    lab.write_other("lead", "max_tokens: 100\nsubagents: [payer]", lead);
    lab.write(
        ".openharness/agents/payer.md",
        "---\nmode: all\nmodel: workspace/payer\nmax_tokens: 500\n---\nYou are payer.\n",
    );
    lab.write(".openharness/settings.yaml", "default_agent: lead\n");
    lab.budget = Some(tokens(31_200));
    let id = lab.submit("please").await;
    lab.drive().await;
    let run = lab.run(id).await;
    assert_eq!(run.parked.map(|parked| parked.reason), Some(ParkReason::Children));
    assert_eq!(run.budget.unwrap().spent.tokens, 200 + 30_000, "the child waits for its third question");
    lab.store.set_budget(lab.tenant, BudgetOf::Run(id), tokens(200_000)).await.unwrap();
    lab.drive().await;
    let run = lab.run(id).await;
    assert_eq!((run.state, run.answer.as_deref()), (RunState::Completed, Some("done")), "{:?}", run.failure);
    let (own, tree) = lab.store.run_totals(lab.tenant, id).await.unwrap();
    assert_eq!((own.model_calls, tree.model_calls), (2, 5));
    assert_eq!(run.budget.unwrap().spent.tokens, 400 + 45_000);
}

#[tokio::test]
async fn a_budget_in_money_needs_a_price() {
    let mut lab = Lab::new("otherwise: { say: hello }").await;
    lab.budget = Some(Limit { tokens: None, micros: Some(1_000_000) });
    let run = lab.ask("please").await;
    assert_eq!(run.state, RunState::Failed);
    assert_eq!(run.failure.unwrap().code, "model_unpriced");
    assert_eq!(lab.questions(), 0);
}

/// Whoever sees a run spend too much can stop it with a budget, although it began without one.
#[tokio::test]
async fn a_budget_that_is_made_while_a_run_works_holds() {
    let lab = lab("").await;
    lab.write(".openharness/payer.yaml", "turns:\n  - { when: { turn: 1 }, usage: { input: 10000, output: 5000 }, call: [{ tool: Bash, arguments: { command: \"touch begun; until [ -e go ]; do sleep 0.01; done\" } }] }\notherwise: { say: Two., usage: { input: 1, output: 1 }, call: [{ tool: Bash, arguments: { command: \"echo two >> made\" } }] }");
    let id = lab.submit("please").await;
    let begun = wait_for("the call", PATIENCE, || {
        std::future::ready(lab.directory.path().join("begun").try_exists().unwrap())
    });
    let limit = async || {
        lab.store.set_budget(lab.tenant, BudgetOf::Run(id), tokens(15_100)).await.unwrap();
        lab.write("go", "");
    };
    let (grant, execution) = lab.execute_until(&RunControl::default(), begun, limit).await;
    lab.leave(&grant, execution).await;
    lab.drive().await;
    // The question that follows the first answer was answered before anyone knew; the next one waits.
    let run = lab.run(id).await;
    assert_eq!(run.parked.map(|parked| parked.reason), Some(ParkReason::Budget), "{:?}", run.failure);
    assert!(run.spent.model_calls <= 2, "{:?}", run.spent);
}

/// A provider that does not count is no reason to spend without end.
#[tokio::test]
async fn what_a_provider_does_not_count_is_estimated() {
    let mut lab = lab("").await;
    lab.write(".openharness/payer.yaml", "otherwise: { say: Again., usage: { input: 0, output: 0 }, call: [{ tool: Bash, arguments: { command: \"echo {{turn}}\" } }] }");
    lab.budget = Some(tokens(4_000));
    let id = lab.submit("please").await;
    lab.drive().await;
    let run = lab.run(id).await;
    assert_eq!(run.parked.map(|parked| parked.reason), Some(ParkReason::Budget), "{:?}", run.failure);
    let spent = run.budget.unwrap().spent.tokens;
    assert!(spent > 1000 && spent == run.spent.usage.input_tokens + run.spent.usage.output_tokens, "{spent}");
}

/// Where something limits a run, an answer may be no longer than what was set aside for it.
#[tokio::test]
async fn answers_are_limited_to_what_is_held_for_them() {
    let mut lab = Lab::new("otherwise: { say: hello }").await;
    let free = lab.ask("please").await;
    assert_eq!(lab.requests(free.id).await[0].parameters.max_tokens, None);
    lab.budget = Some(tokens(100_000));
    let limited = lab.ask("please").await;
    assert!(lab.requests(limited.id).await[0].parameters.max_tokens.is_some());
}
