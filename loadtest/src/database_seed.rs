//! Seeds a database with many sessions and queued runs.
//!
//! Submitting a million runs takes minutes. Instead, one session with one queued run is created through the API, the servers
//! are stopped, and SQL copies its rows with other ids and numbers; all other columns stay the same. The load on the copies
//! and its check go through the API again.

mod database;
mod statements;

use std::time::{Duration, Instant};

use anyhow::Context as _;
use remuda_domain::{RunId, SessionId};
use uuid::Uuid;

pub(crate) use self::database::Database;
use self::statements::{EVENTS, EventTemplate, Statements};
use crate::{
    deployment::Deployment,
    load::{LoadTarget, Sessions, Work},
};

/// A pool without workers.
pub(crate) const IDLE_POOL: &str = "elsewhere";
/// The low bits of a seeded id are a counter. 40 bits are whole digits in base 16 and in base 32.
const COUNTED_BITS: u32 = 40;
/// The limit of rows: counters are written with six digits of base 32.
const MAX_ROWS: u64 = 1 << 30;

/// The sessions and runs to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed {
    pub(crate) sessions: u64,
    /// Queued runs over all sessions. Each session gets the same number, so the total is rounded up.
    pub(crate) queued: u64,
    pub(crate) pool: &'static str,
}

impl Seed {
    /// Queued runs of each session.
    fn runs_per_session(&self) -> u64 {
        self.queued.div_ceil(self.sessions.max(1))
    }
}

/// The created sessions and runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seeded {
    first_session: Uuid,
    first_run: Uuid,
    sessions: u64,
    /// Queued runs of each session.
    runs_per_session: u64,
    pub(crate) took: Duration,
}

impl Seeded {
    pub(crate) fn runs(&self) -> u64 {
        self.sessions * self.runs_per_session
    }

    /// Their ids, computed on demand: a million strings would load the generator.
    pub(crate) fn sessions(&self) -> Sessions {
        Sessions::consecutive(self.first_session, usize::try_from(self.sessions).unwrap_or(usize::MAX))
    }

    /// The first and the last session id.
    pub(crate) fn session_range(&self) -> (Uuid, Uuid) {
        (self.first_session, nth_id(self.first_session, self.sessions.saturating_sub(1)))
    }

    pub(crate) fn run_range(&self) -> (Uuid, Uuid) {
        (self.first_run, nth_id(self.first_run, self.runs().saturating_sub(1)))
    }
}

/// The id with this counter.
pub(crate) fn nth_id(first: Uuid, number: u64) -> Uuid {
    Uuid::from_u128(first.as_u128() + u128::from(number))
}

/// Clears the counter bits of an id.
fn base_id(id: Uuid) -> Uuid {
    Uuid::from_u128(id.as_u128() >> COUNTED_BITS << COUNTED_BITS)
}

/// Seeds the database of a deployment. Its servers are stopped afterwards: [`Deployment::resume`] starts them.
pub(crate) async fn seed_database(
    deployment: &mut Deployment,
    seeds: &[Seed],
) -> anyhow::Result<Vec<Seeded>> {
    for seed in seeds {
        let most = seed.sessions.max(seed.sessions * seed.runs_per_session());
        anyhow::ensure!(seed.sessions > 0 && most < MAX_ROWS, "expected 1 to {MAX_ROWS} sessions and runs");
    }
    let template = create_template(deployment).await?;
    deployment.suspend().await?;
    let mut database = deployment.database().await?;
    let mut seeded = Vec::new();
    for seed in seeds {
        seeded.push(insert_copies(&mut database, &template, seed).await?);
    }
    database.checkpoint().await?;
    database.close().await?;
    Ok(seeded)
}

/// Creates a session of the idle pool with one queued run, and returns both ids.
async fn create_template(deployment: &Deployment) -> anyhow::Result<(SessionId, RunId)> {
    let target = LoadTarget::in_pool(deployment.addresses(), 1, IDLE_POOL).await?;
    let session = target.sessions.id(0);
    let run = target.submit(Work::Noop.request(&session)).await?;
    Ok((session.parse()?, run.parse()?))
}

async fn insert_copies(
    database: &mut Database,
    (session, run): &(SessionId, RunId),
    seed: &Seed,
) -> anyhow::Result<Seeded> {
    let begun = Instant::now();
    let statements = Statements {
        dialect: database.dialect(),
        session: *session,
        run: *run,
        first_session: base_id(SessionId::new().as_uuid()),
        first_run: base_id(RunId::new().as_uuid()),
        sessions: seed.sessions,
        runs_per_session: seed.runs_per_session(),
        pool: seed.pool,
    };
    let session_columns = database.columns("sessions").await?;
    let run_columns = database.columns("runs").await?;
    let mut sql = vec![statements.sessions(&session_columns)];
    for event in EVENTS {
        let chunk = database.text(&statements.chunk(event)).await?;
        let template = EventTemplate::parse(&chunk).context("unexpected events of the template session")?;
        sql.extend(statements.events(event, &template));
    }
    if seed.runs_per_session() > 0 {
        let input = database.text(&statements.input()).await?;
        sql.push(statements.runs(&run_columns, &input)?);
    }
    for statement in sql {
        database.execute(statement).await?;
    }
    Ok(Seeded {
        first_session: statements.first_session,
        first_run: statements.first_run,
        sessions: seed.sessions,
        runs_per_session: seed.runs_per_session(),
        took: begun.elapsed(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_is_in_the_last_digits_of_an_id() {
        let base = base_id(SessionId::new().as_uuid());
        let text = |number| SessionId::from_uuid(nth_id(base, number)).to_string();
        assert!(text(0).ends_with("00000000"), "{}", text(0));
        assert_eq!(text(33).strip_suffix("000011"), text(0).strip_suffix("000000"));
    }

    #[test]
    fn runs_per_session_are_rounded_up() {
        let seed = Seed { sessions: 300, queued: 1000, pool: IDLE_POOL };
        assert_eq!((seed.runs_per_session(), Seed { queued: 0, ..seed }.runs_per_session()), (4, 0));
    }
}
