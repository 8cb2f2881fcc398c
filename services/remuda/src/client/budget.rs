//! `remuda budget`: shows and sets budgets.

use remuda_client::Client;
use remuda_domain::{Error, error::Result};
use remuda_proto::v1::{self, set_budget_request::Of};
use serde_json::json;

use super::{
    budget_args::{cost, tokens},
    exit::Exit,
    json, spending,
};
use crate::output::{Output, Style, counted, one_line};

pub(super) const EXAMPLES: &str = "\
Examples:
  remuda budget show run_01k9…
  remuda budget set run_01k9… --cost 5           a run that waits for budget continues
  remuda budget set s1 --tokens 2M --cost 20     all runs of a session and its child sessions
  remuda budget set s1 --tokens none             remove the token limit; a cost limit stays
  remuda run \"fix the tests\" --budget-cost 2.50

The maximum cost of a model call is reserved before the call and replaced by the actual cost afterwards. A run whose next
model call exceeds the budget is parked (reason budget) and occupies no worker. Runs of sub-agents use the same budget.";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum BudgetCommand {
    /// Show the budget of a run or a session and its spending.
    Show {
        /// A run (run_…), or a session by its name or id.
        #[arg(value_name = "RUN|SESSION")]
        target: String,
    },
    /// Set the budget of a run or a session. A limit covers all spending, including the past.
    ///
    /// A limit without a flag stays as it is. Runs that wait for this budget continue immediately if it now suffices.
    #[command(group(clap::ArgGroup::new("limit").args(["tokens", "cost"]).required(true).multiple(true)))]
    Set {
        /// An unfinished run (run_…), or a session by its name or id.
        #[arg(value_name = "RUN|SESSION")]
        target: String,
        /// Limit of tokens, such as 200000, 200k or 2M; `none` for no limit.
        #[arg(long, value_name = "TOKENS", value_parser = limit_in_tokens)]
        tokens: Option<NewLimit>,
        /// Limit in dollars, such as 2.50; `none` for no limit.
        #[arg(long, value_name = "DOLLARS", value_parser = limit_in_money)]
        cost: Option<NewLimit>,
    },
}

/// The new value of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewLimit {
    AtMost(u64),
    NoLimit,
}

impl NewLimit {
    const fn value(self) -> Option<u64> {
        match self {
            Self::AtMost(value) => Some(value),
            Self::NoLimit => None,
        }
    }
}

fn limit_in_tokens(text: &str) -> Result<NewLimit, String> {
    if text == "none" { Ok(NewLimit::NoLimit) } else { tokens(text).map(NewLimit::AtMost) }
}

fn limit_in_money(text: &str) -> Result<NewLimit, String> {
    if text == "none" { Ok(NewLimit::NoLimit) } else { cost(text).map(NewLimit::AtMost) }
}

/// The owner of a budget with its limit and spending.
struct BudgetTarget {
    of: Of,
    id: String,
    budget: Option<v1::Budget>,
    spent: Option<v1::Total>,
}

pub(super) async fn execute(command: BudgetCommand, client: &Client, output: Output) -> Result<Exit> {
    match command {
        BudgetCommand::Show { target } => show(&load_target(target, client).await?, &[], output),
        BudgetCommand::Set { target, tokens, cost } => {
            let mut target = load_target(target, client).await?;
            let before = target.budget.and_then(|budget| budget.limit).unwrap_or_default();
            let limit = v1::Limit {
                tokens: tokens.map_or(before.tokens, NewLimit::value),
                micros: cost.map_or(before.micros, NewLimit::value),
            };
            let request = v1::SetBudgetRequest { of: Some(target.of.clone()), limit: Some(limit) };
            let response = client.set_budget(request).await?;
            target.budget = response.budget;
            show(&target, &response.resumed_run_ids, output)
        }
    }
}

async fn load_target(name: String, client: &Client) -> Result<BudgetTarget> {
    if name.starts_with("run_") {
        let run = client.get_run(v1::GetRunRequest { run_id: name }).await?.run;
        let run = run.ok_or_else(|| Error::internal("the server sent no run"))?;
        let (budget, spent) = (run.budget, run.tree_spent);
        return Ok(BudgetTarget { of: Of::RunId(run.id.clone()), id: run.id, budget, spent });
    }
    let session = client.get_session(v1::GetSessionRequest { session: name }).await?.session;
    let session = session.ok_or_else(|| Error::internal("the server sent no session"))?;
    let (budget, spent) = (session.budget, session.tree_spent);
    Ok(BudgetTarget { of: Of::Session(session.id.clone()), id: session.id, budget, spent })
}

fn show(target: &BudgetTarget, resumed: &[String], output: Output) -> Result<Exit> {
    let BudgetTarget { id, budget, spent, .. } = target;
    if output.json {
        let mut document = json!({ "id": id, "budget": budget.as_ref().map(json::budget) });
        document["tree_spent"] = spent.as_ref().map(json::total).into();
        if !resumed.is_empty() {
            document["resumed_run_ids"] = json!(resumed);
        }
        output.json_line(&document);
        return Ok(Exit::Ok);
    }
    let sink = output.out;
    sink.line(&sink.paint(Style::Bold, &one_line(id)));
    let field = |name: &str, value: &str| {
        sink.line(&format!("  {} {}", sink.paint(Style::Dim, &format!("{name:9}")), one_line(value)));
    };
    let limit = spending::budget_summary(budget.as_ref());
    field("budget", if limit.is_empty() { "no limit" } else { &limit });
    let spent = spending::summary(spent.as_ref());
    field("spent", if spent.is_empty() { "nothing yet" } else { &spent });
    if !resumed.is_empty() {
        output.note(&format!(
            "{} waited for this budget and {}:",
            counted(resumed.len(), "run"),
            if resumed.len() == 1 { "continues" } else { "continue" }
        ));
        resumed.iter().for_each(|run| output.note(&format!("  {}", one_line(run))));
    }
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_removes_a_limit() {
        assert_eq!(limit_in_tokens("none"), Ok(NewLimit::NoLimit));
        assert_eq!(limit_in_tokens("2k"), Ok(NewLimit::AtMost(2000)));
        assert_eq!(limit_in_money("0.5"), Ok(NewLimit::AtMost(500_000)));
        assert!(limit_in_money("0").is_err() && limit_in_tokens("nothing").is_err());
    }
}
