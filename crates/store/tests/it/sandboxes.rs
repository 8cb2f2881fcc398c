//! Sandboxes, and what sessions say about where they execute.

use anyhow::Result;
use chrono::DurationRound as _;
use remuda_domain::{
    Code, SandboxId, TenantId, WorkerId,
    execution::{BackendKind, ExecutionChoice, Holder, SandboxRecord, SandboxState, WorkspaceAccess},
};
use remuda_store::NewSession;

use crate::lab::{LONG_LEASE, Lab, completed, refusal};

pub(crate) async fn a_sandbox_is_recorded_until_it_is_gone(lab: &Lab) -> Result<()> {
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
    lab.store.save_sandbox(&spare).await?;
    assert_eq!(lab.store.list_sandboxes(10).await?, std::slice::from_ref(&spare));

    let session = lab.session().await?;
    let taken = SandboxRecord {
        holder: Some(Holder { tenant: lab.tenant, session, epoch: 7 }),
        handle: Some("0123".into()),
        state: SandboxState::Active,
        used_at: at + chrono::Duration::seconds(5),
        ..spare.clone()
    };
    lab.store.save_sandbox(&taken).await?;
    let newer = SandboxRecord { id: SandboxId::new(), ..spare };
    lab.store.save_sandbox(&newer).await?;
    assert_eq!(lab.store.list_sandboxes(10).await?, [newer.clone(), taken.clone()]);
    assert_eq!(lab.store.list_sandboxes(1).await?.len(), 1);
    let counted: u64 = lab.store.count_sandboxes().await?.iter().map(|(_, _, count)| count).sum();
    assert_eq!(counted, 2);

    assert_eq!(lab.store.installation().await?, lab.store.installation().await?);
    lab.store.forget_sandbox(taken.id).await?;
    lab.store.forget_sandbox(taken.id).await?;
    assert_eq!(lab.store.list_sandboxes(10).await?, [newer]);
    Ok(())
}

pub(crate) async fn an_owner_learns_where_to_execute(lab: &Lab) -> Result<()> {
    let execution = ExecutionChoice {
        backend: Some(BackendKind::Docker),
        image: Some("busybox:1".into()),
        network: None,
        workspace: Some(WorkspaceAccess::Copy),
    };
    let session = NewSession { execution: execution.clone(), ..lab.new_session(None) };
    let created = lab.store.create_session(&session).await?.value;
    assert_eq!(created.execution, execution);
    lab.submit(created.id).await?;
    lab.submit(created.id).await?;
    let worker = lab.worker(LONG_LEASE).await?;
    let first = lab.granted(created.id, worker).await?;
    assert_eq!(first.execution, execution);
    let next = lab.store.commit(completed(&first)).await?.next;
    assert_eq!(next.map(|grant| grant.execution.clone()), Some(execution));

    let plain = lab.session().await?;
    lab.submit(plain).await?;
    assert!(lab.granted(plain, worker).await?.execution.is_default());
    Ok(())
}

pub(crate) async fn a_tenant_is_found_by_id(lab: &Lab) -> Result<()> {
    let found = lab.store.get_tenant(lab.tenant).await?;
    assert_eq!(lab.store.find_tenant(&found.name).await?.map(|it| it.id), Some(lab.tenant));
    assert_eq!(refusal(lab.store.get_tenant(TenantId::new()).await), Code::TenantNotFound);
    Ok(())
}
