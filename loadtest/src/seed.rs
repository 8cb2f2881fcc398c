//! Many sessions and runs that were there before: copies of one that was made through the API, made by the database itself.
//!
//! To submit a million runs takes minutes, and is not what a test of a full database is about. So one session with one queued run is
//! made the ordinary way, the servers are put to rest, and its rows are copied with other ids and numbers, every other column as it is.
//! What the servers then do with the copies is driven and judged through the API again.

mod database;
mod statements;

use std::time::{Duration, Instant};

use anyhow::Context as _;
use remuda_domain::{RunId, SessionId};
use uuid::Uuid;

pub(crate) use self::database::Database;
use self::statements::{EVENTS, EventTemplate, Statements};
use crate::{
    load::{Sessions, Site, Work},
    stage::Stage,
};

/// A pool that no worker takes from.
pub(crate) const IDLE_POOL: &str = "elsewhere";
/// The lower bits of a seeded id count: so many, because they are whole digits both in base 16 and in base 32.
const COUNTED_BITS: u32 = 40;
/// Numbers are written with six digits of base 32.
const MOST: u64 = 1 << 30;

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed {
    pub(crate) sessions: u64,
    /// In all of them together. Each session gets the same number, so it may become a few more.
    pub(crate) queued: u64,
    pub(crate) pool: &'static str,
}

impl Seed {
    /// Runs that each session has.
    fn each(&self) -> u64 {
        self.queued.div_ceil(self.sessions.max(1))
    }
}

/// What is there now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seeded {
    first_session: Uuid,
    first_run: Uuid,
    sessions: u64,
    /// Queued runs of each session.
    each: u64,
    pub(crate) took: Duration,
}

impl Seeded {
    pub(crate) fn runs(&self) -> u64 {
        self.sessions * self.each
    }

    /// Their ids, which are computed when they are needed: a million strings would be a load on the generator.
    pub(crate) fn sessions(&self) -> Sessions {
        Sessions::counted(self.first_session, usize::try_from(self.sessions).unwrap_or(usize::MAX))
    }

    /// Ids of the first and of the last one.
    pub(crate) fn session_range(&self) -> (Uuid, Uuid) {
        (self.first_session, counted(self.first_session, self.sessions.saturating_sub(1)))
    }

    pub(crate) fn run_range(&self) -> (Uuid, Uuid) {
        (self.first_run, counted(self.first_run, self.runs().saturating_sub(1)))
    }
}

/// The id with this number.
pub(crate) fn counted(first: Uuid, number: u64) -> Uuid {
    Uuid::from_u128(first.as_u128() + u128::from(number))
}

/// An id of now whose counted bits are zero.
fn first(id: Uuid) -> Uuid {
    Uuid::from_u128(id.as_u128() >> COUNTED_BITS << COUNTED_BITS)
}

/// Fills the database of a stage, whose servers rest afterwards: [`Stage::resume`] starts them.
pub(crate) async fn plant(stage: &mut Stage, seeds: &[Seed]) -> anyhow::Result<Vec<Seeded>> {
    for seed in seeds {
        let most = seed.sessions.max(seed.sessions * seed.each());
        anyhow::ensure!(
            seed.sessions > 0 && most < MOST,
            "between 1 and {MOST} sessions and runs are possible"
        );
    }
    let template = template(stage).await?;
    stage.rest().await?;
    let mut database = stage.database().await?;
    let mut seeded = Vec::new();
    for seed in seeds {
        seeded.push(sow(&mut database, &template, seed).await?);
    }
    database.settle().await?;
    database.close().await?;
    Ok(seeded)
}

/// A session of the idle pool with one queued run: its id and the run's.
async fn template(stage: &Stage) -> anyhow::Result<(SessionId, RunId)> {
    let site = Site::in_pool(stage.addresses(), 1, IDLE_POOL).await?;
    let session = site.sessions.id(0);
    let run = site.submit(Work::Noop.request(&session)).await?;
    Ok((session.parse()?, run.parse()?))
}

async fn sow(
    database: &mut Database,
    (session, run): &(SessionId, RunId),
    seed: &Seed,
) -> anyhow::Result<Seeded> {
    let begun = Instant::now();
    let statements = Statements {
        dialect: database.dialect(),
        session: *session,
        run: *run,
        first_session: first(SessionId::new().as_uuid()),
        first_run: first(RunId::new().as_uuid()),
        sessions: seed.sessions,
        each: seed.each(),
        pool: seed.pool,
    };
    let session_columns = database.columns("sessions").await?;
    let run_columns = database.columns("runs").await?;
    let mut sql = vec![statements.sessions(&session_columns)];
    for event in EVENTS {
        let chunk = database.text(&statements.chunk(event)).await?;
        let template =
            EventTemplate::parse(&chunk).context("the events of the template are not as expected")?;
        sql.extend(statements.events(event, &template));
    }
    if seed.each() > 0 {
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
        each: seed.each(),
        took: begun.elapsed(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_counted_in_their_last_digits() {
        let base = first(SessionId::new().as_uuid());
        let text = |number| SessionId::from_uuid(counted(base, number)).to_string();
        assert!(text(0).ends_with("00000000"), "{}", text(0));
        assert_eq!(text(33).strip_suffix("000011"), text(0).strip_suffix("000000"));
    }

    #[test]
    fn every_session_gets_as_many_runs() {
        let seed = Seed { sessions: 300, queued: 1000, pool: IDLE_POOL };
        assert_eq!((seed.each(), Seed { queued: 0, ..seed }.each()), (4, 0));
    }
}
