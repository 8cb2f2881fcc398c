//! Workspaces.

use anyhow::{Context as _, Result};
use remuda_domain::{Code, TenantId, WorkspaceId, page::PageRequest};
use remuda_store::{NewSession, NewWorkspace};

use crate::lab::{LONG_LEASE, Lab, page, refusal};

fn new(tenant: TenantId, name: &str) -> NewWorkspace {
    NewWorkspace { id: WorkspaceId::new(), tenant, name: name.to_owned(), root: format!("/srv/{name}") }
}

pub(crate) async fn a_workspace_is_found_by_its_name_and_used(lab: &Lab) -> Result<()> {
    let docs = new(lab.tenant, "docs");
    let made = lab.store.create_workspace(&docs).await?;
    assert_eq!(
        (made.id, made.tenant, made.name.as_str(), made.root.as_str()),
        (docs.id, lab.tenant, "docs", "/srv/docs")
    );
    assert_eq!(lab.store.get_workspace(lab.tenant, docs.id).await?.id, docs.id);
    let found = lab.store.find_workspace(lab.tenant, "docs").await?.context("not found")?;
    assert_eq!((found.id, found.root), (made.id, made.root));
    let session = NewSession { workspace: docs.id, ..lab.new_session(None) };
    lab.store.create_session(&session).await?;
    lab.submit(session.id).await?;
    let grant = lab.granted(session.id, lab.worker(LONG_LEASE).await?).await?;
    assert_eq!(grant.workspace_root, "/srv/docs");
    Ok(())
}

pub(crate) async fn names_of_workspaces_are_unique_per_tenant(lab: &Lab) -> Result<()> {
    lab.store.create_workspace(&new(lab.tenant, "docs")).await?;
    for taken in ["docs", "default"] {
        let again = lab.store.create_workspace(&new(lab.tenant, taken)).await.err().context("twice")?;
        assert_eq!((again.code(), again.field()), (Code::AlreadyExists, Some("name")));
    }
    let stranger = lab.stranger().await?;
    let theirs = lab.store.create_workspace(&new(stranger, "docs")).await?;
    assert_eq!(refusal(lab.store.get_workspace(lab.tenant, theirs.id).await), Code::WorkspaceNotFound);
    let ours = lab.store.find_workspace(lab.tenant, "docs").await?.context("not found")?;
    assert_ne!(ours.id, theirs.id);
    Ok(())
}

pub(crate) async fn workspaces_are_listed_by_name(lab: &Lab) -> Result<()> {
    for name in ["echo", "alpha", "delta", "bravo", "charlie"] {
        lab.store.create_workspace(&new(lab.tenant, name)).await?;
    }
    lab.store.create_workspace(&new(lab.stranger().await?, "aardvark")).await?;
    let mut listed = Vec::new();
    let mut request = page(2);
    loop {
        let got = lab.store.list_workspaces(lab.tenant, &request).await?;
        listed.extend(got.items.into_iter().map(|it| it.name));
        request = PageRequest { size: 2, token: got.next };
        if request.token.is_none() {
            break;
        }
    }
    assert_eq!(listed, ["alpha", "bravo", "charlie", "default", "delta", "echo"]);
    Ok(())
}
