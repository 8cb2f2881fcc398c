//! A disk that is full, and has room again.

use anyhow::{Result, ensure};
use remuda_domain::{Code, Error, RunId, RunState, SessionId};
use remuda_testkit::{SmallDisk, TestDatabase, wait_for};

use crate::fixture::{Fixture, LONG_LEASE, PATIENCE, TestDb, completed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_continues_after_a_full_disk() -> Result<()> {
    let disk = SmallDisk::mount(24 << 20)?;
    let fixture = Fixture::on(TestDb::Existing(disk.path().to_owned())).await?;
    continues_after_a_full_disk(&fixture, &disk).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_continues_after_a_full_disk() -> Result<()> {
    let disk = SmallDisk::mount(32 << 20)?;
    let database = TestDatabase::create_in(&disk.directory("tablespace")?)?;
    let fixture = Fixture::on(TestDb::Database(database)).await?;
    continues_after_a_full_disk(&fixture, &disk).await
}

async fn continues_after_a_full_disk(fixture: &Fixture, disk: &SmallDisk) -> Result<()> {
    let worker = fixture.worker(LONG_LEASE).await?;
    let session = fixture.session().await?;
    let mut accepted = vec![fixture.submit(session).await?.run.id];
    let grant = fixture.granted(session, worker).await?;
    fixture.store.ping().await?;

    for round in 0..3 {
        disk.fill()?;
        let (refused, more) = submit_until_refused(fixture, session).await?;
        accepted.extend(more);
        ensure!(refused.code() == Code::StorageFull, "round {round}: {refused:?}");
        ensure!(refused.code().is_outage() && refused.retry_delay().is_some(), "{refused:?}");
        // Other changes fail in the same way, or find some room; reads succeed.
        for _ in 0..5 {
            let created = fixture.store.create_session(&fixture.new_session(None)).await;
            ensure!(
                created.as_ref().err().is_none_or(|error| error.code() == Code::StorageFull),
                "{created:?}"
            );
            let readiness = fixture.store.ping().await;
            ensure!(
                readiness.as_ref().is_err_and(|error| error.code() == Code::StorageFull),
                "{readiness:?}"
            );
        }
        ensure!(fixture.run(accepted[0]).await?.state == RunState::Running);

        disk.free()?;
        wait_for("the store to be ready", PATIENCE, || async { fixture.store.ping().await.is_ok() }).await;
        // The first request succeeds, by every path.
        accepted.push(fixture.submit(session).await?.run.id);
        let keyed = fixture.keyed_run(session, &format!("round {round}"), 1);
        accepted.push(fixture.store.submit(keyed).await?.run.id);
        fixture.session().await?;
    }
    // The refused submits left nothing, and the accepted ones are complete.
    fixture.check(session).await?;
    let stored: Vec<RunId> = fixture.runs_of(session).await?.iter().map(|run| run.id).collect();
    ensure!(stored == accepted, "stored {stored:?}, accepted {accepted:?}");
    fixture.store.commit(completed(&grant)).await?;
    fixture.check(session).await
}

/// Submits runs until the store refuses one. A full disk may still have room in files that exist.
async fn submit_until_refused(fixture: &Fixture, session: SessionId) -> Result<(Error, Vec<RunId>)> {
    let mut accepted = Vec::new();
    for _ in 0..5_000 {
        match fixture.store.submit(fixture.new_run(session)).await {
            Ok(submitted) => accepted.push(submitted.run.id),
            Err(error) => return Ok((error, accepted)),
        }
    }
    anyhow::bail!("the full disk has room for {} runs", accepted.len())
}
