//! Keys of operators, and keys from before they existed.

use std::str::FromStr as _;

use anyhow::{Context as _, Result};
use remuda_domain::{ApiKeyId, Code, TenantId, identity::Scope};
use remuda_store::{KeyOwner, NewKey, connect, migrate};
use sqlx::{Connection as _, migrate::Migrator};

use crate::{
    fixture::{Fixture, refusal},
    query_plans::execute,
    schema::migrations_before,
};

fn new(tenant: Option<TenantId>, hash: u8, scopes: &[Scope]) -> NewKey {
    NewKey {
        tenant,
        name: format!("key {hash}"),
        secret_hash: [hash; 32],
        scopes: scopes.to_vec(),
        expires_at: None,
    }
}

pub(crate) async fn operator_key_belongs_to_no_tenant(fixture: &Fixture) -> Result<()> {
    let store = &fixture.store;
    let made = store.create_key(&new(None, 1, &[Scope::Operator])).await?;
    assert_eq!((made.tenant, made.scopes.as_slice()), (None, &[Scope::Operator][..]));
    assert_eq!(store.find_key(&[1; 32]).await?.as_ref(), Some(&made));
    let tenants = store.create_key(&new(Some(fixture.tenant), 2, &[Scope::Admin])).await?;
    let listed = store.list_keys(KeyOwner::Tenant(fixture.tenant)).await?;
    assert_eq!(listed, std::slice::from_ref(&tenants));
    assert_eq!(store.list_keys(KeyOwner::Anyone).await?, [made, tenants]);

    for (tenant, scopes) in [
        (Some(fixture.tenant), &[Scope::Operator][..]),
        (Some(fixture.tenant), &[Scope::Write, Scope::Operator]),
        (None, &[Scope::Admin]),
        (None, &[Scope::Operator, Scope::Read]),
        (None, &[]),
    ] {
        let refused = refusal(store.create_key(&new(tenant, 3, scopes)).await);
        assert_eq!(refused, Code::InvalidArgument, "{tenant:?} {scopes:?}");
    }
    Ok(())
}

/// Whoever can write to the table cannot make a key of both kinds either.
pub(crate) async fn database_refuses_a_key_that_mixes_operator_and_tenant(fixture: &Fixture) -> Result<()> {
    let key = fixture.store.create_key(&new(Some(fixture.tenant), 1, &[Scope::Admin])).await?;
    for change in ["UPDATE api_keys SET scopes = 'operator'", "UPDATE api_keys SET tenant_id = NULL"] {
        let changed = execute(fixture, change).await;
        assert!(changed.is_err(), "{change}");
    }
    assert_eq!(fixture.store.find_key(&[1; 32]).await?, Some(key));
    Ok(())
}

pub(crate) async fn key_is_revoked_by_its_id_whoever_owns_it(fixture: &Fixture) -> Result<()> {
    let (store, stranger) = (&fixture.store, fixture.stranger().await?);
    let theirs = store.create_key(&new(Some(stranger), 1, &[Scope::Write])).await?;
    let operators = store.create_key(&new(None, 2, &[Scope::Operator])).await?;
    // A tenant cannot tell a key of another from one that does not exist.
    let own = KeyOwner::Tenant(fixture.tenant);
    let unknown = store.revoke_key(own, ApiKeyId::new()).await.err().context("unknown")?;
    let unknown = format!("{unknown:?}");
    for key in [&theirs, &operators] {
        let refused = store.revoke_key(own, key.id).await.err().context("revoked")?;
        assert_eq!((refused.code(), format!("{refused:?}")), (Code::KeyNotFound, unknown.clone()));
    }
    let revoked = store.revoke_key(KeyOwner::Anyone, theirs.id).await?;
    assert_eq!((revoked.tenant, revoked.revoked_at.is_some()), (Some(stranger), true));
    assert!(store.revoke_key(KeyOwner::Anyone, operators.id).await?.revoked_at.is_some());
    assert_eq!(refusal(store.revoke_key(KeyOwner::Anyone, ApiKeyId::new()).await), Code::KeyNotFound);
    assert_eq!((store.find_key(&[1; 32]).await?, store.find_key(&[2; 32]).await?), (None, None));
    Ok(())
}

/// Keys of version 0.1.0: the scopes in place of `{scopes}`, as text.
const OLD_KEY: &str = "INSERT INTO api_keys (id, tenant_id, name, secret_hash, scopes, created_at) \
                       VALUES ({id}, {tenant}, 'old', {hash}, '{scopes}', {now})";

pub(crate) async fn keys_from_before_the_operator_scope_stay_with_their_tenants(
    fixture: &Fixture,
) -> Result<()> {
    let database = fixture.empty_database()?;
    let (options, postgres) = (database.options(), fixture.is_postgres());
    let earlier = migrations_before(postgres, "operator_keys")?;
    let migrator = Migrator::new(earlier.path()).await?;
    let tenant = uuid::Uuid::now_v7();
    let id = |id: uuid::Uuid| if postgres { format!("'{id}'") } else { format!("X'{}'", id.simple()) };
    let now = if postgres { "now()" } else { "0" };
    let mut statements = vec![format!("INSERT INTO tenants VALUES ({}, 'acme', {now})", id(tenant))];
    for (number, scopes) in ["write admin", "admin", "read approve"].iter().enumerate() {
        let hex = format!("{:02x}", number + 1).repeat(32);
        let hash = if postgres { format!("'\\x{hex}'") } else { format!("X'{hex}'") };
        let key = OLD_KEY.replace("{id}", &id(ApiKeyId::new().as_uuid())).replace("{tenant}", &id(tenant));
        statements.push(key.replace("{hash}", &hash).replace("{scopes}", scopes).replace("{now}", now));
    }
    if postgres {
        let mut connection = sqlx::PgConnection::connect(&options.url).await?;
        migrator.run(&mut connection).await?;
        for sql in statements {
            sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await?;
        }
    } else {
        let created = sqlx::sqlite::SqliteConnectOptions::from_str(&options.url)?.create_if_missing(true);
        let mut connection = sqlx::SqliteConnection::connect_with(&created).await?;
        migrator.run(&mut connection).await?;
        for sql in statements {
            sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await?;
        }
    }
    let before = migrate(&options).await?;
    assert!(options.predates_operators(before.found)?);
    assert!(!options.predates_operators(before.required)?);
    assert!(!options.predates_operators(0)?, "an empty database has no keys");
    let store = connect(&options).await?;
    let tenant = TenantId::from_uuid(tenant);
    for (hash, scopes) in
        [(1, &[Scope::Write, Scope::Admin][..]), (2, &[Scope::Admin]), (3, &[Scope::Read, Scope::Approve])]
    {
        let key = store.find_key(&[hash; 32]).await?.context("the key is gone")?;
        assert_eq!((key.tenant, key.scopes.as_slice()), (Some(tenant), scopes));
    }
    assert_eq!(store.list_keys(KeyOwner::Tenant(tenant)).await?.len(), 3);
    store.create_key(&new(None, 9, &[Scope::Operator])).await?;
    Ok(())
}
