//! Lists what a parked run waits for: approvals, child runs and budgets.

use remuda_domain::{
    Run, RunId, RunState, SessionId, TenantId, Timestamp,
    approval::{Approval, ApprovalState},
    budget::{Amount, Budget},
    error::Result,
    money::dollars,
    page::PageRequest,
    run::ParkReason,
    session::SessionRef,
    step::{Child, Step},
};
use remuda_store::{ApprovalFilter, ChildReport, RunDiagnostics};

use crate::app::App;

/// An explanation lists no more waits than this.
const MAX_WAITS: usize = 50;
/// How many ancestors are searched for budgets: more than any tree is deep.
const MAX_LEVELS: usize = 32;

/// One thing that a parked run waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wait {
    /// `approval`, `child` or `budget`.
    pub kind: &'static str,
    pub id: String,
    pub message: String,
    /// The command to type.
    pub hint: String,
    pub session: Option<SessionId>,
    pub agent: String,
    pub tool: String,
    pub state: Option<RunState>,
    pub since: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
    pub budget: Option<Budget>,
    /// What the next model call may take of the budget.
    pub needed: Amount,
}

impl App {
    /// The waits of a run. Empty unless it is parked.
    pub(super) async fn waits(&self, diagnostics: &RunDiagnostics) -> Result<Vec<Wait>> {
        let run = &diagnostics.run;
        let mut waits = match run.parked.map(|parked| parked.reason) {
            // A run can wait for both at once.
            Some(ParkReason::Approval | ParkReason::Children) => {
                let mut waits = self.approval_waits(run.tenant, run.id).await?;
                waits.extend(self.child_waits(run).await?);
                waits
            }
            Some(ParkReason::Budget) => {
                self.budget_waits(run, diagnostics.needed.unwrap_or_default()).await?
            }
            Some(ParkReason::External) | None => Vec::new(),
        };
        waits.truncate(MAX_WAITS);
        Ok(waits)
    }

    async fn approval_waits(&self, tenant: TenantId, run: RunId) -> Result<Vec<Wait>> {
        let filter = ApprovalFilter {
            state: Some(ApprovalState::Pending),
            run: Some(run),
            ..ApprovalFilter::default()
        };
        let page = PageRequest { size: PageRequest::DEFAULT_SIZE, token: None };
        let found = self.store.list_approvals(tenant, &filter, &page).await?.items;
        // Oldest first: the order of the requests.
        Ok(found.iter().rev().map(approval_wait).collect())
    }

    async fn child_waits(&self, run: &Run) -> Result<Vec<Wait>> {
        let steps = self.store.list_steps(run.tenant, run.id).await?;
        let children: Vec<&Child> = steps.iter().filter_map(child_of).collect();
        if children.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<RunId> = children.iter().map(|child| child.run).collect();
        let reports = self.store.child_reports(run.tenant, &ids).await?;
        let mut waits = Vec::new();
        for child in children {
            let report = reports.iter().find(|report| report.run == child.run);
            let Some(report) = report.filter(|report| !report.state.is_terminal()) else { continue };
            if waits.len() >= MAX_WAITS {
                break;
            }
            waits.push(child_wait(child, report));
            if report.state == RunState::Parked {
                // Shows what a person can decide without another explanation.
                waits.extend(self.approval_waits(run.tenant, child.run).await?);
            }
        }
        Ok(waits)
    }

    /// The exhausted budgets among those that cover the run, the nearest first: those of the run and the runs above it,
    /// and those of its session and the sessions above it.
    async fn budget_waits(&self, run: &Run, needed: Amount) -> Result<Vec<Wait>> {
        let mut waits = Vec::new();
        let (mut id, mut budget, mut above) = (run.id, run.budget, run.parent);
        for _ in 0..MAX_LEVELS {
            waits.extend(budget.map(|budget| budget_wait("run", &id.to_string(), budget, needed)));
            let Some(parent) = above else { break };
            let parent = self.store.get_run(run.tenant, parent).await?;
            (id, budget, above) = (parent.id, parent.budget, parent.parent);
        }
        let mut next = Some(run.session);
        for _ in 0..MAX_LEVELS {
            let Some(session) = next else { break };
            let found = self.store.get_session(run.tenant, &SessionRef::Id(session)).await?;
            let wait = |budget| budget_wait("session", &found.id.to_string(), budget, needed);
            waits.extend(found.budget.map(wait));
            next = found.parent;
        }
        // A budget that has just been raised has room, and its runs are about to resume.
        if waits.iter().any(|wait| wait.budget.is_some_and(|budget| !budget.has_room(needed))) {
            waits.retain(|wait| wait.budget.is_some_and(|budget| !budget.has_room(needed)));
        }
        Ok(waits)
    }
}

fn child_of(step: &Step) -> Option<&Child> {
    step.links().and_then(|links| links.child.as_ref())
}

fn approval_wait(approval: &Approval) -> Wait {
    let (id, request) = (approval.id.to_string(), &approval.request);
    // A `tools` run has no agent.
    let who = if request.agent.is_empty() { "the run" } else { request.agent.as_str() };
    Wait {
        kind: "approval",
        message: format!("{who} wants to call {}: {}", request.tool, request.why),
        hint: format!("remuda approvals show {id}"),
        id,
        session: Some(approval.session),
        agent: request.agent.clone(),
        tool: request.tool.clone(),
        since: Some(approval.created_at),
        expires_at: approval.expires_at,
        ..Wait::default()
    }
}

fn child_wait(child: &Child, report: &ChildReport) -> Wait {
    let id = child.run.to_string();
    Wait {
        kind: "child",
        message: format!("{} works on {id}, which is {}", child.agent, report.state),
        hint: format!("remuda explain {id}"),
        id,
        session: Some(child.session),
        agent: child.agent.clone(),
        state: Some(report.state),
        ..Wait::default()
    }
}

fn budget_wait(of: &str, id: &str, budget: Budget, needed: Amount) -> Wait {
    let Budget { limit, spent, reserved } = budget;
    let mut parts = Vec::new();
    let mut flags = String::new();
    // At least what the call needs, and twice the old limit, so that the next call does not wait again.
    let enough = |limit: u64, Amount { tokens, micros }: Amount, is_money: bool| {
        limit.saturating_mul(2).max(if is_money { micros } else { tokens })
    };
    let all = spent + reserved + needed;
    let reserved_text =
        |amount: Option<String>| amount.map(|it| format!(", {it} are reserved")).unwrap_or_default();
    if let Some(tokens) = limit.tokens {
        let more = reserved_text((reserved.tokens > 0).then(|| reserved.tokens.to_string()));
        parts.push(format!(
            "{} of {tokens} tokens are spent{more}, the call may take {}",
            spent.tokens, needed.tokens
        ));
        flags.push_str(&format!(" --tokens {}", enough(tokens, all, false)));
    }
    if let Some(micros) = limit.micros {
        let more = reserved_text((reserved.micros > 0).then(|| dollars(reserved.micros)));
        let (has, may) = (dollars(micros), dollars(needed.micros));
        parts.push(format!("{} of {has} are spent{more}, the call may take {may}", dollars(spent.micros)));
        let money = dollars(enough(micros, all, true));
        flags.push_str(&format!(" --cost {}", money.trim_start_matches('$')));
    }
    Wait {
        kind: "budget",
        message: format!(
            "the next model call does not fit into the budget of the {of}: {}",
            parts.join("; ")
        ),
        hint: format!("remuda budget set {id}{flags}"),
        id: id.to_owned(),
        budget: Some(budget),
        needed,
        ..Wait::default()
    }
}

#[cfg(test)]
mod tests;
