//! Keys that sign messages on the bus.

use std::time::Duration;

use anyhow::{Context as _, Result};
use remuda_domain::{
    Pool, WorkerId,
    bus::{BusKey, BusSecret, BusSigner},
    worker::Registration,
};
use remuda_testkit::wait_for;

use crate::fixture::{Fixture, LONG_LEASE, PATIENCE, registration};

const HOUR: Duration = Duration::from_secs(3600);

fn secret(byte: u8) -> BusSecret {
    BusSecret::new([byte; BusSecret::LEN])
}

async fn installation_keys(fixture: &Fixture) -> Result<Vec<BusKey>> {
    let keys = fixture.store.bus_keys().await?;
    Ok(keys.into_iter().filter(|key| matches!(key.signer, BusSigner::Installation(_))).collect())
}

async fn worker_key(fixture: &Fixture, worker: WorkerId) -> Result<Option<BusSecret>> {
    let keys = fixture.store.bus_keys().await?;
    Ok(keys.into_iter().find(|key| key.signer == BusSigner::Worker(worker)).map(|key| key.secret))
}

pub(crate) async fn migrated_database_has_one_key(fixture: &Fixture) -> Result<()> {
    let keys = installation_keys(fixture).await?;
    assert_eq!(keys.len(), 1);
    assert!(keys[0].secret.expose().iter().any(|byte| *byte != keys[0].secret.expose()[0]), "random");
    Ok(())
}

pub(crate) async fn worker_key_is_listed_while_its_lease_lives(fixture: &Fixture) -> Result<()> {
    let keyed = Registration { bus_secret: Some(secret(7)), ..registration(Pool::default(), 1) };
    let plain = registration(Pool::default(), 1);
    fixture.store.register_worker(&keyed, LONG_LEASE).await?;
    fixture.store.register_worker(&plain, LONG_LEASE).await?;
    assert_eq!(worker_key(fixture, keyed.id).await?, Some(secret(7)));
    assert_eq!(worker_key(fixture, plain.id).await?, None, "a worker of an earlier version has none");
    let listed = fixture.store.list_workers(false).await?;
    assert!(listed.iter().all(|worker| worker.registration.bus_secret.is_none()), "lists show no secrets");
    fixture.store.retire_worker(keyed.id).await?;
    assert_eq!(worker_key(fixture, keyed.id).await?, None);
    Ok(())
}

pub(crate) async fn rotated_key_is_accepted_for_a_while(fixture: &Fixture) -> Result<()> {
    let first = installation_keys(fixture).await?.pop().context("no key")?;
    let id = fixture.store.rotate_bus_key(&secret(1), HOUR).await?;
    let newest = BusKey { signer: BusSigner::Installation(id), secret: secret(1) };
    assert_eq!(installation_keys(fixture).await?, [newest.clone(), first.clone()], "newest first");
    // A shorter time for the next one shortens the time of both.
    let short = Duration::from_millis(100);
    let id = fixture.store.rotate_bus_key(&secret(2), short).await?;
    let last = BusKey { signer: BusSigner::Installation(id), secret: secret(2) };
    let alone = || async { (installation_keys(fixture).await.ok()? == [last.clone()]).then_some(()) };
    wait_for("the earlier keys to retire", PATIENCE, alone).await;
    // A retired key is deleted by the next rotation and does not come back.
    fixture.store.rotate_bus_key(&secret(3), HOUR).await?;
    let kept: Vec<BusSecret> = installation_keys(fixture).await?.into_iter().map(|key| key.secret).collect();
    assert_eq!(kept, [secret(3), secret(2)]);
    Ok(())
}

pub(crate) async fn forced_rotation_retires_the_old_key_at_once(fixture: &Fixture) -> Result<()> {
    fixture.store.rotate_bus_key(&secret(9), Duration::ZERO).await?;
    let kept: Vec<BusSecret> = installation_keys(fixture).await?.into_iter().map(|key| key.secret).collect();
    assert_eq!(kept, [secret(9)]);
    Ok(())
}
