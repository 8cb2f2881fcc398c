//! Sandbox records, and the execution choice of sessions.

use anyhow::Result;
use chrono::DurationRound as _;
use remuda_domain::{
    Code, SandboxId, TenantId, WorkerId,
    execution::{BackendKind, ExecutionChoice, Holder, SandboxRecord, SandboxState, WorkspaceAccess},
};
use remuda_store::NewSession;

use crate::fixture::{Fixture, LONG_LEASE, completed, refusal};

pub(crate) async fn sandbox_is_recorded_until_it_is_forgotten(fixture: &Fixture) -> Result<()> {
    let at = chrono::Utc::now().duration_trunc(chrono::Duration::microseconds(1))?;
    let spare = SandboxRecord {
        id: SandboxId::new(),
        holder: None,
        worker: WorkerId::new(),
        backend: BackendKind::Docker,
        engine: "engine-1".into(),
        handle: None,
        image: "busybox:1".into(),
        digest: "sha256:abc".into(),
        state: SandboxState::Creating,
        created_at: at,
        used_at: at,
    };
    fixture.store.save_sandbox(&spare).await?;
    assert_eq!(fixture.store.list_sandboxes(10).await?, std::slice::from_ref(&spare));

    let session = fixture.session().await?;
    let taken = SandboxRecord {
        holder: Some(Holder { tenant: fixture.tenant, session, epoch: 7 }),
        handle: Some("0123".into()),
        state: SandboxState::Active,
        used_at: at + chrono::Duration::seconds(5),
        ..spare.clone()
    };
    fixture.store.save_sandbox(&taken).await?;
    let newer = SandboxRecord { id: SandboxId::new(), ..spare };
    fixture.store.save_sandbox(&newer).await?;
    assert_eq!(fixture.store.list_sandboxes(10).await?, [newer.clone(), taken.clone()]);
    assert_eq!(fixture.store.list_sandboxes(1).await?.len(), 1);
    let counted: u64 = fixture.store.count_sandboxes().await?.iter().map(|(_, _, count)| count).sum();
    assert_eq!(counted, 2);

    assert_eq!(fixture.store.installation().await?, fixture.store.installation().await?);
    fixture.store.forget_sandbox(taken.id).await?;
    fixture.store.forget_sandbox(taken.id).await?;
    assert_eq!(fixture.store.list_sandboxes(10).await?, [newer]);
    Ok(())
}

pub(crate) async fn grant_contains_the_execution_choice(fixture: &Fixture) -> Result<()> {
    let execution = ExecutionChoice {
        backend: Some(BackendKind::Docker),
        image: Some("busybox:1".into()),
        network: None,
        workspace: Some(WorkspaceAccess::Copy),
    };
    let session = NewSession { execution: execution.clone(), ..fixture.new_session(None) };
    let created = fixture.store.create_session(&session).await?.value;
    assert_eq!(created.execution, execution);
    fixture.submit(created.id).await?;
    fixture.submit(created.id).await?;
    let worker = fixture.worker(LONG_LEASE).await?;
    let first = fixture.granted(created.id, worker).await?;
    assert_eq!(first.execution, execution);
    let next = fixture.store.commit(completed(&first)).await?.next;
    assert_eq!(next.map(|grant| grant.execution.clone()), Some(execution));

    let plain = fixture.session().await?;
    fixture.submit(plain).await?;
    assert!(fixture.granted(plain, worker).await?.execution.is_default());
    Ok(())
}

pub(crate) async fn tenant_is_found_by_id(fixture: &Fixture) -> Result<()> {
    let found = fixture.store.get_tenant(fixture.tenant).await?;
    assert_eq!(fixture.store.find_tenant(&found.name).await?.map(|it| it.id), Some(fixture.tenant));
    assert_eq!(refusal(fixture.store.get_tenant(TenantId::new()).await), Code::TenantNotFound);
    Ok(())
}
