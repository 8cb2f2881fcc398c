//! Budgets: reservations, limits and spending.

use anyhow::{Context as _, Result};
use remuda_domain::{
    Code, RunState, StepId,
    budget::{Amount, Budget, Limit, Spent, Total},
    model::Usage,
    run::ParkReason,
};
use remuda_store::{
    BudgetLimits, BudgetTarget, Commit, Grant, NewRun, NewSession, ParkRequest, Reserved, RunTransition,
};

use crate::{
    fixture::{Fixture, LONG_LEASE, completed, names, refusal},
    tree_helpers::{child, creating_children, parked_for_children},
};

const fn tokens(tokens: u64) -> Limit {
    Limit { tokens: Some(tokens), micros: None }
}

const fn amount(tokens: u64) -> Amount {
    Amount { tokens, micros: tokens * 10 }
}

fn spent(step: StepId, tokens: u64) -> Spent {
    let usage =
        Usage { input_tokens: tokens - 1, output_tokens: 1, cached_input_tokens: 2, ..Usage::default() };
    Spent { step, usage, micros: tokens * 10 }
}

fn reporting_spent(grant: &Grant, all: &[Spent]) -> Commit {
    Commit { spent: all.to_vec(), ..Commit::new(grant.fence, grant.run.id, RunTransition::Continue) }
}

fn parked_for_budget(grant: &Grant, wanted: Amount) -> Commit {
    let parking = ParkRequest { amount: Some(wanted), ..ParkRequest::on(ParkReason::Budget) };
    Commit::new(grant.fence, grant.run.id, RunTransition::Park(parking))
}

impl Fixture {
    pub(crate) async fn budgeted(&self, limit: Limit) -> Result<Grant> {
        let session = self.session().await?;
        let run = NewRun { budget: Some(limit), ..self.new_run(session) };
        let submitted = self.store.submit(run).await?;
        assert_eq!(submitted.run.budget, Some(Budget { limit, ..Budget::default() }));
        self.granted(session, self.worker(LONG_LEASE).await?).await
    }

    async fn reserve(&self, grant: &Grant, step: StepId, tokens: u64) -> Result<Reserved> {
        Ok(self.store.reserve(grant.fence, grant.run.id, step, amount(tokens)).await?)
    }

    async fn budget(&self, grant: &Grant) -> Result<Budget> {
        self.run(grant.run.id).await?.budget.context("no budget")
    }
}

pub(crate) async fn reservations_and_spending_are_counted(fixture: &Fixture) -> Result<()> {
    let grant = fixture.budgeted(tokens(100)).await?;
    assert_eq!(grant.budgeted, Some(BudgetLimits { tokens: true, money: false }));
    assert_eq!(grant.run.budget.map(|budget| budget.limit), Some(tokens(100)));
    let steps = [StepId::new(), StepId::new(), StepId::new()];
    assert_eq!(fixture.reserve(&grant, steps[0], 60).await?, Reserved::Held);
    assert_eq!(fixture.budget(&grant).await?.reserved, amount(60));
    // A run makes one model call at a time: a new reservation replaces the last one, whatever its step.
    assert_eq!(fixture.reserve(&grant, steps[1], 41).await?, Reserved::Held);
    assert_eq!(fixture.reserve(&grant, steps[0], 70).await?, Reserved::Held);
    assert_eq!(fixture.budget(&grant).await?.reserved, amount(70));
    let full = Budget { limit: tokens(100), ..Budget::default() };
    assert_eq!(fixture.reserve(&grant, steps[0], 101).await?, Reserved::Refused(full));
    assert_eq!(fixture.budget(&grant).await?, full, "a refusal reserves nothing");
    assert_eq!(fixture.reserve(&grant, steps[0], 70).await?, Reserved::Held);
    fixture.store.commit(reporting_spent(&grant, &[spent(steps[0], 20)])).await?;
    let now = fixture.budget(&grant).await?;
    assert_eq!((now.spent, now.reserved), (amount(20), Amount::default()));
    assert_eq!(fixture.reserve(&grant, steps[1], 80).await?, Reserved::Held);
    // A new owner reports a step again: it counts once, whatever it costs now.
    fixture.store.commit(reporting_spent(&grant, &[spent(steps[0], 30), spent(steps[1], 10)])).await?;
    let now = fixture.budget(&grant).await?;
    assert_eq!((now.spent, now.reserved), (amount(30), Amount::default()));
    let run = fixture.run(grant.run.id).await?;
    let usage = Usage { input_tokens: 28, output_tokens: 2, cached_input_tokens: 4, ..Usage::default() };
    assert_eq!(run.spent, Total { model_calls: 2, usage, micros: 300 });
    // Spending without a reservation counts too.
    fixture.store.commit(reporting_spent(&grant, &[spent(steps[2], 100)])).await?;
    assert_eq!(fixture.budget(&grant).await?.spent, amount(130));
    assert!(matches!(fixture.reserve(&grant, StepId::new(), 1).await?, Reserved::Refused(_)));
    fixture.check(grant.fence.session).await
}

/// A reservation for a model call that never completed blocks no run, in particular not the one that made it.
pub(crate) async fn obsolete_reservation_of_a_run_does_not_block_it(fixture: &Fixture) -> Result<()> {
    let grant = fixture.budgeted(tokens(100)).await?;
    let (run, worker) = (grant.run.id, grant.fence.worker);
    assert_eq!(fixture.reserve(&grant, StepId::new(), 60).await?, Reserved::Held);
    assert!(matches!(fixture.reserve(&grant, StepId::new(), 110).await?, Reserved::Refused(_)));
    fixture.store.commit(parked_for_budget(&grant, amount(110))).await?;
    assert_eq!(fixture.state(run).await?, RunState::Parked);
    assert_eq!(
        fixture.store.set_budget(fixture.tenant, BudgetTarget::Run(run), tokens(110)).await?.resumed,
        [run]
    );
    // Even if it still exists, it is ignored both when the run parks and when it resumes.
    let grant = fixture.granted(grant.fence.session, worker).await?;
    assert_eq!(fixture.reserve(&grant, StepId::new(), 60).await?, Reserved::Held);
    assert!(fixture.store.commit(parked_for_budget(&grant, amount(110))).await?.events.is_empty(), "it fits");
    let grant = fixture.granted(grant.fence.session, worker).await?;
    let below = [child()];
    fixture.store.commit(creating_children(&grant, &below)).await?;
    let child = fixture.granted(below[0].run.session, worker).await?;
    assert_eq!(fixture.reserve(&child, StepId::new(), 50).await?, Reserved::Held);
    assert_eq!(fixture.reserve(&grant, StepId::new(), 60).await?, Reserved::Held);
    fixture.store.commit(parked_for_budget(&grant, amount(61))).await?;
    assert_eq!(fixture.state(run).await?, RunState::Parked);
    fixture.store.commit(completed(&child)).await?;
    assert_eq!(fixture.store.resume_ready(None, 10).await?.result.len(), 1);
    assert_eq!(fixture.state(run).await?, RunState::Queued);
    Ok(())
}

pub(crate) async fn reserve_requires_ownership(fixture: &Fixture) -> Result<()> {
    let grant = fixture.budgeted(tokens(100)).await?;
    let old = remuda_domain::Fence { epoch: grant.fence.epoch - 1, ..grant.fence };
    let refused = fixture.store.reserve(old, grant.run.id, StepId::new(), amount(1)).await;
    assert_eq!(refusal(refused), Code::OwnershipLost);
    let other = remuda_domain::RunId::new();
    let refused = fixture.store.reserve(grant.fence, other, StepId::new(), amount(1)).await;
    assert_eq!(refusal(refused), Code::OwnershipLost);
    // Without a budget every reservation succeeds, and nothing is written.
    let free = fixture.executing().await?;
    assert_eq!((free.budgeted, free.run.budget), (None, None));
    assert_eq!(fixture.reserve(&free, StepId::new(), u64::MAX / 100).await?, Reserved::Held);
    fixture.store.commit(reporting_spent(&free, &[spent(StepId::new(), 50)])).await?;
    assert_eq!(fixture.run(free.run.id).await?.spent.model_calls, 1);
    Ok(())
}

pub(crate) async fn end_releases_reservations(fixture: &Fixture) -> Result<()> {
    let new = NewSession { budget: Some(tokens(100)), ..fixture.new_session(None) };
    let made = fixture.store.create_session(&new).await?.value;
    assert_eq!(made.budget, Some(Budget { limit: tokens(100), ..Budget::default() }));
    let worker = fixture.worker(LONG_LEASE).await?;
    for end in 0..3 {
        let run = fixture.submit(new.id).await?.run.id;
        let grant = fixture.granted(new.id, worker).await?;
        assert_eq!((grant.budgeted.map(|it| it.tokens), grant.run.budget), (Some(true), None));
        assert_eq!(fixture.reserve(&grant, StepId::new(), 100).await?, Reserved::Held);
        match end {
            0 => drop(fixture.store.commit(completed(&grant)).await?),
            1 => {
                fixture.store.release(grant.fence).await?;
                fixture.store.request_cancel(fixture.tenant, run, "x").await?;
            }
            _ => {
                let last = Commit { spent: vec![spent(StepId::new(), 7)], ..completed(&grant) };
                fixture.store.commit(last).await?;
            }
        }
        assert_eq!(
            fixture.get_session(new.id).await?.budget.map(|it| it.reserved),
            Some(Amount::default()),
            "{end}"
        );
    }
    assert_eq!(fixture.get_session(new.id).await?.budget.map(|it| it.spent), Some(amount(7)));
    fixture.check(new.id).await
}

/// A run, its session and the parent session all have budgets: a child's spending counts in all that cover it.
pub(crate) async fn children_share_the_budgets_of_their_ancestors(fixture: &Fixture) -> Result<()> {
    let top = NewSession { budget: Some(tokens(1000)), ..fixture.new_session(None) };
    fixture.store.create_session(&top).await?;
    let money = Limit { tokens: None, micros: Some(5000) };
    let middle = NewSession { parent: Some(top.id), budget: Some(money), ..fixture.new_session(None) };
    fixture.store.create_session(&middle).await?;
    let run = NewRun { budget: Some(tokens(200)), ..fixture.new_run(middle.id) };
    fixture.store.submit(run).await?;
    let worker = fixture.worker(LONG_LEASE).await?;
    let grant = fixture.granted(middle.id, worker).await?;
    assert_eq!(grant.budgeted, Some(BudgetLimits { tokens: true, money: true }));
    let below = child();
    fixture.store.commit(creating_children(&grant, std::slice::from_ref(&below))).await?;
    let child = fixture.granted(below.run.session, worker).await?;
    assert_eq!((child.budgeted, child.run.budget), (grant.budgeted, None));
    assert_eq!(fixture.reserve(&child, StepId::new(), 150).await?, Reserved::Held);
    // The parent cannot reserve what the child has reserved.
    let Reserved::Refused(full) = fixture.reserve(&grant, StepId::new(), 60).await? else { panic!("held") };
    assert_eq!((full.limit, full.reserved), (tokens(200), amount(150)));
    fixture.store.commit(reporting_spent(&child, &[spent(StepId::new(), 100)])).await?;
    let budgets = [
        fixture.get_session(top.id).await?.budget.context("top")?,
        fixture.get_session(middle.id).await?.budget.context("middle")?,
        fixture.budget(&grant).await?,
    ];
    assert!(budgets.iter().all(|it| (it.spent, it.reserved) == (amount(100), amount(150))), "{budgets:?}");
    assert_eq!(fixture.get_session(below.run.session).await?.budget, None);
    // Money is limited too: 2500 of 5000 are spent or reserved by now.
    fixture.store.set_budget(fixture.tenant, BudgetTarget::Run(grant.run.id), tokens(100_000)).await?;
    assert_eq!(fixture.reserve(&grant, StepId::new(), 240).await?, Reserved::Held);
    let Reserved::Refused(full) = fixture.reserve(&grant, StepId::new(), 260).await? else { panic!("held") };
    assert_eq!((full.limit, full.reserved), (money, amount(150)));
    // Two concurrent reservations, with room for one.
    fixture.store.set_budget(fixture.tenant, BudgetTarget::Session(middle.id), tokens(10_000)).await?;
    let unspent = fixture.get_session(top.id).await?.budget.map(|it| 1000 - it.spent.tokens);
    let each = unspent.context("no budget")? / 2 + 1;
    let (one, two) = tokio::join!(
        fixture.reserve(&grant, StepId::new(), each),
        fixture.reserve(&child, StepId::new(), each)
    );
    assert!((one? == Reserved::Held) != (two? == Reserved::Held));
    Ok(())
}

pub(crate) async fn run_parks_for_budget_and_resumes_after_a_raise(fixture: &Fixture) -> Result<()> {
    let grant = fixture.budgeted(tokens(100)).await?;
    let (run, session) = (grant.run.id, grant.fence.session);
    fixture.store.commit(reporting_spent(&grant, &[spent(StepId::new(), 90)])).await?;
    // There is room already, so the run is not parked.
    let committed = fixture.store.commit(parked_for_budget(&grant, amount(10))).await?;
    assert!(committed.released && committed.events.is_empty());
    let grant = fixture.granted(session, fixture.worker(LONG_LEASE).await?).await?;
    let committed = fixture.store.commit(parked_for_budget(&grant, amount(20))).await?;
    assert_eq!(names(&committed.events), ["run.parked"]);
    assert!(fixture.store.resume_ready(None, 10).await?.result.is_empty());
    let raised = fixture.store.set_budget(fixture.tenant, BudgetTarget::Run(run), tokens(109)).await?;
    assert_eq!((raised.resumed.len(), raised.changes.len()), (0, 1));
    assert_eq!((names(&raised.changes[0].events), raised.changes[0].wake), (vec!["budget.changed"], false));
    let raised = fixture.store.set_budget(fixture.tenant, BudgetTarget::Run(run), tokens(110)).await?;
    assert_eq!((raised.resumed.as_slice(), raised.budget.limit), ([run].as_slice(), tokens(110)));
    assert_eq!(names(&raised.changes[1].events), ["run.resumed"]);
    assert!(raised.changes[1].wake);
    assert_eq!(fixture.state(run).await?, RunState::Queued);
    // A run that recorded no amount resumes with any raise.
    let grant = fixture.granted(session, fixture.worker(LONG_LEASE).await?).await?;
    fixture.store.commit(crate::fixture::parking(&grant, ParkReason::Budget)).await?;
    assert!(fixture.store.resume_ready(None, 10).await?.result.is_empty());
    assert_eq!(
        fixture.store.set_budget(fixture.tenant, BudgetTarget::Run(run), tokens(500)).await?.resumed,
        [run]
    );
    fixture.check(session).await
}

/// A raise resumes all runs that wait for this budget, however deep in the tree, and no others.
pub(crate) async fn raise_resumes_all_covered_runs(fixture: &Fixture) -> Result<()> {
    let worker = fixture.worker(LONG_LEASE).await?;
    let top = NewSession { budget: Some(tokens(10)), ..fixture.new_session(None) };
    fixture.store.create_session(&top).await?;
    let middle = NewSession { parent: Some(top.id), budget: Some(tokens(1000)), ..fixture.new_session(None) };
    fixture.store.create_session(&middle).await?;
    fixture.store.submit(NewRun { budget: Some(tokens(10)), ..fixture.new_run(middle.id) }).await?;
    let grant = fixture.granted(middle.id, worker).await?;
    let below = [child()];
    fixture.store.commit(creating_children(&grant, &below)).await?;
    let child = fixture.granted(below[0].run.session, worker).await?;
    // A budget within the budget of its parent.
    fixture.store.set_budget(fixture.tenant, BudgetTarget::Run(child.run.id), tokens(1000)).await?;
    for grant in [&child, &grant] {
        fixture.store.commit(parked_for_budget(grant, amount(20))).await?;
    }
    let other = fixture.budgeted(tokens(10)).await?;
    fixture.store.commit(parked_for_budget(&other, amount(20))).await?;
    let (of_run, of_top) = (BudgetTarget::Run(grant.run.id), BudgetTarget::Session(top.id));
    assert_eq!(fixture.store.set_budget(fixture.tenant, of_run, tokens(20)).await?.resumed, []);
    let raised = fixture.store.set_budget(fixture.tenant, of_top, tokens(20)).await?;
    assert_eq!(raised.resumed, [grant.run.id, child.run.id]);
    for run in [&child, &grant] {
        let run = fixture.granted(run.fence.session, worker).await?;
        fixture.store.commit(parked_for_budget(&run, amount(30))).await?;
    }
    assert_eq!(fixture.store.set_budget(fixture.tenant, of_top, tokens(30)).await?.resumed, []);
    let raised = fixture.store.set_budget(fixture.tenant, of_run, tokens(30)).await?;
    assert_eq!(raised.resumed, [grant.run.id, child.run.id]);
    assert_eq!(fixture.state(other.run.id).await?, RunState::Parked);
    Ok(())
}

/// `resume_ready` finds runs that have room because others released it.
pub(crate) async fn freed_budget_resumes_waiting_runs(fixture: &Fixture) -> Result<()> {
    let new = NewSession { budget: Some(tokens(100)), ..fixture.new_session(None) };
    fixture.store.create_session(&new).await?;
    fixture.submit(new.id).await?;
    let worker = fixture.worker(LONG_LEASE).await?;
    let grant = fixture.granted(new.id, worker).await?;
    let below = [child()];
    fixture.store.commit(creating_children(&grant, &below)).await?;
    let child = fixture.granted(below[0].run.session, worker).await?;
    assert_eq!(fixture.reserve(&grant, StepId::new(), 80).await?, Reserved::Held);
    fixture.store.commit(parked_for_budget(&child, amount(30))).await?;
    assert_eq!(fixture.state(child.run.id).await?, RunState::Parked);
    assert!(fixture.store.resume_ready(None, 10).await?.result.is_empty());
    // The end of its parent frees room.
    fixture.store.commit(Commit { spent: vec![spent(StepId::new(), 5)], ..completed(&grant) }).await?;
    let resumed = fixture.store.resume_ready(None, 10).await?.result;
    assert_eq!(resumed.iter().map(|it| it.session).collect::<Vec<_>>(), [below[0].run.session]);
    // So does a refused reservation, which drops the run's previous one.
    let other = fixture.session().await?;
    fixture.store.set_budget(fixture.tenant, BudgetTarget::Session(other), tokens(100)).await?;
    fixture.submit(other).await?;
    let grant = fixture.granted(other, worker).await?;
    let below = [crate::tree_helpers::child()];
    fixture.store.commit(creating_children(&grant, &below)).await?;
    let child = fixture.granted(below[0].run.session, worker).await?;
    assert_eq!(fixture.reserve(&grant, StepId::new(), 80).await?, Reserved::Held);
    fixture.store.commit(parked_for_budget(&child, amount(30))).await?;
    assert!(matches!(fixture.reserve(&grant, StepId::new(), 101).await?, Reserved::Refused(_)));
    assert_eq!(fixture.store.resume_ready(None, 10).await?.result.len(), 1);
    assert_eq!(fixture.state(child.run.id).await?, RunState::Queued);
    Ok(())
}

/// A budget created later starts with what was spent so far, and covers all descendants.
pub(crate) async fn budget_created_later_starts_with_previous_spending(fixture: &Fixture) -> Result<()> {
    let root = fixture.executing().await?;
    let worker = fixture.worker(LONG_LEASE).await?;
    let below = [child()];
    fixture.store.commit(creating_children(&root, &below)).await?;
    let middle = fixture.granted(below[0].run.session, worker).await?;
    let lower = [child()];
    fixture.store.commit(creating_children(&middle, &lower)).await?;
    let lowest = fixture.granted(lower[0].run.session, worker).await?;
    for grant in [&root, &middle, &lowest] {
        fixture.store.commit(reporting_spent(grant, &[spent(StepId::new(), 10)])).await?;
    }
    // First in the middle, then above it, then for the root session.
    let of = |grant: &Grant| BudgetTarget::Run(grant.run.id);
    let made = fixture.store.set_budget(fixture.tenant, of(&middle), tokens(100)).await?;
    assert_eq!((made.budget.spent, names(&made.changes[0].events)), (amount(20), vec!["budget.changed"]));
    assert_eq!(
        fixture.events_of(middle.fence.session).await?.last().and_then(|it| it.run),
        Some(middle.run.id)
    );
    let made = fixture.store.set_budget(fixture.tenant, of(&root), tokens(1000)).await?;
    assert_eq!(made.budget.spent, amount(30));
    let session = BudgetTarget::Session(root.fence.session);
    assert_eq!(
        fixture.store.set_budget(fixture.tenant, session, tokens(2000)).await?.budget.spent,
        amount(30)
    );
    fixture.store.commit(reporting_spent(&lowest, &[spent(StepId::new(), 5)])).await?;
    fixture.store.commit(reporting_spent(&root, &[spent(StepId::new(), 7)])).await?;
    assert_eq!(fixture.budget(&middle).await?.spent, amount(25));
    assert_eq!(fixture.budget(&root).await?.spent, amount(42));
    assert_eq!(fixture.get_session(root.fence.session).await?.budget.map(|it| it.spent), Some(amount(42)));
    assert_eq!(fixture.run(lowest.run.id).await?.budget, None);
    assert!(matches!(fixture.reserve(&lowest, StepId::new(), 76).await?, Reserved::Refused(_)));
    assert_eq!(fixture.reserve(&root, StepId::new(), 76).await?, Reserved::Held);
    // Children created later are covered as well.
    let late = [child()];
    fixture.store.commit(creating_children(&lowest, &late)).await?;
    let late = fixture.granted(late[0].run.session, worker).await?;
    assert_eq!(late.budgeted, Some(BudgetLimits { tokens: true, money: false }));
    let (stranger, run) = (fixture.stranger().await?, of(&root));
    assert_eq!(refusal(fixture.store.set_budget(stranger, run, tokens(5)).await), Code::RunNotFound);
    assert_eq!(refusal(fixture.store.set_budget(stranger, session, tokens(5)).await), Code::SessionNotFound);
    fixture.store.commit(completed(&late)).await?;
    assert_eq!(
        refusal(fixture.store.set_budget(fixture.tenant, of(&late), tokens(5)).await),
        Code::NotParked
    );
    for grant in [&root, &middle, &lowest] {
        fixture.check(grant.fence.session).await?;
    }
    Ok(())
}

pub(crate) async fn totals_sum_over_trees(fixture: &Fixture) -> Result<()> {
    let root = fixture.executing().await?;
    let session = root.fence.session;
    let children = [child(), child()];
    fixture.store.commit(creating_children(&root, &children)).await?;
    let worker = fixture.worker(LONG_LEASE).await?;
    fixture.store.commit(reporting_spent(&root, &[spent(StepId::new(), 100)])).await?;
    for child in &children {
        let grant = fixture.granted(child.run.session, worker).await?;
        let last = Commit { spent: vec![spent(StepId::new(), 10)], ..completed(&grant) };
        fixture.store.commit(last.clone()).await?;
        fixture.store.commit(last).await?;
    }
    fixture.store.commit(parked_for_children(&root, &children, 2)).await?;
    let root = fixture.granted(session, worker).await?;
    fixture.store.commit(completed(&root)).await?;
    // Another run of the session, without children.
    fixture.submit(session).await?;
    let second = fixture.granted(session, worker).await?;
    fixture.store.commit(reporting_spent(&second, &[spent(StepId::new(), 1)])).await?;
    let count = |total: Total| {
        (total.model_calls, total.usage.input_tokens + total.usage.output_tokens, total.micros)
    };
    let (own, tree) = fixture.store.run_totals(fixture.tenant, root.run.id).await?;
    assert_eq!((count(own), count(tree)), ((1, 100, 1000), (3, 120, 1200)));
    let (own, tree) = fixture.store.session_totals(fixture.tenant, session).await?;
    assert_eq!((count(own), count(tree)), ((2, 101, 1010), (4, 121, 1210)));
    let idle = fixture.session().await?;
    assert_eq!(
        fixture.store.session_totals(fixture.tenant, idle).await?,
        (Total::default(), Total::default())
    );
    let stranger = fixture.stranger().await?;
    assert_eq!(refusal(fixture.store.run_totals(stranger, root.run.id).await), Code::RunNotFound);
    assert_eq!(refusal(fixture.store.session_totals(stranger, session).await), Code::SessionNotFound);
    Ok(())
}
