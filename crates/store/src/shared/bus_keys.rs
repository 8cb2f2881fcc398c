//! Keys that sign messages on the bus.

use std::time::Duration;

use async_trait::async_trait;
use remuda_domain::{
    BusKeyId, WorkerId,
    bus::{BusKey, BusSecret, BusSigner},
    error::Result,
};
use sqlx::{AssertSqlSafe, query, query_as};
use uuid::Uuid;

use super::{
    dialect::{self, IN_MICROS_2, NOW},
    store::{Context, SqlStore},
    webhooks::micros,
};
use crate::{
    BusKeys,
    error::{corrupt, db},
    rows::WORKER_GONE,
};

/// More workers than an installation has.
const MAX_WORKER_KEYS: u32 = 16_384;

async fn load(context: &Context) -> Result<Vec<BusKey>> {
    let of_installation = format!(
        "SELECT id, secret FROM bus_keys WHERE retires_at IS NULL OR retires_at > {NOW} \
         ORDER BY created_at DESC, id DESC"
    );
    let of_workers = format!(
        "SELECT id, bus_secret FROM workers WHERE state < {WORKER_GONE} AND lease_until > {NOW} \
         AND bus_secret IS NOT NULL LIMIT {MAX_WORKER_KEYS}"
    );
    let installation: Vec<(Uuid, Vec<u8>)> =
        query_as(AssertSqlSafe(of_installation)).fetch_all(&context.reader).await.map_err(db)?;
    let workers: Vec<(Uuid, Vec<u8>)> =
        query_as(AssertSqlSafe(of_workers)).fetch_all(&context.reader).await.map_err(db)?;
    let installation = installation
        .into_iter()
        .map(|(id, secret)| key(BusSigner::Installation(BusKeyId::from_uuid(id)), &secret));
    let workers =
        workers.into_iter().map(|(id, secret)| key(BusSigner::Worker(WorkerId::from_uuid(id)), &secret));
    installation.chain(workers).collect()
}

fn key(signer: BusSigner, secret: &[u8]) -> Result<BusKey> {
    let secret = secret.try_into().map_err(|_| corrupt("bus key"))?;
    Ok(BusKey { signer, secret: BusSecret::new(secret) })
}

async fn rotate(context: &Context, secret: &BusSecret, keep: Duration) -> Result<BusKeyId> {
    let id = BusKeyId::new();
    let mut tx = dialect::begin(&context.writer).await?;
    let delete = format!("DELETE FROM bus_keys WHERE retires_at <= {NOW}");
    query(AssertSqlSafe(delete)).execute(&mut *tx).await.map_err(db)?;
    let retire = format!(
        "UPDATE bus_keys SET retires_at = {IN_MICROS_2} \
         WHERE id <> $1 AND (retires_at IS NULL OR retires_at > {IN_MICROS_2})"
    );
    query(AssertSqlSafe(retire)).bind(id.as_uuid()).bind(micros(keep)).execute(&mut *tx).await.map_err(db)?;
    let insert = format!("INSERT INTO bus_keys (id, secret, created_at) VALUES ($1, $2, {NOW})");
    query(AssertSqlSafe(insert))
        .bind(id.as_uuid())
        .bind(secret.expose().as_slice())
        .execute(&mut *tx)
        .await
        .map_err(db)?;
    tx.commit().await.map_err(db)?;
    Ok(id)
}

#[async_trait]
impl BusKeys for SqlStore {
    async fn bus_keys(&self) -> Result<Vec<BusKey>> {
        load(&self.context).await
    }

    async fn rotate_bus_key(&self, secret: &BusSecret, keep: Duration) -> Result<BusKeyId> {
        let (context, secret) = (self.context.clone(), secret.clone());
        self.run_to_completion(async move { rotate(&context, &secret, keep).await }).await
    }
}
