//! Tenants, keys and workspaces.

use anyhow::{Context as _, Result};
use chrono::{TimeDelta, Utc};
use remuda_domain::{Code, TenantId, WorkspaceId, identity::Scope};
use remuda_store::{KeyOwner, NewKey};

use crate::fixture::{Fixture, refusal};

fn key(tenant: TenantId, hash: u8) -> NewKey {
    let scopes = vec![Scope::Read, Scope::Admin];
    NewKey {
        tenant: Some(tenant),
        name: format!("key {hash}"),
        secret_hash: [hash; 32],
        scopes,
        expires_at: None,
    }
}

pub(crate) async fn tenant_is_created_once_with_its_default_workspace(fixture: &Fixture) -> Result<()> {
    let tenants =
        futures::future::try_join_all((0..10).map(|_| fixture.store.ensure_tenant("globex", "/srv/globex")))
            .await?;
    assert!(tenants.windows(2).all(|pair| pair[0] == pair[1]));
    let again = fixture.store.ensure_tenant("globex", "/elsewhere").await?;
    assert_eq!(Some(&again), tenants.first());
    assert_eq!(fixture.store.find_tenant("globex").await?.as_ref(), Some(&again));
    assert_eq!(fixture.store.find_tenant("nobody").await?, None);
    let workspace = fixture.store.find_workspace(again.id, "default").await?.context("no workspace")?;
    assert_eq!(workspace.root, "/srv/globex");
    Ok(())
}

pub(crate) async fn api_key_is_found_until_it_expires_or_is_revoked(fixture: &Fixture) -> Result<()> {
    let (store, stranger) = (&fixture.store, fixture.stranger().await?);
    let made = store.create_key(&key(fixture.tenant, 1)).await?;
    assert_eq!(made.scopes, [Scope::Read, Scope::Admin]);
    assert_eq!(store.find_key(&[1; 32]).await?.as_ref(), Some(&made));
    assert_eq!(store.find_key(&[2; 32]).await?, None);
    assert_eq!(refusal(store.create_key(&key(fixture.tenant, 1)).await), Code::AlreadyExists);

    let later = Some(Utc::now() + TimeDelta::hours(1));
    let past = Some(Utc::now() - TimeDelta::seconds(1));
    store.create_key(&NewKey { expires_at: later, ..key(fixture.tenant, 3) }).await?;
    store.create_key(&NewKey { expires_at: past, ..key(fixture.tenant, 4) }).await?;
    assert!(store.find_key(&[3; 32]).await?.is_some());
    assert_eq!(store.find_key(&[4; 32]).await?, None);

    assert_eq!(refusal(store.revoke_key(KeyOwner::Tenant(stranger), made.id).await), Code::KeyNotFound);
    assert!(store.find_key(&[1; 32]).await?.is_some());
    let revoked = store.revoke_key(KeyOwner::Tenant(fixture.tenant), made.id).await?;
    assert!(revoked.revoked_at.is_some());
    assert_eq!(store.revoke_key(KeyOwner::Tenant(fixture.tenant), made.id).await?, revoked);
    assert_eq!(store.find_key(&[1; 32]).await?, None);
    let listed = store.list_keys(KeyOwner::Tenant(fixture.tenant)).await?;
    assert_eq!(listed.iter().map(|key| key.name.as_str()).collect::<Vec<_>>(), ["key 1", "key 3", "key 4"]);
    assert_eq!(store.list_keys(KeyOwner::Tenant(stranger)).await?, []);
    Ok(())
}

pub(crate) async fn workspace_is_invisible_to_other_tenants(fixture: &Fixture) -> Result<()> {
    let stranger = fixture.stranger().await?;
    let own = fixture.store.get_workspace(fixture.tenant, fixture.workspace).await?;
    assert_eq!((own.tenant, own.name.as_str()), (fixture.tenant, "default"));
    let foreign = fixture.store.get_workspace(stranger, fixture.workspace).await.err().context("foreign")?;
    let unknown = fixture.store.get_workspace(stranger, WorkspaceId::new()).await.err().context("unknown")?;
    assert_eq!(foreign.code(), Code::WorkspaceNotFound);
    assert_eq!(format!("{foreign:?}"), format!("{unknown:?}"));
    assert_eq!(fixture.store.find_workspace(fixture.tenant, "other").await?, None);
    Ok(())
}
