//! A fair queue for writers: one at a time, first come, first served.
//!
//! SQLite lets one connection write; others poll until it is done, so under load a waiting connection could be
//! overtaken for ever. Writers therefore queue on a semaphore and find the database free.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
    time::Duration,
};

use remuda_domain::{Error, error::Result};
use sqlx::{Sqlite, SqliteConnection, SqlitePool, Transaction, pool::PoolConnection};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::error::db;

/// A writer that waits longer fails.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// The write connection, and the permit to write. Other connections that write need the permit too.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    pool: SqlitePool,
    permit: Arc<Semaphore>,
}

impl From<SqlitePool> for Writer {
    fn from(pool: SqlitePool) -> Self {
        Self { pool, permit: Arc::new(Semaphore::new(1)) }
    }
}

impl Writer {
    /// Waits for the write permit. No other connection writes while it is held.
    pub(super) async fn permit(&self) -> Result<OwnedSemaphorePermit> {
        match timeout(MAX_WAIT, Arc::clone(&self.permit).acquire_owned()).await {
            Ok(permit) => permit.map_err(|_| Error::unavailable("the store is shutting down")),
            Err(_) => Err(Error::unavailable("the database is too busy at the moment")),
        }
    }
}

/// The write connection, with the permit.
#[derive(Debug)]
pub(crate) struct WriteConnection {
    connection: PoolConnection<Sqlite>,
    // Declared last: released after the connection.
    _permit: OwnedSemaphorePermit,
}

/// A write transaction. Dropping it before the commit rolls it back.
#[derive(Debug)]
pub(crate) struct WriteTransaction {
    transaction: Transaction<'static, Sqlite>,
    _permit: OwnedSemaphorePermit,
}

impl WriteTransaction {
    pub(crate) async fn commit(self) -> Result<(), sqlx::Error> {
        self.transaction.commit().await
    }
}

macro_rules! deref_to_connection {
    ($type:ty, $field:ident) => {
        impl Deref for $type {
            type Target = SqliteConnection;

            fn deref(&self) -> &SqliteConnection {
                &self.$field
            }
        }

        impl DerefMut for $type {
            fn deref_mut(&mut self) -> &mut SqliteConnection {
                &mut self.$field
            }
        }
    };
}

deref_to_connection!(WriteConnection, connection);
deref_to_connection!(WriteTransaction, transaction);

/// The pool for writers, if it is separate from the readers' pool.
pub(crate) fn writer_pool(writer: &Writer) -> Option<&SqlitePool> {
    Some(&writer.pool)
}

/// Acquires the write connection.
pub(crate) async fn write_connection(writer: &Writer) -> Result<WriteConnection> {
    let permit = writer.permit().await?;
    Ok(WriteConnection { connection: writer.pool.acquire().await.map_err(db)?, _permit: permit })
}

/// Begins a transaction with the write lock: one that reads first and writes later could fail midway.
pub(crate) async fn begin(writer: &Writer) -> Result<WriteTransaction> {
    let permit = writer.permit().await?;
    let transaction = writer.pool.begin_with("BEGIN IMMEDIATE").await.map_err(db)?;
    Ok(WriteTransaction { transaction, _permit: permit })
}
