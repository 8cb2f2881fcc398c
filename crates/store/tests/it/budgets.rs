//! What may be spent, and what was.

use anyhow::{Context as _, Result};
use remuda_domain::{
    Code, RunState, StepId,
    budget::{Amount, Budget, Limit, Spent, Total},
    model::Usage,
    run::ParkReason,
};
use remuda_store::{BudgetOf, Budgeted, Commit, Grant, NewRun, NewSession, Parking, Reserved, Then};

use crate::{
    family::{awaiting, child, making},
    lab::{LONG_LEASE, Lab, completed, names, refusal},
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

fn telling(grant: &Grant, all: &[Spent]) -> Commit {
    Commit { spent: all.to_vec(), ..Commit::new(grant.fence, grant.run.id, Then::Continue) }
}

fn broke(grant: &Grant, wanted: Amount) -> Commit {
    let parking = Parking { amount: Some(wanted), ..Parking::on(ParkReason::Budget) };
    Commit::new(grant.fence, grant.run.id, Then::Park(parking))
}

impl Lab {
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

pub(crate) async fn what_is_held_is_counted(lab: &Lab) -> Result<()> {
    let grant = lab.budgeted(tokens(100)).await?;
    assert_eq!(grant.budgeted, Some(Budgeted { tokens: true, money: false }));
    assert_eq!(grant.run.budget.map(|budget| budget.limit), Some(tokens(100)));
    let steps = [StepId::new(), StepId::new(), StepId::new()];
    assert_eq!(lab.reserve(&grant, steps[0], 60).await?, Reserved::Held);
    assert_eq!(lab.budget(&grant).await?.reserved, amount(60));
    // A run has one question at a time: what it holds for the next takes the place of the last, whatever step that was.
    assert_eq!(lab.reserve(&grant, steps[1], 41).await?, Reserved::Held);
    assert_eq!(lab.reserve(&grant, steps[0], 70).await?, Reserved::Held);
    assert_eq!(lab.budget(&grant).await?.reserved, amount(70));
    let full = Budget { limit: tokens(100), ..Budget::default() };
    assert_eq!(lab.reserve(&grant, steps[0], 101).await?, Reserved::Refused(full));
    assert_eq!(lab.budget(&grant).await?, full, "a refusal holds nothing");
    assert_eq!(lab.reserve(&grant, steps[0], 70).await?, Reserved::Held);
    lab.store.commit(telling(&grant, &[spent(steps[0], 20)])).await?;
    let now = lab.budget(&grant).await?;
    assert_eq!((now.spent, now.reserved), (amount(20), Amount::default()));
    assert_eq!(lab.reserve(&grant, steps[1], 80).await?, Reserved::Held);
    // A new owner tells of a step again: it counts once, whatever it costs now.
    lab.store.commit(telling(&grant, &[spent(steps[0], 30), spent(steps[1], 10)])).await?;
    let now = lab.budget(&grant).await?;
    assert_eq!((now.spent, now.reserved), (amount(30), Amount::default()));
    let run = lab.run(grant.run.id).await?;
    let usage = Usage { input_tokens: 28, output_tokens: 2, cached_input_tokens: 4, ..Usage::default() };
    assert_eq!(run.spent, Total { model_calls: 2, usage, micros: 300 });
    // What was not reserved counts all the same.
    lab.store.commit(telling(&grant, &[spent(steps[2], 100)])).await?;
    assert_eq!(lab.budget(&grant).await?.spent, amount(130));
    assert!(matches!(lab.reserve(&grant, StepId::new(), 1).await?, Reserved::Refused(_)));
    lab.check(grant.fence.session).await
}

/// What was held for a question that never was answered keeps nobody waiting, least of all the run that held it.
pub(crate) async fn a_dead_hold_is_not_waited_for(lab: &Lab) -> Result<()> {
    let grant = lab.budgeted(tokens(100)).await?;
    let (run, worker) = (grant.run.id, grant.fence.worker);
    assert_eq!(lab.reserve(&grant, StepId::new(), 60).await?, Reserved::Held);
    assert!(matches!(lab.reserve(&grant, StepId::new(), 110).await?, Reserved::Refused(_)));
    lab.store.commit(broke(&grant, amount(110))).await?;
    assert_eq!(lab.state(run).await?, RunState::Parked);
    assert_eq!(lab.store.set_budget(lab.tenant, BudgetOf::Run(run), tokens(110)).await?.resumed, [run]);
    // Also if it is still there, for whoever decides whether the run has to wait, or may go on.
    let grant = lab.granted(grant.fence.session, worker).await?;
    assert_eq!(lab.reserve(&grant, StepId::new(), 60).await?, Reserved::Held);
    assert!(lab.store.commit(broke(&grant, amount(110))).await?.events.is_empty(), "it fits");
    let grant = lab.granted(grant.fence.session, worker).await?;
    let below = [child()];
    lab.store.commit(making(&grant, &below)).await?;
    let child = lab.granted(below[0].session, worker).await?;
    assert_eq!(lab.reserve(&child, StepId::new(), 50).await?, Reserved::Held);
    assert_eq!(lab.reserve(&grant, StepId::new(), 60).await?, Reserved::Held);
    lab.store.commit(broke(&grant, amount(61))).await?;
    assert_eq!(lab.state(run).await?, RunState::Parked);
    lab.store.commit(completed(&child)).await?;
    assert_eq!(lab.store.resume_ready(None, 10).await?.done.len(), 1);
    assert_eq!(lab.state(run).await?, RunState::Queued);
    Ok(())
}

pub(crate) async fn only_an_owner_reserves(lab: &Lab) -> Result<()> {
    let grant = lab.budgeted(tokens(100)).await?;
    let old = remuda_domain::Fence { epoch: grant.fence.epoch - 1, ..grant.fence };
    let refused = lab.store.reserve(old, grant.run.id, StepId::new(), amount(1)).await;
    assert_eq!(refusal(refused), Code::OwnershipLost);
    let other = remuda_domain::RunId::new();
    let refused = lab.store.reserve(grant.fence, other, StepId::new(), amount(1)).await;
    assert_eq!(refusal(refused), Code::OwnershipLost);
    // Without a budget everything is held, and nothing written.
    let free = lab.executing().await?;
    assert_eq!((free.budgeted, free.run.budget), (None, None));
    assert_eq!(lab.reserve(&free, StepId::new(), u64::MAX / 100).await?, Reserved::Held);
    lab.store.commit(telling(&free, &[spent(StepId::new(), 50)])).await?;
    assert_eq!(lab.run(free.run.id).await?.spent.model_calls, 1);
    Ok(())
}

pub(crate) async fn an_end_gives_back(lab: &Lab) -> Result<()> {
    let new = NewSession { budget: Some(tokens(100)), ..lab.new_session(None) };
    let made = lab.store.create_session(&new).await?.value;
    assert_eq!(made.budget, Some(Budget { limit: tokens(100), ..Budget::default() }));
    let worker = lab.worker(LONG_LEASE).await?;
    for end in 0..3 {
        let run = lab.submit(new.id).await?.run.id;
        let grant = lab.granted(new.id, worker).await?;
        assert_eq!((grant.budgeted.map(|it| it.tokens), grant.run.budget), (Some(true), None));
        assert_eq!(lab.reserve(&grant, StepId::new(), 100).await?, Reserved::Held);
        match end {
            0 => drop(lab.store.commit(completed(&grant)).await?),
            1 => {
                lab.store.release(grant.fence).await?;
                lab.store.request_cancel(lab.tenant, run, "x").await?;
            }
            _ => {
                let last = Commit { spent: vec![spent(StepId::new(), 7)], ..completed(&grant) };
                lab.store.commit(last).await?;
            }
        }
        assert_eq!(lab.look(new.id).await?.budget.map(|it| it.reserved), Some(Amount::default()), "{end}");
    }
    assert_eq!(lab.look(new.id).await?.budget.map(|it| it.spent), Some(amount(7)));
    lab.check(new.id).await
}

/// A run, its session, and the session above, all have a budget: what a child spends counts in all that cover it.
pub(crate) async fn children_share(lab: &Lab) -> Result<()> {
    let top = NewSession { budget: Some(tokens(1000)), ..lab.new_session(None) };
    lab.store.create_session(&top).await?;
    let money = Limit { tokens: None, micros: Some(5000) };
    let middle = NewSession { parent: Some(top.id), budget: Some(money), ..lab.new_session(None) };
    lab.store.create_session(&middle).await?;
    let run = NewRun { budget: Some(tokens(200)), ..lab.new_run(middle.id) };
    lab.store.submit(run).await?;
    let worker = lab.worker(LONG_LEASE).await?;
    let grant = lab.granted(middle.id, worker).await?;
    assert_eq!(grant.budgeted, Some(Budgeted { tokens: true, money: true }));
    let below = child();
    lab.store.commit(making(&grant, std::slice::from_ref(&below))).await?;
    let child = lab.granted(below.session, worker).await?;
    assert_eq!((child.budgeted, child.run.budget), (grant.budgeted, None));
    assert_eq!(lab.reserve(&child, StepId::new(), 150).await?, Reserved::Held);
    // What the child holds, its parent cannot.
    let Reserved::Refused(full) = lab.reserve(&grant, StepId::new(), 60).await? else { panic!("held") };
    assert_eq!((full.limit, full.reserved), (tokens(200), amount(150)));
    lab.store.commit(telling(&child, &[spent(StepId::new(), 100)])).await?;
    let budgets = [
        lab.look(top.id).await?.budget.context("top")?,
        lab.look(middle.id).await?.budget.context("middle")?,
        lab.budget(&grant).await?,
    ];
    assert!(budgets.iter().all(|it| (it.spent, it.reserved) == (amount(100), amount(150))), "{budgets:?}");
    assert_eq!(lab.look(below.session).await?.budget, None);
    // Money is a limit too: 2500 of 5000 are spent or held by now.
    lab.store.set_budget(lab.tenant, BudgetOf::Run(grant.run.id), tokens(100_000)).await?;
    assert_eq!(lab.reserve(&grant, StepId::new(), 240).await?, Reserved::Held);
    let Reserved::Refused(full) = lab.reserve(&grant, StepId::new(), 260).await? else { panic!("held") };
    assert_eq!((full.limit, full.reserved), (money, amount(150)));
    // Two at once, and room for one of them.
    lab.store.set_budget(lab.tenant, BudgetOf::Session(middle.id), tokens(10_000)).await?;
    let unspent = lab.look(top.id).await?.budget.map(|it| 1000 - it.spent.tokens);
    let each = unspent.context("no budget")? / 2 + 1;
    let (one, two) =
        tokio::join!(lab.reserve(&grant, StepId::new(), each), lab.reserve(&child, StepId::new(), each));
    assert!((one? == Reserved::Held) != (two? == Reserved::Held));
    Ok(())
}

pub(crate) async fn a_run_waits_for_money(lab: &Lab) -> Result<()> {
    let grant = lab.budgeted(tokens(100)).await?;
    let (run, session) = (grant.run.id, grant.fence.session);
    lab.store.commit(telling(&grant, &[spent(StepId::new(), 90)])).await?;
    // There is room for it after all.
    let committed = lab.store.commit(broke(&grant, amount(10))).await?;
    assert!(committed.released && committed.events.is_empty());
    let grant = lab.granted(session, lab.worker(LONG_LEASE).await?).await?;
    let committed = lab.store.commit(broke(&grant, amount(20))).await?;
    assert_eq!(names(&committed.events), ["run.parked"]);
    assert!(lab.store.resume_ready(None, 10).await?.done.is_empty());
    let raised = lab.store.set_budget(lab.tenant, BudgetOf::Run(run), tokens(109)).await?;
    assert_eq!((raised.resumed.len(), raised.changes.len()), (0, 1));
    assert_eq!((names(&raised.changes[0].events), raised.changes[0].wake), (vec!["budget.changed"], false));
    let raised = lab.store.set_budget(lab.tenant, BudgetOf::Run(run), tokens(110)).await?;
    assert_eq!((raised.resumed.as_slice(), raised.budget.limit), ([run].as_slice(), tokens(110)));
    assert_eq!(names(&raised.changes[1].events), ["run.resumed"]);
    assert!(raised.changes[1].wake);
    assert_eq!(lab.state(run).await?, RunState::Queued);
    // One that did not say how much waits for any raise.
    let grant = lab.granted(session, lab.worker(LONG_LEASE).await?).await?;
    lab.store.commit(crate::lab::parking(&grant, ParkReason::Budget)).await?;
    assert!(lab.store.resume_ready(None, 10).await?.done.is_empty());
    assert_eq!(lab.store.set_budget(lab.tenant, BudgetOf::Run(run), tokens(500)).await?.resumed, [run]);
    lab.check(session).await
}

/// Whichever budget was in the way, a raise finds all that wait for it, however far below they are, and nobody else.
pub(crate) async fn a_raise_reaches_down(lab: &Lab) -> Result<()> {
    let worker = lab.worker(LONG_LEASE).await?;
    let top = NewSession { budget: Some(tokens(10)), ..lab.new_session(None) };
    lab.store.create_session(&top).await?;
    let middle = NewSession { parent: Some(top.id), budget: Some(tokens(1000)), ..lab.new_session(None) };
    lab.store.create_session(&middle).await?;
    lab.store.submit(NewRun { budget: Some(tokens(10)), ..lab.new_run(middle.id) }).await?;
    let grant = lab.granted(middle.id, worker).await?;
    let below = [child()];
    lab.store.commit(making(&grant, &below)).await?;
    let child = lab.granted(below[0].session, worker).await?;
    // A budget within that of its parent.
    lab.store.set_budget(lab.tenant, BudgetOf::Run(child.run.id), tokens(1000)).await?;
    for grant in [&child, &grant] {
        lab.store.commit(broke(grant, amount(20))).await?;
    }
    let other = lab.budgeted(tokens(10)).await?;
    lab.store.commit(broke(&other, amount(20))).await?;
    let (of_run, of_top) = (BudgetOf::Run(grant.run.id), BudgetOf::Session(top.id));
    assert_eq!(lab.store.set_budget(lab.tenant, of_run, tokens(20)).await?.resumed, []);
    let raised = lab.store.set_budget(lab.tenant, of_top, tokens(20)).await?;
    assert_eq!(raised.resumed, [grant.run.id, child.run.id]);
    for run in [&child, &grant] {
        let run = lab.granted(run.fence.session, worker).await?;
        lab.store.commit(broke(&run, amount(30))).await?;
    }
    assert_eq!(lab.store.set_budget(lab.tenant, of_top, tokens(30)).await?.resumed, []);
    let raised = lab.store.set_budget(lab.tenant, of_run, tokens(30)).await?;
    assert_eq!(raised.resumed, [grant.run.id, child.run.id]);
    assert_eq!(lab.state(other.run.id).await?, RunState::Parked);
    Ok(())
}

/// Room that others leave is found by whoever looks.
pub(crate) async fn room_that_is_left_is_found(lab: &Lab) -> Result<()> {
    let new = NewSession { budget: Some(tokens(100)), ..lab.new_session(None) };
    lab.store.create_session(&new).await?;
    lab.submit(new.id).await?;
    let worker = lab.worker(LONG_LEASE).await?;
    let grant = lab.granted(new.id, worker).await?;
    let below = [child()];
    lab.store.commit(making(&grant, &below)).await?;
    let child = lab.granted(below[0].session, worker).await?;
    assert_eq!(lab.reserve(&grant, StepId::new(), 80).await?, Reserved::Held);
    lab.store.commit(broke(&child, amount(30))).await?;
    assert_eq!(lab.state(child.run.id).await?, RunState::Parked);
    assert!(lab.store.resume_ready(None, 10).await?.done.is_empty());
    // The end of its parent leaves room.
    lab.store.commit(Commit { spent: vec![spent(StepId::new(), 5)], ..completed(&grant) }).await?;
    let resumed = lab.store.resume_ready(None, 10).await?.done;
    assert_eq!(resumed.iter().map(|it| it.session).collect::<Vec<_>>(), [below[0].session]);
    // So does a question that does not fit, for which another one's room was given up.
    let other = lab.session().await?;
    lab.store.set_budget(lab.tenant, BudgetOf::Session(other), tokens(100)).await?;
    lab.submit(other).await?;
    let grant = lab.granted(other, worker).await?;
    let below = [crate::family::child()];
    lab.store.commit(making(&grant, &below)).await?;
    let child = lab.granted(below[0].session, worker).await?;
    assert_eq!(lab.reserve(&grant, StepId::new(), 80).await?, Reserved::Held);
    lab.store.commit(broke(&child, amount(30))).await?;
    assert!(matches!(lab.reserve(&grant, StepId::new(), 101).await?, Reserved::Refused(_)));
    assert_eq!(lab.store.resume_ready(None, 10).await?.done.len(), 1);
    assert_eq!(lab.state(child.run.id).await?, RunState::Queued);
    Ok(())
}

/// A limit that is made later begins with what was spent, and covers what is below.
pub(crate) async fn a_limit_can_be_made_later(lab: &Lab) -> Result<()> {
    let root = lab.executing().await?;
    let worker = lab.worker(LONG_LEASE).await?;
    let below = [child()];
    lab.store.commit(making(&root, &below)).await?;
    let middle = lab.granted(below[0].session, worker).await?;
    let lower = [child()];
    lab.store.commit(making(&middle, &lower)).await?;
    let lowest = lab.granted(lower[0].session, worker).await?;
    for grant in [&root, &middle, &lowest] {
        lab.store.commit(telling(grant, &[spent(StepId::new(), 10)])).await?;
    }
    // First in the middle, then above it, then for the session of all.
    let of = |grant: &Grant| BudgetOf::Run(grant.run.id);
    let made = lab.store.set_budget(lab.tenant, of(&middle), tokens(100)).await?;
    assert_eq!((made.budget.spent, names(&made.changes[0].events)), (amount(20), vec!["budget.changed"]));
    assert_eq!(lab.events_of(middle.fence.session).await?.last().and_then(|it| it.run), Some(middle.run.id));
    let made = lab.store.set_budget(lab.tenant, of(&root), tokens(1000)).await?;
    assert_eq!(made.budget.spent, amount(30));
    let session = BudgetOf::Session(root.fence.session);
    assert_eq!(lab.store.set_budget(lab.tenant, session, tokens(2000)).await?.budget.spent, amount(30));
    lab.store.commit(telling(&lowest, &[spent(StepId::new(), 5)])).await?;
    lab.store.commit(telling(&root, &[spent(StepId::new(), 7)])).await?;
    assert_eq!(lab.budget(&middle).await?.spent, amount(25));
    assert_eq!(lab.budget(&root).await?.spent, amount(42));
    assert_eq!(lab.look(root.fence.session).await?.budget.map(|it| it.spent), Some(amount(42)));
    assert_eq!(lab.run(lowest.run.id).await?.budget, None);
    assert!(matches!(lab.reserve(&lowest, StepId::new(), 76).await?, Reserved::Refused(_)));
    assert_eq!(lab.reserve(&root, StepId::new(), 76).await?, Reserved::Held);
    // What the tree is made of later is covered as well.
    let late = [child()];
    lab.store.commit(making(&lowest, &late)).await?;
    let late = lab.granted(late[0].session, worker).await?;
    assert_eq!(late.budgeted, Some(Budgeted { tokens: true, money: false }));
    let (stranger, run) = (lab.stranger().await?, of(&root));
    assert_eq!(refusal(lab.store.set_budget(stranger, run, tokens(5)).await), Code::RunNotFound);
    assert_eq!(refusal(lab.store.set_budget(stranger, session, tokens(5)).await), Code::SessionNotFound);
    lab.store.commit(completed(&late)).await?;
    assert_eq!(refusal(lab.store.set_budget(lab.tenant, of(&late), tokens(5)).await), Code::NotParked);
    for grant in [&root, &middle, &lowest] {
        lab.check(grant.fence.session).await?;
    }
    Ok(())
}

pub(crate) async fn totals_add_up(lab: &Lab) -> Result<()> {
    let root = lab.executing().await?;
    let session = root.fence.session;
    let children = [child(), child()];
    lab.store.commit(making(&root, &children)).await?;
    let worker = lab.worker(LONG_LEASE).await?;
    lab.store.commit(telling(&root, &[spent(StepId::new(), 100)])).await?;
    for child in &children {
        let grant = lab.granted(child.session, worker).await?;
        let last = Commit { spent: vec![spent(StepId::new(), 10)], ..completed(&grant) };
        lab.store.commit(last.clone()).await?;
        lab.store.commit(last).await?;
    }
    lab.store.commit(awaiting(&root, &children, 2)).await?;
    let root = lab.granted(session, worker).await?;
    lab.store.commit(completed(&root)).await?;
    // Another run of the session, with nobody below it.
    lab.submit(session).await?;
    let second = lab.granted(session, worker).await?;
    lab.store.commit(telling(&second, &[spent(StepId::new(), 1)])).await?;
    let count = |total: Total| {
        (total.model_calls, total.usage.input_tokens + total.usage.output_tokens, total.micros)
    };
    let (own, tree) = lab.store.run_totals(lab.tenant, root.run.id).await?;
    assert_eq!((count(own), count(tree)), ((1, 100, 1000), (3, 120, 1200)));
    let (own, tree) = lab.store.session_totals(lab.tenant, session).await?;
    assert_eq!((count(own), count(tree)), ((2, 101, 1010), (4, 121, 1210)));
    let idle = lab.session().await?;
    assert_eq!(lab.store.session_totals(lab.tenant, idle).await?, (Total::default(), Total::default()));
    let stranger = lab.stranger().await?;
    assert_eq!(refusal(lab.store.run_totals(stranger, root.run.id).await), Code::RunNotFound);
    assert_eq!(refusal(lab.store.session_totals(stranger, session).await), Code::SessionNotFound);
    Ok(())
}
