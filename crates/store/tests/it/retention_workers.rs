//! Rows of workers that are long gone.

use std::time::Duration;

use anyhow::Result;
use remuda_domain::{
    SandboxId, WorkerId,
    execution::{BackendKind, SandboxRecord, SandboxState},
};

use crate::{
    lab::{LONG_LEASE, Lab, SHORT_LEASE},
    plans::execute,
    retention::{HOUR, NO_TIME},
};

impl Lab {
    async fn workers(&self) -> Result<Vec<WorkerId>> {
        let mut workers: Vec<_> =
            self.store.list_workers(true).await?.iter().map(|it| it.registration.id).collect();
        workers.sort();
        Ok(workers)
    }

    /// One whose lease has ended, and who has said so.
    async fn gone(&self) -> Result<WorkerId> {
        let worker = self.worker(SHORT_LEASE).await?;
        self.outlive(worker).await;
        self.store.retire_worker(worker).await?;
        Ok(worker)
    }

    async fn take_all_back(&self) -> Result<()> {
        execute(self, "UPDATE workers SET taken_back = TRUE WHERE state = 2").await
    }
}

pub(crate) async fn long_gone_workers_are_forgotten(lab: &Lab) -> Result<()> {
    let (alive, gone, with_sandbox) = (lab.worker(LONG_LEASE).await?, lab.gone().await?, lab.gone().await?);
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
    lab.store.save_sandbox(&sandbox).await?;
    assert_eq!(lab.store.collect_workers(NO_TIME, false).await?, 0, "their sessions may be theirs yet");
    lab.take_all_back().await?;
    assert_eq!(lab.store.collect_workers(HOUR, false).await?, 0, "nobody is gone for as long as that");
    assert_eq!(lab.store.collect_workers(NO_TIME, true).await?, 1);
    assert_eq!(lab.workers().await?.len(), 3, "a dry run deletes nothing");
    assert_eq!(lab.store.collect_workers(NO_TIME, false).await?, 1);
    let mut expected = vec![alive, with_sandbox];
    expected.sort();
    assert_eq!(lab.workers().await?, expected, "{gone} is forgotten");
    lab.store.forget_sandbox(sandbox.id).await?;
    assert_eq!(lab.store.collect_workers(NO_TIME, false).await?, 1);
    Ok(())
}

pub(crate) async fn an_owner_is_not_forgotten(lab: &Lab) -> Result<()> {
    let session = lab.session().await?;
    lab.submit(session).await?;
    let owner = lab.worker(SHORT_LEASE).await?;
    lab.granted(session, owner).await?;
    lab.outlive(owner).await;
    lab.store.retire_worker(owner).await?;
    lab.take_all_back().await?;
    assert_eq!(lab.store.collect_workers(NO_TIME, false).await?, 0);
    assert_eq!(lab.workers().await?, [owner]);
    // And if its row were lost all the same: whoever has none cannot renew, so the session is free.
    execute(lab, "DELETE FROM workers").await?;
    let next = lab.worker(Duration::from_secs(60)).await?;
    assert_eq!(lab.granted(session, next).await?.run.attempt, 2);
    lab.check(session).await
}
