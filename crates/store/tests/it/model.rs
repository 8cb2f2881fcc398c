//! Random histories, checked against a small model of the store.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use remuda_domain::{Code, RunId, RunState, SessionId, StepId, WorkerId, limits::MAX_LOST_ATTEMPTS};
use remuda_store::{Claim, Grant};

use crate::fixture::{Fixture, LONG_LEASE, completed, completed_with_release, progress, step};

const STEPS: usize = 300;
const SEEDS: [u64; 3] = [1, 20_261, 0xfeed];

#[derive(Clone, Debug)]
struct RunModel {
    id: RunId,
    state: RunState,
    cancel: bool,
    attempt: u32,
    lost: u32,
    steps: Vec<StepId>,
}

/// The model of a session.
#[derive(Debug)]
struct SessionModel {
    id: SessionId,
    runs: Vec<RunModel>,
    owner: Option<WorkerId>,
    epoch: i64,
    current: Option<usize>,
    cursor: i64,
    /// Every grant so far, for writes of stale owners.
    grants: Vec<Grant>,
}

impl SessionModel {
    fn head(&self) -> Option<usize> {
        self.runs.iter().position(|run| !run.state.is_terminal())
    }

    /// Starts the head run. A run that the owner already has is not a new attempt.
    fn start(&mut self) -> Option<usize> {
        let head = self.head()?;
        self.runs[head].attempt += u32::from(self.current != Some(head));
        self.current = Some(head);
        self.runs[head].state = RunState::Running;
        Some(head)
    }

    /// Ends the ownership. Appends one event, and another if the run ends.
    fn end_ownership(&mut self, lost: u32) {
        self.owner = None;
        let Some(current) = self.current.take() else { return };
        let run = &mut self.runs[current];
        run.lost += lost;
        run.state = match (run.cancel, run.lost >= MAX_LOST_ATTEMPTS) {
            (true, _) => RunState::Cancelled,
            (false, true) => RunState::Failed,
            (false, false) => RunState::Queued,
        };
        self.cursor += 1 + i64::from(run.state.is_terminal());
    }

    /// The current run, if the grant is still valid.
    fn valid(&self, grant: &Grant) -> Option<usize> {
        let owns = self.owner == Some(grant.fence.worker) && self.epoch == grant.fence.epoch;
        self.current.filter(|current| owns && self.runs[*current].id == grant.run.id)
    }

    fn remember(&mut self, grant: &Grant, expected: usize) -> Result<()> {
        let run = &self.runs[expected];
        ensure!(grant.run.id == run.id, "granted {}, expected {}", grant.run.id, run.id);
        ensure!(grant.run.attempt == run.attempt, "attempt {} of {run:?}", grant.run.attempt);
        ensure!(grant.run.cancel.is_some() == run.cancel, "cancel of {run:?}");
        let steps: Vec<_> = grant.steps.iter().map(|step| step.id).collect();
        ensure!(steps == run.steps, "steps {steps:?} of {run:?}");
        self.grants.push(grant.clone());
        Ok(())
    }
}

struct Simulation<'a> {
    fixture: &'a Fixture,
    rng: StdRng,
    sessions: Vec<SessionModel>,
    workers: Vec<WorkerId>,
}

impl Simulation<'_> {
    async fn act(&mut self) -> Result<usize> {
        let at = self.rng.random_range(0..self.sessions.len());
        match self.rng.random_range(0..100) {
            0..25 => self.submit(at).await?,
            25..50 => self.claim(at).await?,
            50..65 => self.progress(at).await?,
            65..82 => self.end(at).await?,
            82..90 => self.cancel(at).await?,
            90..94 => self.release(at).await?,
            94..96 => self.reclaim_sessions().await?,
            _ => self.lose_a_worker().await?,
        }
        Ok(at)
    }

    async fn submit(&mut self, at: usize) -> Result<()> {
        let submitted = self.fixture.submit(self.sessions[at].id).await?;
        let session = &mut self.sessions[at];
        session.runs.push(RunModel {
            id: submitted.run.id,
            state: RunState::Queued,
            cancel: false,
            attempt: 0,
            lost: 0,
            steps: Vec::new(),
        });
        session.cursor += 1;
        ensure!(submitted.run.seq == i64::try_from(session.runs.len())?, "wrong sequence number");
        ensure!(submitted.change.wake == session.owner.is_none(), "wrong wake flag");
        Ok(())
    }

    async fn claim(&mut self, at: usize) -> Result<()> {
        let worker = *self.workers.choose(&mut self.rng).context("no worker")?;
        let claim = self.fixture.claim(self.sessions[at].id, worker).await?;
        let alive = self.sessions[at].owner.filter(|owner| self.workers.contains(owner));
        let session = &mut self.sessions[at];
        match claim {
            Claim::Refused { owner, .. } => {
                ensure!(alive == Some(owner) && owner != worker, "refused for {owner}, alive is {alive:?}");
            }
            Claim::NothingToDo => ensure!(session.head().is_none(), "a run is queued"),
            Claim::OtherPool => anyhow::bail!("all sessions and workers are in one pool"),
            Claim::Reclaimed(change) => {
                ensure!(session.owner.is_some() && alive.is_none(), "reclaimed from {:?}", session.owner);
                session.end_ownership(1);
                ensure!(change.wake == session.head().is_some(), "wrong wake flag");
            }
            Claim::Granted(grant) => {
                ensure!(alive.is_none_or(|owner| owner == worker), "granted although {alive:?} is alive");
                session.owner = Some(worker);
                session.epoch += 1;
                let head = session.start().context("granted without a run")?;
                session.remember(&grant, head)?;
            }
        }
        Ok(())
    }

    /// A random earlier grant, mostly the newest.
    fn some_grant(&mut self, at: usize) -> Option<Grant> {
        let grants = &self.sessions[at].grants;
        if self.rng.random_bool(0.8) { grants.last().cloned() } else { grants.choose(&mut self.rng).cloned() }
    }

    async fn progress(&mut self, at: usize) -> Result<()> {
        let Some(grant) = self.some_grant(at) else { return Ok(()) };
        let session = &mut self.sessions[at];
        let valid = session.valid(&grant);
        let index = valid.map_or(0, |run| session.runs[run].steps.len());
        let new = step(&grant, u32::try_from(index)?);
        match (self.fixture.store.commit(progress(&grant, vec![new.clone()])).await, valid) {
            (Ok(_), Some(run)) => {
                session.runs[run].steps.push(new.id);
                session.cursor += 1;
                Ok(())
            }
            (Err(error), None) if error.code() == Code::OwnershipLost => Ok(()),
            (outcome, valid) => anyhow::bail!("{outcome:?} for {valid:?}"),
        }
    }

    async fn end(&mut self, at: usize) -> Result<()> {
        let Some(grant) = self.some_grant(at) else { return Ok(()) };
        let give_up = self.rng.random_bool(0.2);
        let commit = if give_up { completed_with_release(&grant) } else { completed(&grant) };
        let session = &mut self.sessions[at];
        let committed = match (self.fixture.store.commit(commit).await, session.valid(&grant)) {
            (Ok(committed), Some(run)) => {
                session.runs[run].state = RunState::Completed;
                committed
            }
            (Err(error), None) if error.code() == Code::OwnershipLost => return Ok(()),
            (outcome, valid) => anyhow::bail!("{outcome:?} for {valid:?}"),
        };
        session.cursor += 1;
        session.current = None;
        let next = if give_up { None } else { session.start() };
        ensure!(committed.released == next.is_none(), "released: {committed:?}");
        match (committed.next, next) {
            (Some(grant), Some(run)) => session.remember(&grant, run),
            (None, None) => {
                session.owner = None;
                Ok(())
            }
            (got, expected) => anyhow::bail!("next is {got:?}, expected {expected:?}"),
        }
    }

    async fn cancel(&mut self, at: usize) -> Result<()> {
        let session = &mut self.sessions[at];
        if session.runs.is_empty() {
            return Ok(());
        }
        let index = self.rng.random_range(session.runs.len().saturating_sub(4)..session.runs.len());
        let executing = session.current == Some(index) && session.owner.is_some();
        let alive = session.owner.is_some_and(|owner| self.workers.contains(&owner));
        let run = &mut session.runs[index];
        let cancelled = self.fixture.store.request_cancel(self.fixture.tenant, run.id, "model").await?;
        ensure!(cancelled.already_finished == run.state.is_terminal(), "already finished: {run:?}");
        if run.state.is_terminal() {
            ensure!(cancelled.change.events.is_empty(), "events of a finished run");
        } else if executing {
            ensure!(cancelled.signal == session.owner.filter(|_| alive), "signal {:?}", cancelled.signal);
            session.cursor += i64::from(!run.cancel);
            run.cancel = true;
            if !alive {
                session.end_ownership(1);
            }
        } else {
            session.cursor += 1;
            run.cancel = true;
            run.state = RunState::Cancelled;
            session.current = session.current.filter(|current| *current != index);
        }
        Ok(())
    }

    async fn release(&mut self, at: usize) -> Result<()> {
        let Some(grant) = self.some_grant(at) else { return Ok(()) };
        let session = &mut self.sessions[at];
        let owns = session.owner == Some(grant.fence.worker) && session.epoch == grant.fence.epoch;
        match self.fixture.store.release(grant.fence).await {
            Ok(_) if owns => session.end_ownership(0),
            Err(error) if !owns && error.code() == Code::OwnershipLost => {}
            outcome => anyhow::bail!("{outcome:?}, owns: {owns}"),
        }
        Ok(())
    }

    async fn reclaim_sessions(&mut self) -> Result<()> {
        let reclaimed = self.fixture.store.reclaim_sessions(10).await?;
        for session in &mut self.sessions {
            if session.owner.is_some_and(|owner| !self.workers.contains(&owner)) {
                session.end_ownership(1);
                let change = reclaimed.changes.iter().find(|change| change.session == session.id);
                ensure!(
                    change.is_some_and(|it| it.wake == session.head().is_some()),
                    "{reclaimed:?} for {session:?}"
                );
            }
        }
        Ok(())
    }

    /// Ends a lease: mostly by retiring, sometimes by expiry. The worker stays recorded as owner.
    async fn lose_a_worker(&mut self) -> Result<()> {
        let at = self.rng.random_range(0..self.workers.len());
        let worker = self.workers.swap_remove(at);
        if self.rng.random_bool(0.1) {
            let lease = Duration::from_millis(1);
            let beat = remuda_store::Heartbeat { worker, lease, running: Vec::new(), worked: Vec::new() };
            self.fixture.store.renew_lease(&beat).await?;
            self.fixture.wait_for_lease_expiry(worker).await;
        } else {
            self.fixture.store.retire_worker(worker).await?;
        }
        self.workers.push(self.fixture.worker(LONG_LEASE).await?);
        Ok(())
    }

    /// Checks that the store agrees with the model and that the invariants hold.
    async fn check(&self, at: usize) -> Result<()> {
        let session = &self.sessions[at];
        self.fixture.check(session.id).await?;
        let seen = self.fixture.get_session(session.id).await?;
        let current = session.current.map(|run| session.runs[run].id);
        ensure!((seen.owner, seen.epoch) == (session.owner, session.epoch), "{seen:?} against {session:?}");
        ensure!(
            (seen.current, seen.last_cursor) == (current, session.cursor),
            "{seen:?} against {session:?}"
        );
        for (run, expected) in self.fixture.runs_of(session.id).await?.iter().zip(&session.runs) {
            ensure!((run.id, run.state) == (expected.id, expected.state), "{run:?} against {expected:?}");
            ensure!(
                (run.attempt, run.lost_attempts) == (expected.attempt, expected.lost),
                "{run:?} against {expected:?}"
            );
            ensure!(run.cancel.is_some() == expected.cancel, "{run:?} against {expected:?}");
        }
        let alive = session.owner.is_some_and(|owner| self.workers.contains(&owner));
        let runnable = self.fixture.store.is_runnable(self.fixture.tenant, session.id).await?;
        ensure!(runnable == (session.head().is_some() && !alive), "runnable: {runnable}, {session:?}");
        Ok(())
    }
}

pub(crate) async fn random_histories_keep_the_invariants(fixture: &Fixture) -> Result<()> {
    for seed in SEEDS {
        let mut sessions = Vec::new();
        for _ in 0..3 {
            sessions.push(SessionModel {
                id: fixture.session().await?,
                runs: Vec::new(),
                owner: None,
                epoch: 0,
                current: None,
                cursor: 1,
                grants: Vec::new(),
            });
        }
        let mut workers = Vec::new();
        for _ in 0..3 {
            workers.push(fixture.worker(LONG_LEASE).await?);
        }
        let mut world = Simulation { fixture, rng: StdRng::seed_from_u64(seed), sessions, workers };
        for number in 0..STEPS {
            let context = || format!("seed {seed}, step {number}");
            let at = world.act().await.with_context(context)?;
            world.check(at).await.with_context(context)?;
        }
    }
    Ok(())
}
