//! Deletion of worker rows.

use std::time::Duration;

use anyhow::Result;
use remuda_domain::{
    SandboxId, WorkerId,
    execution::{BackendKind, SandboxRecord, SandboxState},
};

use crate::{
    fixture::{Fixture, LONG_LEASE, SHORT_LEASE},
    query_plans::execute,
    retention::{HOUR, NO_TIME},
};

impl Fixture {
    async fn workers(&self) -> Result<Vec<WorkerId>> {
        let mut workers: Vec<_> =
            self.store.list_workers(true).await?.iter().map(|it| it.registration.id).collect();
        workers.sort();
        Ok(workers)
    }

    /// A worker that has retired.
    async fn gone(&self) -> Result<WorkerId> {
        let worker = self.worker(SHORT_LEASE).await?;
        self.wait_for_lease_expiry(worker).await;
        self.store.retire_worker(worker).await?;
        Ok(worker)
    }

    async fn reclaim_all(&self) -> Result<()> {
        execute(self, "UPDATE workers SET taken_back = TRUE WHERE state = 2").await
    }
}

pub(crate) async fn rows_of_long_gone_workers_are_deleted(fixture: &Fixture) -> Result<()> {
    let (alive, gone, with_sandbox) =
        (fixture.worker(LONG_LEASE).await?, fixture.gone().await?, fixture.gone().await?);
    let at = chrono::Utc::now();
    let sandbox = SandboxRecord {
        id: SandboxId::new(),
        holder: None,
        worker: with_sandbox,
        backend: BackendKind::Docker,
        engine: "engine-1".into(),
        handle: None,
        image: "busybox:1".into(),
        digest: "sha256:abc".into(),
        state: SandboxState::Active,
        created_at: at,
        used_at: at,
    };
    fixture.store.save_sandbox(&sandbox).await?;
    assert_eq!(
        fixture.store.collect_workers(NO_TIME, false).await?,
        0,
        "their sessions may not be reclaimed yet"
    );
    fixture.reclaim_all().await?;
    assert_eq!(fixture.store.collect_workers(HOUR, false).await?, 0, "no worker has been gone for that long");
    assert_eq!(fixture.store.collect_workers(NO_TIME, true).await?, 1);
    assert_eq!(fixture.workers().await?.len(), 3, "a dry run deletes nothing");
    assert_eq!(fixture.store.collect_workers(NO_TIME, false).await?, 1);
    let mut expected = vec![alive, with_sandbox];
    expected.sort();
    assert_eq!(fixture.workers().await?, expected, "{gone} is deleted");
    fixture.store.forget_sandbox(sandbox.id).await?;
    assert_eq!(fixture.store.collect_workers(NO_TIME, false).await?, 1);
    Ok(())
}

pub(crate) async fn row_of_a_recorded_owner_is_kept(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    fixture.submit(session).await?;
    let owner = fixture.worker(SHORT_LEASE).await?;
    fixture.granted(session, owner).await?;
    fixture.wait_for_lease_expiry(owner).await;
    fixture.store.retire_worker(owner).await?;
    fixture.reclaim_all().await?;
    assert_eq!(fixture.store.collect_workers(NO_TIME, false).await?, 0);
    assert_eq!(fixture.workers().await?, [owner]);
    // Even if the owner's row is lost: a worker without a row cannot renew, so the session is free.
    execute(fixture, "DELETE FROM workers").await?;
    let next = fixture.worker(Duration::from_secs(60)).await?;
    assert_eq!(fixture.granted(session, next).await?.run.attempt, 2);
    fixture.check(session).await
}
