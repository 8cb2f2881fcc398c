//! Random histories against a model that fits on a page.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use remuda_domain::{Code, RunId, RunState, SessionId, StepId, WorkerId, limits::MAX_LOST_ATTEMPTS};
use remuda_store::{Claim, Grant};

use crate::lab::{LONG_LEASE, Lab, completed, giving_up, progress, step};

const STEPS: usize = 300;
const SEEDS: [u64; 3] = [1, 20_261, 0xfeed];

#[derive(Clone, Debug)]
struct Run {
    id: RunId,
    state: RunState,
    cancel: bool,
    attempt: u32,
    lost: u32,
    steps: Vec<StepId>,
}

/// What the model knows of a session.
#[derive(Debug)]
struct Line {
    id: SessionId,
    runs: Vec<Run>,
    owner: Option<WorkerId>,
    epoch: i64,
    current: Option<usize>,
    cursor: i64,
    /// Every grant there ever was, as stale owners would show it.
    grants: Vec<Grant>,
}

impl Line {
    fn head(&self) -> Option<usize> {
        self.runs.iter().position(|run| !run.state.is_terminal())
    }

    /// Hands the head run to the owner. What it has already is no new attempt.
    fn start(&mut self) -> Option<usize> {
        let head = self.head()?;
        self.runs[head].attempt += u32::from(self.current != Some(head));
        self.current = Some(head);
        self.runs[head].state = RunState::Running;
        Some(head)
    }

    /// Nobody owns it any more. One event says so, another if the run ends by it.
    fn part(&mut self, lost: u32) {
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

    /// The current run, if the grant is the valid one.
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

struct World<'a> {
    lab: &'a Lab,
    rng: StdRng,
    lines: Vec<Line>,
    workers: Vec<WorkerId>,
}

impl World<'_> {
    async fn act(&mut self) -> Result<usize> {
        let at = self.rng.random_range(0..self.lines.len());
        match self.rng.random_range(0..100) {
            0..25 => self.submit(at).await?,
            25..50 => self.claim(at).await?,
            50..65 => self.progress(at).await?,
            65..82 => self.end(at).await?,
            82..90 => self.cancel(at).await?,
            90..94 => self.release(at).await?,
            94..96 => self.take_back().await?,
            _ => self.lose_a_worker().await?,
        }
        Ok(at)
    }

    async fn submit(&mut self, at: usize) -> Result<()> {
        let submitted = self.lab.submit(self.lines[at].id).await?;
        let line = &mut self.lines[at];
        line.runs.push(Run {
            id: submitted.run.id,
            state: RunState::Queued,
            cancel: false,
            attempt: 0,
            lost: 0,
            steps: Vec::new(),
        });
        line.cursor += 1;
        ensure!(submitted.run.seq == i64::try_from(line.runs.len())?, "the place in line");
        ensure!(submitted.wake == line.owner.is_none(), "whether to wake");
        Ok(())
    }

    async fn claim(&mut self, at: usize) -> Result<()> {
        let worker = *self.workers.choose(&mut self.rng).context("no worker")?;
        let claim = self.lab.claim(self.lines[at].id, worker).await?;
        let alive = self.lines[at].owner.filter(|owner| self.workers.contains(owner));
        let line = &mut self.lines[at];
        match claim {
            Claim::Refused { owner, .. } => {
                ensure!(alive == Some(owner) && owner != worker, "refused for {owner}, alive is {alive:?}");
            }
            Claim::NothingToDo => ensure!(line.head().is_none(), "a run waits"),
            Claim::TakenBack(change) => {
                ensure!(line.owner.is_some() && alive.is_none(), "taken back from {:?}", line.owner);
                line.part(1);
                ensure!(change.wake == line.head().is_some(), "whether to wake");
            }
            Claim::Granted(grant) => {
                ensure!(alive.is_none_or(|owner| owner == worker), "overruled {alive:?}");
                line.owner = Some(worker);
                line.epoch += 1;
                let head = line.start().context("granted without a run")?;
                line.remember(&grant, head)?;
            }
        }
        Ok(())
    }

    /// A grant of the past, mostly the newest.
    fn some_grant(&mut self, at: usize) -> Option<Grant> {
        let grants = &self.lines[at].grants;
        if self.rng.random_bool(0.8) { grants.last().cloned() } else { grants.choose(&mut self.rng).cloned() }
    }

    async fn progress(&mut self, at: usize) -> Result<()> {
        let Some(grant) = self.some_grant(at) else { return Ok(()) };
        let line = &mut self.lines[at];
        let valid = line.valid(&grant);
        let index = valid.map_or(0, |run| line.runs[run].steps.len());
        let new = step(&grant, u32::try_from(index)?);
        match (self.lab.store.commit(progress(&grant, vec![new.clone()])).await, valid) {
            (Ok(_), Some(run)) => {
                line.runs[run].steps.push(new.id);
                line.cursor += 1;
                Ok(())
            }
            (Err(error), None) if error.code() == Code::OwnershipLost => Ok(()),
            (outcome, valid) => anyhow::bail!("{outcome:?} for {valid:?}"),
        }
    }

    async fn end(&mut self, at: usize) -> Result<()> {
        let Some(grant) = self.some_grant(at) else { return Ok(()) };
        let give_up = self.rng.random_bool(0.2);
        let commit = if give_up { giving_up(&grant) } else { completed(&grant) };
        let line = &mut self.lines[at];
        let committed = match (self.lab.store.commit(commit).await, line.valid(&grant)) {
            (Ok(committed), Some(run)) => {
                line.runs[run].state = RunState::Completed;
                committed
            }
            (Err(error), None) if error.code() == Code::OwnershipLost => return Ok(()),
            (outcome, valid) => anyhow::bail!("{outcome:?} for {valid:?}"),
        };
        line.cursor += 1;
        line.current = None;
        let next = if give_up { None } else { line.start() };
        ensure!(committed.released == next.is_none(), "released: {committed:?}");
        match (committed.next, next) {
            (Some(grant), Some(run)) => line.remember(&grant, run),
            (None, None) => {
                line.owner = None;
                Ok(())
            }
            (got, expected) => anyhow::bail!("next is {got:?}, expected {expected:?}"),
        }
    }

    async fn cancel(&mut self, at: usize) -> Result<()> {
        let line = &mut self.lines[at];
        if line.runs.is_empty() {
            return Ok(());
        }
        let index = self.rng.random_range(line.runs.len().saturating_sub(4)..line.runs.len());
        let executing = line.current == Some(index) && line.owner.is_some();
        let alive = line.owner.is_some_and(|owner| self.workers.contains(&owner));
        let run = &mut line.runs[index];
        let cancelled = self.lab.store.request_cancel(self.lab.tenant, run.id, "model").await?;
        ensure!(cancelled.already_finished == run.state.is_terminal(), "already finished: {run:?}");
        if run.state.is_terminal() {
            ensure!(cancelled.change.events.is_empty(), "events of a finished run");
        } else if executing {
            ensure!(cancelled.signal == line.owner.filter(|_| alive), "signal {:?}", cancelled.signal);
            line.cursor += i64::from(!run.cancel);
            run.cancel = true;
            if !alive {
                line.part(1);
            }
        } else {
            line.cursor += 1;
            run.cancel = true;
            run.state = RunState::Cancelled;
            line.current = line.current.filter(|current| *current != index);
        }
        Ok(())
    }

    async fn release(&mut self, at: usize) -> Result<()> {
        let Some(grant) = self.some_grant(at) else { return Ok(()) };
        let line = &mut self.lines[at];
        let owns = line.owner == Some(grant.fence.worker) && line.epoch == grant.fence.epoch;
        match self.lab.store.release(grant.fence).await {
            Ok(_) if owns => line.part(0),
            Err(error) if !owns && error.code() == Code::OwnershipLost => {}
            outcome => anyhow::bail!("{outcome:?}, owns: {owns}"),
        }
        Ok(())
    }

    async fn take_back(&mut self) -> Result<()> {
        let taken = self.lab.store.take_back(10).await?;
        for line in &mut self.lines {
            if line.owner.is_some_and(|owner| !self.workers.contains(&owner)) {
                line.part(1);
                let change = taken.changes.iter().find(|change| change.session == line.id);
                ensure!(change.is_some_and(|it| it.wake == line.head().is_some()), "{taken:?} for {line:?}");
            }
        }
        Ok(())
    }

    /// Ends a lease: mostly at once, sometimes by time. What the worker owned stays recorded as its own.
    async fn lose_a_worker(&mut self) -> Result<()> {
        let at = self.rng.random_range(0..self.workers.len());
        let worker = self.workers.swap_remove(at);
        if self.rng.random_bool(0.1) {
            let lease = Duration::from_millis(1);
            let beat = remuda_store::Heartbeat { worker, lease, running: Vec::new() };
            self.lab.store.renew_lease(&beat).await?;
            self.lab.outlive(worker).await;
        } else {
            self.lab.store.retire_worker(worker).await?;
        }
        self.workers.push(self.lab.worker(LONG_LEASE).await?);
        Ok(())
    }

    /// The store and the model agree, and the invariants hold.
    async fn check(&self, at: usize) -> Result<()> {
        let line = &self.lines[at];
        self.lab.check(line.id).await?;
        let seen = self.lab.look(line.id).await?;
        let current = line.current.map(|run| line.runs[run].id);
        ensure!((seen.owner, seen.epoch) == (line.owner, line.epoch), "{seen:?} against {line:?}");
        ensure!((seen.current, seen.last_cursor) == (current, line.cursor), "{seen:?} against {line:?}");
        for (run, expected) in self.lab.runs_of(line.id).await?.iter().zip(&line.runs) {
            ensure!((run.id, run.state) == (expected.id, expected.state), "{run:?} against {expected:?}");
            ensure!(
                (run.attempt, run.lost_attempts) == (expected.attempt, expected.lost),
                "{run:?} against {expected:?}"
            );
            ensure!(run.cancel.is_some() == expected.cancel, "{run:?} against {expected:?}");
        }
        let alive = line.owner.is_some_and(|owner| self.workers.contains(&owner));
        let runnable = self.lab.store.is_runnable(self.lab.tenant, line.id).await?;
        ensure!(runnable == (line.head().is_some() && !alive), "runnable: {runnable}, {line:?}");
        Ok(())
    }
}

pub(crate) async fn random_histories_keep_the_invariants(lab: &Lab) -> Result<()> {
    for seed in SEEDS {
        let mut lines = Vec::new();
        for _ in 0..3 {
            lines.push(Line {
                id: lab.session().await?,
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
            workers.push(lab.worker(LONG_LEASE).await?);
        }
        let mut world = World { lab, rng: StdRng::seed_from_u64(seed), lines, workers };
        for number in 0..STEPS {
            let context = || format!("seed {seed}, step {number}");
            let at = world.act().await.with_context(context)?;
            world.check(at).await.with_context(context)?;
        }
    }
    Ok(())
}
