//! Workspaces.

use anyhow::{Context as _, Result};
use remuda_domain::{Code, TenantId, WorkspaceId, page::PageRequest};
use remuda_store::{NewSession, NewWorkspace};

use crate::fixture::{Fixture, LONG_LEASE, page, refusal};

fn new(tenant: TenantId, name: &str) -> NewWorkspace {
    NewWorkspace { id: WorkspaceId::new(), tenant, name: name.to_owned(), root: format!("/srv/{name}") }
}

pub(crate) async fn workspace_is_found_by_name_and_can_be_used(fixture: &Fixture) -> Result<()> {
    let docs = new(fixture.tenant, "docs");
    let made = fixture.store.create_workspace(&docs).await?;
    assert_eq!(
        (made.id, made.tenant, made.name.as_str(), made.root.as_str()),
        (docs.id, fixture.tenant, "docs", "/srv/docs")
    );
    assert_eq!(fixture.store.get_workspace(fixture.tenant, docs.id).await?.id, docs.id);
    let found = fixture.store.find_workspace(fixture.tenant, "docs").await?.context("not found")?;
    assert_eq!((found.id, found.root), (made.id, made.root));
    let session = NewSession { workspace: docs.id, ..fixture.new_session(None) };
    fixture.store.create_session(&session).await?;
    fixture.submit(session.id).await?;
    let grant = fixture.granted(session.id, fixture.worker(LONG_LEASE).await?).await?;
    assert_eq!(grant.workspace_root, "/srv/docs");
    Ok(())
}

pub(crate) async fn workspace_names_are_unique_per_tenant(fixture: &Fixture) -> Result<()> {
    fixture.store.create_workspace(&new(fixture.tenant, "docs")).await?;
    for taken in ["docs", "default"] {
        let again =
            fixture.store.create_workspace(&new(fixture.tenant, taken)).await.err().context("twice")?;
        assert_eq!((again.code(), again.field()), (Code::AlreadyExists, Some("name")));
    }
    let stranger = fixture.stranger().await?;
    let theirs = fixture.store.create_workspace(&new(stranger, "docs")).await?;
    assert_eq!(
        refusal(fixture.store.get_workspace(fixture.tenant, theirs.id).await),
        Code::WorkspaceNotFound
    );
    let ours = fixture.store.find_workspace(fixture.tenant, "docs").await?.context("not found")?;
    assert_ne!(ours.id, theirs.id);
    Ok(())
}

pub(crate) async fn workspaces_are_listed_by_name(fixture: &Fixture) -> Result<()> {
    for name in ["echo", "alpha", "delta", "bravo", "charlie"] {
        fixture.store.create_workspace(&new(fixture.tenant, name)).await?;
    }
    fixture.store.create_workspace(&new(fixture.stranger().await?, "aardvark")).await?;
    let mut listed = Vec::new();
    let mut request = page(2);
    loop {
        let got = fixture.store.list_workspaces(fixture.tenant, &request).await?;
        listed.extend(got.items.into_iter().map(|it| it.name));
        request = PageRequest { size: 2, token: got.next };
        if request.token.is_none() {
            break;
        }
    }
    assert_eq!(listed, ["alpha", "bravo", "charlie", "default", "delta", "echo"]);
    Ok(())
}

pub(crate) async fn workspaces_of_all_tenants_are_listed_for_operators(fixture: &Fixture) -> Result<()> {
    let stranger = fixture.stranger().await?;
    let docs = fixture.store.create_workspace(&new(fixture.tenant, "docs")).await?;
    let theirs = fixture.store.create_workspace(&new(stranger, "docs")).await?;
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let page = fixture.store.list_all_workspaces(after, 2).await?;
        assert!(page.len() <= 2);
        let Some((_, last)) = page.last() else { break };
        after = Some(last.id);
        listed.extend(page);
    }
    for workspace in [docs, theirs] {
        let tenant = fixture.store.get_tenant(workspace.tenant).await?.name;
        assert!(listed.contains(&(tenant, workspace)));
    }
    Ok(())
}
