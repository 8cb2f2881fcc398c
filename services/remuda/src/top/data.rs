//! The server's overview as sorted rows and rates. No I/O and no drawing.

use std::{collections::VecDeque, time::Duration};

use remuda_domain::Timestamp;
use remuda_proto::{convert::from_timestamp, v1};

/// Window of the rates. Processes store their counters only every few seconds.
const WINDOW: Duration = Duration::from_secs(15);

/// Runs per second; tokens and dollars per minute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rates {
    pub(crate) submitted: f64,
    pub(crate) completed: f64,
    pub(crate) failed: f64,
    pub(crate) cancelled: f64,
    pub(crate) timed_out: f64,
    pub(crate) tokens: f64,
    pub(crate) dollars: f64,
}

/// Counter samples of the window.
#[derive(Clone, Debug, Default)]
pub(crate) struct History(VecDeque<(Timestamp, v1::Counts)>);

impl History {
    /// Adds a sample, unless it is not newer than the last one: the server caches its overview.
    pub(crate) fn push(&mut self, overview: &v1::GetOverviewResponse) {
        let at = overview.at.as_ref().and_then(from_timestamp);
        let (Some(at), Some(counts)) = (at, overview.counts) else { return };
        let newest = self.0.back();
        // Another control plane may answer with an older overview.
        if newest.is_some_and(|(newest, _)| at <= *newest) {
            return;
        }
        if newest.is_some_and(|(_, newest)| counts.submitted < newest.submitted) {
            // Another installation answers at this address.
            self.0.clear();
        }
        self.0.push_back((at, counts));
        while self.0.get(1).is_some_and(|(second, _)| (at - *second).to_std().is_ok_and(|age| age >= WINDOW))
        {
            self.0.pop_front();
        }
    }

    /// The rates; `None` with fewer than two samples.
    pub(crate) fn rates(&self) -> Option<Rates> {
        let ((from, old), (until, new)) = (self.0.front()?, self.0.back()?);
        let seconds = (*until - *from).to_std().ok().filter(|span| !span.is_zero())?.as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a rate need not be exact")]
        let rate = |count: fn(&v1::Counts) -> u64| count(new).saturating_sub(count(old)) as f64 / seconds;
        Some(Rates {
            submitted: rate(|counts| counts.submitted),
            completed: rate(|counts| counts.completed),
            failed: rate(|counts| counts.failed),
            cancelled: rate(|counts| counts.cancelled),
            timed_out: rate(|counts| counts.timed_out),
            tokens: 60.0 * rate(|counts| counts.input_tokens + counts.output_tokens),
            dollars: 60.0 * rate(|counts| counts.cost_micros) / 1_000_000.0,
        })
    }
}

/// The lists of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Panel {
    Pools,
    Workers,
    Running,
    Waiting,
}

impl Panel {
    pub(crate) const ALL: [Self; 4] = [Self::Pools, Self::Workers, Self::Running, Self::Waiting];

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Pools => "POOLS",
            Self::Workers => "WORKERS",
            Self::Running => "SLOWEST RUNS",
            Self::Waiting => "LONGEST WAITING",
        }
    }

    /// The possible sort orders; the first is the default.
    pub(crate) const fn orders(self) -> &'static [Order] {
        match self {
            Self::Pools => &[Order::Name, Order::Runnable],
            Self::Workers => &[Order::Pool, Order::Busy, Order::Name],
            Self::Running => &[Order::Time, Order::Cost, Order::Name],
            Self::Waiting => &[Order::Time, Order::Position, Order::Name],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Name,
    Pool,
    Runnable,
    Busy,
    Time,
    Cost,
    Position,
}

impl Order {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Pool => "pool",
            Self::Runnable => "runnable",
            Self::Busy => "busy",
            Self::Time => "time",
            Self::Cost => "cost",
            Self::Position => "position",
        }
    }
}

/// A response of the server, with access to sorted and filtered rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overview(pub(crate) v1::GetOverviewResponse);

impl Overview {
    /// The time of the server.
    pub(crate) fn now(&self) -> Timestamp {
        self.0.now.as_ref().and_then(from_timestamp).unwrap_or_default()
    }

    fn since(&self, at: Timestamp) -> Duration {
        (self.now() - at).to_std().unwrap_or_default()
    }

    /// Waiting time of the oldest runnable session of a pool.
    pub(crate) fn oldest(&self, stats: &v1::PoolStats) -> Option<Duration> {
        stats.oldest_runnable_at.as_ref().and_then(from_timestamp).map(|at| self.since(at))
    }

    /// How long a run has been executing or waiting.
    pub(crate) fn age(&self, run: &v1::RunGlance) -> Duration {
        run.since.as_ref().and_then(from_timestamp).map(|at| self.since(at)).unwrap_or_default()
    }

    /// How long a step has been running; `None` if it is finished.
    pub(crate) fn step_age(&self, step: &v1::StepGlance) -> Option<Duration> {
        let unfinished = step.started_at.as_ref().filter(|_| step.finished_at.is_none());
        unfinished.and_then(from_timestamp).map(|at| self.since(at))
    }

    /// The remaining time of a worker's lease.
    pub(crate) fn lease(&self, worker: &v1::Worker) -> Duration {
        let until = worker.lease_until.as_ref().and_then(from_timestamp);
        until.and_then(|until| (until - self.now()).to_std().ok()).unwrap_or_default()
    }

    pub(crate) fn pools(&self, order: Order, filter: &str) -> Vec<&v1::PoolOverview> {
        let stats = |pool: &v1::PoolOverview| pool.stats.clone().unwrap_or_default();
        let mut pools: Vec<_> =
            self.0.pools.iter().filter(|it| matches(filter, &[&stats(it).pool])).collect();
        if order == Order::Runnable {
            pools.sort_by_key(|pool| std::cmp::Reverse(stats(pool).runnable_sessions));
        }
        pools
    }

    pub(crate) fn workers(&self, order: Order, filter: &str) -> Vec<&v1::Worker> {
        let matches_filter = |it: &&v1::Worker| matches(filter, &[&it.id, &it.host, &it.pool, &it.state]);
        let mut workers: Vec<_> = self.0.workers.iter().filter(matches_filter).collect();
        match order {
            Order::Busy => workers.sort_by_key(|worker| std::cmp::Reverse(worker.busy)),
            Order::Name => workers.sort_by(|a, b| a.host.cmp(&b.host)),
            _ => {}
        }
        workers
    }

    /// The rows of the panel of running or waiting runs.
    pub(crate) fn runs(&self, panel: Panel, order: Order, filter: &str) -> Vec<&v1::RunGlance> {
        let all = if panel == Panel::Running { &self.0.running } else { &self.0.waiting };
        let matches_filter = |it: &&v1::RunGlance| {
            let worker = self.worker_host(&it.worker_id);
            matches(
                filter,
                &[&it.run_id, &it.session_id, &it.session_name, &it.agent, &it.reason, &it.pool, worker],
            )
        };
        let mut runs: Vec<_> = all.iter().filter(matches_filter).collect();
        match order {
            Order::Cost => runs.sort_by_key(|run| std::cmp::Reverse((run.cost_micros, run.tokens))),
            Order::Position => runs.sort_by_key(|run| run.position),
            Order::Name => runs.sort_by_key(|run| (session_label(run), run.position)),
            _ => {}
        }
        runs
    }

    /// The keys of a panel's rows: ids of runs or workers, names of pools.
    pub(crate) fn keys(&self, panel: Panel, order: Order, filter: &str) -> Vec<String> {
        match panel {
            Panel::Pools => {
                let name = |pool: &v1::PoolOverview| pool.stats.as_ref().map(|stats| stats.pool.clone());
                self.pools(order, filter).into_iter().filter_map(name).collect()
            }
            Panel::Workers => self.workers(order, filter).iter().map(|worker| worker.id.clone()).collect(),
            Panel::Running | Panel::Waiting => {
                self.runs(panel, order, filter).iter().map(|run| run.run_id.clone()).collect()
            }
        }
    }

    /// The host of a worker, or its id if the worker is not listed.
    pub(crate) fn worker_host<'a>(&'a self, worker: &'a str) -> &'a str {
        self.0.workers.iter().find(|it| it.id == worker).map_or(worker, |it| it.host.as_str())
    }
}

/// A session's name, or the end of its id if it has no name.
pub(crate) fn session_label(run: &v1::RunGlance) -> String {
    if run.session_name.is_empty() { short(&run.session_id) } else { run.session_name.clone() }
}

/// The end of an id, which differs between ids created at the same time.
pub(crate) fn short(id: &str) -> String {
    let tail = id.char_indices().rev().nth(5).map_or(id, |(at, _)| &id[at..]);
    if tail.len() == id.len() { id.to_owned() } else { format!("…{tail}") }
}

fn matches(filter: &str, texts: &[&str]) -> bool {
    let filter = filter.to_lowercase();
    texts.iter().any(|text| text.to_lowercase().contains(&filter))
}

#[cfg(test)]
#[path = "data_tests.rs"]
mod tests;
