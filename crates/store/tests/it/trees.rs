//! Random trees of runs: they terminate whatever happens, even if notifications are lost.

use anyhow::{Context as _, Result, ensure};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use remuda_domain::{
    ApprovalId, Code, RunId, RunState, SessionId, StepId, WorkerId, budget::Amount, run::ParkReason,
};
use remuda_store::{Claim, Commit, Committed, Grant, NewRun, NewSession, ParkRequest, RunTransition};

use crate::{
    fixture::{Fixture, LONG_LEASE, completed},
    query_plans::count,
    tree_helpers::{approve, child, creating_children, new_approval, parked_for_approvals},
};

const ACTS: usize = 120;
const SEEDS: [u64; 3] = [7, 1_905, 0xbeef];
const MAX_DEPTH: u32 = 3;

struct World<'a> {
    fixture: &'a Fixture,
    rng: StdRng,
    /// All sessions and runs.
    sessions: Vec<SessionId>,
    runs: Vec<RunId>,
    approvals: Vec<ApprovalId>,
    grants: Vec<Grant>,
    workers: Vec<WorkerId>,
}

impl World<'_> {
    async fn act(&mut self) -> Result<()> {
        match self.rng.random_range(0..100) {
            0..40 => self.claim().await,
            40..75 => self.commit().await,
            75..82 => self.decide().await,
            82..86 => self.cancel().await,
            86..90 => self.release().await,
            90..94 => self.lose_a_worker().await,
            94..97 => self.sweep().await,
            _ => self.submit().await,
        }
    }

    async fn submit(&mut self) -> Result<()> {
        let limit = remuda_domain::budget::Limit { tokens: Some(500), micros: None };
        let session = self.sessions[0];
        let budget = self.rng.random_bool(0.5).then_some(limit);
        let run = NewRun { budget, ..self.fixture.new_run(session) };
        self.runs.push(run.run.id);
        self.fixture.store.submit(run).await?;
        Ok(())
    }

    async fn claim(&mut self) -> Result<()> {
        let session = *self.sessions.choose(&mut self.rng).context("no session")?;
        let worker = *self.workers.choose(&mut self.rng).context("no worker")?;
        if let Claim::Granted(grant) = self.fixture.claim(session, worker).await? {
            self.grants.push(*grant);
        }
        Ok(())
    }

    /// A random commit, mostly by the current owner.
    async fn commit(&mut self) -> Result<()> {
        if self.grants.is_empty() {
            return Ok(());
        }
        let at = self.rng.random_range(0..self.grants.len());
        let grant = self.grants[at].clone();
        let commit = self.some_commit(&grant).await?;
        let (made, asked) = (commit.children.clone(), commit.approvals.clone());
        let goes_on = matches!(commit.then, RunTransition::Continue);
        match self.fixture.store.commit(commit).await {
            Ok(committed) => {
                self.sessions.extend(made.iter().map(|child| child.run.session));
                self.runs.extend(made.iter().map(|child| child.run.id));
                self.approvals.extend(asked.iter().map(|it| it.id));
                if !goes_on {
                    self.grants.swap_remove(at);
                }
                self.tell(&grant, committed).await?;
            }
            Err(error) if error.code() == Code::OwnershipLost => drop(self.grants.swap_remove(at)),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    async fn some_commit(&mut self, grant: &Grant) -> Result<Commit> {
        let may_make = grant.depth < MAX_DEPTH && self.sessions.len() < 60;
        Ok(match self.rng.random_range(0..10) {
            0..3 if may_make => {
                let children: Vec<_> = (0..self.rng.random_range(1..4)).map(|_| child()).collect();
                creating_children(grant, &children)
            }
            3..6 => {
                let own = self.children_of(grant.run.id).await?;
                let most = u32::try_from(own.len())?;
                let needed = self.rng.random_range(0..=most).max(1);
                let parking = ParkRequest { children: own, needed, ..ParkRequest::on(ParkReason::Children) };
                Commit::new(grant.fence, grant.run.id, RunTransition::Park(parking))
            }
            6 => parked_for_approvals(
                grant,
                &[new_approval(None), new_approval(Some(std::time::Duration::from_millis(1)))],
            ),
            7 => {
                let step = StepId::new();
                let amount = Amount { tokens: 100, micros: 0 };
                // Refused under an outdated fence; the commit is then refused too.
                drop(self.fixture.store.reserve(grant.fence, grant.run.id, step, amount).await);
                let usage = remuda_domain::model::Usage { input_tokens: 60, ..Default::default() };
                let spent = vec![remuda_domain::budget::Spent { step, usage, micros: 0 }];
                Commit { spent, ..Commit::new(grant.fence, grant.run.id, RunTransition::Continue) }
            }
            8 => Commit::new(grant.fence, grant.run.id, RunTransition::HandOver),
            _ => completed(grant),
        })
    }

    async fn children_of(&self, parent: RunId) -> Result<Vec<RunId>> {
        let mut children = Vec::new();
        for run in &self.runs {
            if self.fixture.run(*run).await?.parent == Some(parent) {
                children.push(*run);
            }
        }
        Ok(children)
    }

    /// What a worker does after a commit; half of the time it crashes before.
    async fn tell(&mut self, grant: &Grant, committed: Committed) -> Result<()> {
        self.grants.extend(committed.next.map(|next| *next));
        if self.rng.random_bool(0.5) {
            return Ok(());
        }
        if committed.has_children {
            self.fixture.store.cancel_children(self.fixture.tenant, grant.run.id, "over").await?;
        }
        if let Some(parent) = committed.parent {
            self.fixture.store.resume_if_ready(self.fixture.tenant, parent).await?;
        }
        Ok(())
    }

    async fn decide(&mut self) -> Result<()> {
        let Some(approval) = self.approvals.choose(&mut self.rng) else { return Ok(()) };
        match self.fixture.store.decide(&self.fixture.approver(), *approval, &approve()).await {
            Err(error) if !matches!(error.code(), Code::ApprovalDecided | Code::ApprovalExpired) => {
                Err(error.into())
            }
            _ => Ok(()),
        }
    }

    async fn cancel(&mut self) -> Result<()> {
        let run = *self.runs.choose(&mut self.rng).context("no run")?;
        self.fixture.store.request_cancel(self.fixture.tenant, run, "random").await?;
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        let Some(grant) = self.grants.choose(&mut self.rng) else { return Ok(()) };
        match self.fixture.store.release(grant.fence).await {
            Err(error) if error.code() != Code::OwnershipLost => Err(error.into()),
            _ => Ok(()),
        }
    }

    async fn lose_a_worker(&mut self) -> Result<()> {
        let at = self.rng.random_range(0..self.workers.len());
        self.fixture.store.retire_worker(self.workers.swap_remove(at)).await?;
        self.workers.push(self.fixture.worker(LONG_LEASE).await?);
        Ok(())
    }

    async fn sweep(&self) -> Result<()> {
        let store = &self.fixture.store;
        store.reclaim_sessions(100).await?;
        store.expire_approvals(100).await?;
        store.stop_orphans(None, 100).await?;
        store.resume_ready(None, 100).await?;
        Ok(())
    }

    /// Submits nothing new; workers and reconciler scans run until everything has ended.
    async fn come_to_an_end(&mut self) -> Result<()> {
        for worker in std::mem::take(&mut self.workers) {
            self.fixture.store.retire_worker(worker).await?;
        }
        let worker = self.fixture.worker(LONG_LEASE).await?;
        for _ in 0..100 {
            self.sweep().await?;
            for approval in std::mem::take(&mut self.approvals) {
                drop(self.fixture.store.decide(&self.fixture.approver(), approval, &approve()).await);
            }
            for session in self.sessions.clone() {
                while let Claim::Granted(grant) = self.fixture.claim(session, worker).await? {
                    let state =
                        if grant.run.cancel.is_some() { RunState::Cancelled } else { RunState::Completed };
                    self.fixture.store.commit(crate::fixture::ending(&grant, state)).await?;
                    // The next run is claimed again, which is harmless.
                }
            }
            let mut live = 0;
            for run in &self.runs {
                live += usize::from(!self.fixture.state(*run).await?.is_terminal());
            }
            if live == 0 {
                return Ok(());
            }
        }
        anyhow::bail!("some runs never end")
    }

    async fn check(&self) -> Result<()> {
        for session in &self.sessions {
            self.fixture.check(*session).await?;
        }
        Ok(())
    }
}

pub(crate) async fn random_trees_terminate(fixture: &Fixture) -> Result<()> {
    for seed in SEEDS {
        let limit = remuda_domain::budget::Limit { tokens: Some(2000), micros: None };
        let root = NewSession { budget: Some(limit), ..fixture.new_session(None) };
        fixture.store.create_session(&root).await?;
        let workers = vec![fixture.worker(LONG_LEASE).await?, fixture.worker(LONG_LEASE).await?];
        let rng = StdRng::seed_from_u64(seed);
        let (runs, approvals, grants) = (Vec::new(), Vec::new(), Vec::new());
        let mut world = World { fixture, rng, sessions: vec![root.id], runs, approvals, grants, workers };
        world.submit().await?;
        for number in 0..ACTS {
            world.act().await.with_context(|| format!("seed {seed}, act {number}"))?;
        }
        world.check().await.with_context(|| format!("seed {seed}, midway"))?;
        world.come_to_an_end().await.with_context(|| format!("seed {seed}"))?;
        world.check().await.with_context(|| format!("seed {seed}, at the end"))?;
        ensure!(world.runs.len() > 3, "nothing happened");
        for left in [
            "SELECT count(*) FROM waits",
            "SELECT count(*) FROM reservations",
            "SELECT count(*) FROM spent_steps",
            "SELECT count(*) FROM approvals WHERE state = 'pending'",
        ] {
            ensure!(count(fixture, left).await? == 0, "seed {seed}: something is left: {left}");
        }
        // The spending of the runs equals the spending of their budget.
        let (_, tree) = fixture.store.session_totals(fixture.tenant, root.id).await?;
        let budget = fixture.get_session(root.id).await?.budget.context("no budget")?;
        ensure!(budget.spent.tokens == tree.usage.input_tokens, "{budget:?} against {tree:?}");
    }
    Ok(())
}
