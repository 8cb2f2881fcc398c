//! `remuda budget`: how much may be spent.

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
  remuda budget set run_01k9… --cost 5           a run that waits for its budget goes on
  remuda budget set s1 --tokens 2M --cost 20     all runs of a session, and of the sessions below it
  remuda budget set s1 --tokens none             no more limit on tokens; one in money stays
  remuda run \"fix the tests\" --budget-cost 2.50

What a question may cost at most is held before it is asked, and what it did cost is counted afterwards. A run that has no
room for its next question is parked (reason budget) and holds no worker. Runs that agents delegate to spend from the same
budget.";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum BudgetCommand {
    /// Show the limit of a run or a session, and what was spent.
    Show {
        /// A run (run_…), or a session by its name or id.
        #[arg(value_name = "RUN|SESSION")]
        of: String,
    },
    /// Set the limit of a run or a session. What was spent counts: a limit is for all of it, not for what is to come.
    ///
    /// What is not said stays as it was. Runs that wait for this budget and now have room go on at once.
    #[command(group(clap::ArgGroup::new("limit").args(["tokens", "cost"]).required(true).multiple(true)))]
    Set {
        /// An unfinished run (run_…), or a session by its name or id.
        #[arg(value_name = "RUN|SESSION")]
        of: String,
        /// In all, such as 200000, 200k or 2M; `none` for no limit.
        #[arg(long, value_name = "TOKENS", value_parser = limit_in_tokens)]
        tokens: Option<Said>,
        /// In dollars, such as 2.50; `none` for no limit.
        #[arg(long, value_name = "DOLLARS", value_parser = limit_in_money)]
        cost: Option<Said>,
    },
}

/// What a limit becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Most(u64),
    NoLimit,
}

impl Said {
    const fn most(self) -> Option<u64> {
        match self {
            Self::Most(most) => Some(most),
            Self::NoLimit => None,
        }
    }
}

fn limit_in_tokens(text: &str) -> Result<Said, String> {
    if text == "none" { Ok(Said::NoLimit) } else { tokens(text).map(Said::Most) }
}

fn limit_in_money(text: &str) -> Result<Said, String> {
    if text == "none" { Ok(Said::NoLimit) } else { cost(text).map(Said::Most) }
}

/// What a budget is of, and how it stands.
struct Account {
    of: Of,
    id: String,
    budget: Option<v1::Budget>,
    spent: Option<v1::Total>,
}

pub(super) async fn execute(command: BudgetCommand, client: &Client, output: Output) -> Result<Exit> {
    match command {
        BudgetCommand::Show { of } => show(&account(of, client).await?, &[], output),
        BudgetCommand::Set { of, tokens, cost } => {
            let mut account = account(of, client).await?;
            let before = account.budget.and_then(|budget| budget.limit).unwrap_or_default();
            let limit = v1::Limit {
                tokens: tokens.map_or(before.tokens, Said::most),
                micros: cost.map_or(before.micros, Said::most),
            };
            let request = v1::SetBudgetRequest { of: Some(account.of.clone()), limit: Some(limit) };
            let answer = client.set_budget(request).await?;
            account.budget = answer.budget;
            show(&account, &answer.resumed_run_ids, output)
        }
    }
}

async fn account(of: String, client: &Client) -> Result<Account> {
    if of.starts_with("run_") {
        let run = client.get_run(v1::GetRunRequest { run_id: of }).await?.run;
        let run = run.ok_or_else(|| Error::internal("the server sent no run"))?;
        let (budget, spent) = (run.budget, run.tree_spent);
        return Ok(Account { of: Of::RunId(run.id.clone()), id: run.id, budget, spent });
    }
    let session = client.get_session(v1::GetSessionRequest { session: of }).await?.session;
    let session = session.ok_or_else(|| Error::internal("the server sent no session"))?;
    let (budget, spent) = (session.budget, session.tree_spent);
    Ok(Account { of: Of::Session(session.id.clone()), id: session.id, budget, spent })
}

fn show(account: &Account, resumed: &[String], output: Output) -> Result<Exit> {
    let Account { id, budget, spent, .. } = account;
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
    let limit = spending::budget_words(budget.as_ref());
    field("budget", if limit.is_empty() { "no limit" } else { &limit });
    let spent = spending::words(spent.as_ref());
    field("spent", if spent.is_empty() { "nothing yet" } else { &spent });
    if !resumed.is_empty() {
        output.note(&format!(
            "{} had waited for it and {} on:",
            counted(resumed.len(), "run"),
            if resumed.len() == 1 { "goes" } else { "go" }
        ));
        resumed.iter().for_each(|run| output.note(&format!("  {}", one_line(run))));
    }
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_can_be_taken_away() {
        assert_eq!(limit_in_tokens("none"), Ok(Said::NoLimit));
        assert_eq!(limit_in_tokens("2k"), Ok(Said::Most(2000)));
        assert_eq!(limit_in_money("0.5"), Ok(Said::Most(500_000)));
        assert!(limit_in_money("0").is_err() && limit_in_tokens("nothing").is_err());
    }
}
