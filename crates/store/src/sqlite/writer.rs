//! Who writes: one at a time, in the order in which they came.
//!
//! SQLite lets one connection write, and others try again now and then until it is done: under load, somebody would always come between.
//! So whoever wants to write waits for its turn, and finds the database free.

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

/// Whoever had no turn after this gives up.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The one connection for writing, and the turn to write, which also connections of others may take.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    pool: SqlitePool,
    turn: Arc<Semaphore>,
}

impl From<SqlitePool> for Writer {
    fn from(pool: SqlitePool) -> Self {
        Self { pool, turn: Arc::new(Semaphore::new(1)) }
    }
}

impl Writer {
    /// Nobody else writes while this is held.
    pub(super) async fn turn(&self) -> Result<OwnedSemaphorePermit> {
        match timeout(LONGEST_WAIT, Arc::clone(&self.turn).acquire_owned()).await {
            Ok(turn) => turn.map_err(|_| Error::unavailable("the store is shutting down")),
            Err(_) => Err(Error::unavailable("the database is too busy at the moment")),
        }
    }
}

/// The connection for writing.
#[derive(Debug)]
pub(crate) struct Writing {
    connection: PoolConnection<Sqlite>,
    // Given back after the connection.
    _turn: OwnedSemaphorePermit,
}

/// A transaction that writes. Dropped before it is committed, it is rolled back.
#[derive(Debug)]
pub(crate) struct WriteTransaction {
    transaction: Transaction<'static, Sqlite>,
    _turn: OwnedSemaphorePermit,
}

impl WriteTransaction {
    pub(crate) async fn commit(self) -> Result<(), sqlx::Error> {
        self.transaction.commit().await
    }
}

macro_rules! is_a_connection {
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

is_a_connection!(Writing, connection);
is_a_connection!(WriteTransaction, transaction);

/// The pool of those that write, if they have one for themselves.
pub(crate) fn own_pool(writer: &Writer) -> Option<&SqlitePool> {
    Some(&writer.pool)
}

/// A connection to write with.
pub(crate) async fn writing(writer: &Writer) -> Result<Writing> {
    let turn = writer.turn().await?;
    Ok(Writing { connection: writer.pool.acquire().await.map_err(db)?, _turn: turn })
}

/// Takes the write lock at once: a transaction that reads first and writes later could fail in the middle.
pub(crate) async fn begin(writer: &Writer) -> Result<WriteTransaction> {
    let turn = writer.turn().await?;
    let transaction = writer.pool.begin_with("BEGIN IMMEDIATE").await.map_err(db)?;
    Ok(WriteTransaction { transaction, _turn: turn })
}
