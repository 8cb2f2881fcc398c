//! Random trees of runs: whatever happens to them, and whoever forgets to tell, they come to an end.

use anyhow::{Context as _, Result, ensure};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use remuda_domain::{
    ApprovalId, Code, RunId, RunState, SessionId, StepId, WorkerId, budget::Amount, run::ParkReason,
};
use remuda_store::{Claim, Commit, Committed, Grant, NewRun, NewSession, Parking, Then};

use crate::{
    family::{asking, child, making, question, yes},
    lab::{LONG_LEASE, Lab, completed},
    plans::count,
};

const ACTS: usize = 120;
const SEEDS: [u64; 3] = [7, 1_905, 0xbeef];
const MAX_DEPTH: u32 = 3;

struct World<'a> {
    lab: &'a Lab,
    rng: StdRng,
    /// Every session there is, and every run.
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
        let run = NewRun { budget, ..self.lab.new_run(session) };
        self.runs.push(run.id);
        self.lab.store.submit(run).await?;
        Ok(())
    }

    async fn claim(&mut self) -> Result<()> {
        let session = *self.sessions.choose(&mut self.rng).context("no session")?;
        let worker = *self.workers.choose(&mut self.rng).context("no worker")?;
        if let Claim::Granted(grant) = self.lab.claim(session, worker).await? {
            self.grants.push(*grant);
        }
        Ok(())
    }

    /// Something that an owner writes, mostly of what it owns.
    async fn commit(&mut self) -> Result<()> {
        if self.grants.is_empty() {
            return Ok(());
        }
        let at = self.rng.random_range(0..self.grants.len());
        let grant = self.grants[at].clone();
        let commit = self.some_commit(&grant).await?;
        let (made, asked) = (commit.children.clone(), commit.approvals.clone());
        let goes_on = matches!(commit.then, Then::Continue);
        match self.lab.store.commit(commit).await {
            Ok(committed) => {
                self.sessions.extend(made.iter().map(|child| child.session));
                self.runs.extend(made.iter().map(|child| child.run));
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
                making(grant, &children)
            }
            3..6 => {
                let own = self.children_of(grant.run.id).await?;
                let most = u32::try_from(own.len())?;
                let needed = self.rng.random_range(0..=most).max(1);
                let parking = Parking { children: own, needed, ..Parking::on(ParkReason::Children) };
                Commit::new(grant.fence, grant.run.id, Then::Park(parking))
            }
            6 => asking(grant, &[question(None), question(Some(std::time::Duration::from_millis(1)))]),
            7 => {
                let step = StepId::new();
                let amount = Amount { tokens: 100, micros: 0 };
                // Under an old fence this is refused, and the commit finds the same out.
                drop(self.lab.store.reserve(grant.fence, grant.run.id, step, amount).await);
                let usage = remuda_domain::model::Usage { input_tokens: 60, ..Default::default() };
                let spent = vec![remuda_domain::budget::Spent { step, usage, micros: 0 }];
                Commit { spent, ..Commit::new(grant.fence, grant.run.id, Then::Continue) }
            }
            8 => Commit::new(grant.fence, grant.run.id, Then::HandOver),
            _ => completed(grant),
        })
    }

    async fn children_of(&self, parent: RunId) -> Result<Vec<RunId>> {
        let mut children = Vec::new();
        for run in &self.runs {
            if self.lab.run(*run).await?.parent == Some(parent) {
                children.push(*run);
            }
        }
        Ok(children)
    }

    /// What a worker does after a commit; every other time it dies before it can.
    async fn tell(&mut self, grant: &Grant, committed: Committed) -> Result<()> {
        self.grants.extend(committed.next.map(|next| *next));
        if self.rng.random_bool(0.5) {
            return Ok(());
        }
        if committed.has_children {
            self.lab.store.cancel_children(self.lab.tenant, grant.run.id, "over").await?;
        }
        if let Some(parent) = committed.parent {
            self.lab.store.settle_parked(self.lab.tenant, parent).await?;
        }
        Ok(())
    }

    async fn decide(&mut self) -> Result<()> {
        let Some(approval) = self.approvals.choose(&mut self.rng) else { return Ok(()) };
        match self.lab.store.decide(&self.lab.anna(), *approval, &yes()).await {
            Err(error) if !matches!(error.code(), Code::ApprovalDecided | Code::ApprovalExpired) => {
                Err(error.into())
            }
            _ => Ok(()),
        }
    }

    async fn cancel(&mut self) -> Result<()> {
        let run = *self.runs.choose(&mut self.rng).context("no run")?;
        self.lab.store.request_cancel(self.lab.tenant, run, "random").await?;
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        let Some(grant) = self.grants.choose(&mut self.rng) else { return Ok(()) };
        match self.lab.store.release(grant.fence).await {
            Err(error) if error.code() != Code::OwnershipLost => Err(error.into()),
            _ => Ok(()),
        }
    }

    async fn lose_a_worker(&mut self) -> Result<()> {
        let at = self.rng.random_range(0..self.workers.len());
        self.lab.store.retire_worker(self.workers.swap_remove(at)).await?;
        self.workers.push(self.lab.worker(LONG_LEASE).await?);
        Ok(())
    }

    async fn sweep(&self) -> Result<()> {
        let store = &self.lab.store;
        store.take_back(100).await?;
        store.expire_approvals(100).await?;
        store.stop_orphans(None, 100).await?;
        store.resume_ready(None, 100).await?;
        Ok(())
    }

    /// Nobody begins anything new, and workers and the reconciler do what they have to. Everything ends.
    async fn come_to_an_end(&mut self) -> Result<()> {
        for worker in std::mem::take(&mut self.workers) {
            self.lab.store.retire_worker(worker).await?;
        }
        let worker = self.lab.worker(LONG_LEASE).await?;
        for _ in 0..100 {
            self.sweep().await?;
            for approval in std::mem::take(&mut self.approvals) {
                drop(self.lab.store.decide(&self.lab.anna(), approval, &yes()).await);
            }
            for session in self.sessions.clone() {
                while let Claim::Granted(grant) = self.lab.claim(session, worker).await? {
                    let state =
                        if grant.run.cancel.is_some() { RunState::Cancelled } else { RunState::Completed };
                    self.lab.store.commit(crate::lab::ending(&grant, state)).await?;
                    // What comes next is claimed again, which is no harm.
                }
            }
            let mut live = 0;
            for run in &self.runs {
                live += usize::from(!self.lab.state(*run).await?.is_terminal());
            }
            if live == 0 {
                return Ok(());
            }
        }
        anyhow::bail!("some runs never end")
    }

    async fn check(&self) -> Result<()> {
        for session in &self.sessions {
            self.lab.check(*session).await?;
        }
        Ok(())
    }
}

pub(crate) async fn random_trees_come_to_an_end(lab: &Lab) -> Result<()> {
    for seed in SEEDS {
        let limit = remuda_domain::budget::Limit { tokens: Some(2000), micros: None };
        let root = NewSession { budget: Some(limit), ..lab.new_session(None) };
        lab.store.create_session(&root).await?;
        let workers = vec![lab.worker(LONG_LEASE).await?, lab.worker(LONG_LEASE).await?];
        let rng = StdRng::seed_from_u64(seed);
        let (runs, approvals, grants) = (Vec::new(), Vec::new(), Vec::new());
        let mut world = World { lab, rng, sessions: vec![root.id], runs, approvals, grants, workers };
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
            ensure!(count(lab, left).await? == 0, "seed {seed}: something is left: {left}");
        }
        // What was counted for runs is what their budget knows.
        let (_, tree) = lab.store.session_totals(lab.tenant, root.id).await?;
        let budget = lab.look(root.id).await?.budget.context("no budget")?;
        ensure!(budget.spent.tokens == tree.usage.input_tokens, "{budget:?} against {tree:?}");
    }
    Ok(())
}
