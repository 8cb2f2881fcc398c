//! Opens a store: selects the backend, checks the schema version, and retries until the database is up.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use remuda_domain::{Code, Error, error::Result};
use sqlx::migrate::{MigrateError, Migrator};

use crate::{
    NoSlots, SlotProvider, Store,
    error::{db, is_corrupt, storage_corrupt},
    postgres, sqlite,
};

static POSTGRES: Migrator = sqlx_macros::migrate!("../../migrations/postgres");
static SQLITE: Migrator = sqlx_macros::migrate!("../../migrations/sqlite");

/// How to reach the store.
#[derive(Clone)]
pub struct Options {
    /// `postgres://…` or `sqlite:path`. May contain a password, so it never appears in logs or errors.
    pub url: String,
    pub max_connections: u32,
    /// How long to retry while the database is unavailable.
    pub connect_timeout: Duration,
    pub idempotency_ttl: Duration,
    /// Most unfinished runs of a session.
    pub max_pending: i64,
    /// Lost attempts after which a run ends as failed.
    pub max_lost_attempts: u32,
    /// Free slots of workers, to which submits grant sessions.
    pub slots: Arc<dyn SlotProvider>,
}

impl Options {
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            max_connections: 16,
            connect_timeout: Duration::from_secs(30),
            idempotency_ttl: Duration::from_secs(24 * 60 * 60),
            max_pending: remuda_domain::limits::MAX_PENDING_RUNS,
            max_lost_attempts: remuda_domain::limits::MAX_LOST_ATTEMPTS,
            slots: Arc::new(NoSlots),
        }
    }

    /// The backend that the URL selects.
    pub fn backend(&self) -> Result<Backend> {
        match self.url.split_once(':').map(|(scheme, _)| scheme) {
            Some("postgres" | "postgresql") => Ok(Backend::Postgres),
            Some("sqlite") => Ok(Backend::Sqlite),
            _ => Err(Error::invalid("store.url", "expected postgres://… or sqlite:path")),
        }
    }

    /// Whether a schema of this version has keys from before the scope `operator`: their `admin` covered the fleet then.
    pub fn predates_operators(&self, found: i64) -> Result<bool> {
        let mut migrations = self.backend()?.migrator().iter();
        let since = migrations.find(|migration| migration.description == OPERATOR_KEYS);
        Ok(found > 0 && since.is_some_and(|since| found < since.version))
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("backend", &self.backend()).finish_non_exhaustive()
    }
}

/// The name of the migration since which the fleet needs the scope `operator`.
const OPERATOR_KEYS: &str = "operator keys";

/// The database behind the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Postgres,
    Sqlite,
}

impl Backend {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::Sqlite => "SQLite",
        }
    }

    const fn migrator(self) -> &'static Migrator {
        match self {
            Self::Postgres => &POSTGRES,
            Self::Sqlite => &SQLITE,
        }
    }

    /// The newest migration this binary knows.
    fn required_version(self) -> i64 {
        self.migrator().iter().map(|migration| migration.version).max().unwrap_or(0)
    }
}

/// The schema version of the database, and the one this binary needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchemaStatus {
    /// 0 when the database is empty.
    pub found: i64,
    pub required: i64,
}

impl SchemaStatus {
    fn check(self) -> Result<()> {
        let Self { found, required } = self;
        if found == required {
            return Ok(());
        }
        let advice = if found < required {
            "run `remuda migrate`"
        } else {
            "this remuda is older than the database: use a newer version"
        };
        let message =
            format!("the database schema is at version {found}, this binary needs {required}: {advice}");
        Err(Error::new(Code::SchemaMismatch, message))
    }
}

enum Pools {
    Postgres(sqlx::PgPool, sqlx::PgPool),
    Sqlite(sqlx::SqlitePool, sqlx::SqlitePool),
}

impl Pools {
    async fn open(options: &Options) -> Result<Self> {
        let url = options.url.as_str();
        let opened = match options.backend()? {
            Backend::Postgres => postgres::open(url, options.max_connections)
                .await
                .map(|(writer, reader)| Self::Postgres(writer, reader)),
            Backend::Sqlite => sqlite::open(url, options.max_connections)
                .await
                .map(|(writer, reader)| Self::Sqlite(writer, reader)),
        };
        opened.map_err(opening_failed)
    }

    /// Opens the pools, and retries with exponential backoff while the database is unavailable.
    async fn open_with_retry(options: &Options) -> Result<Self> {
        let name = options.backend()?.as_str();
        let give_up_at = Instant::now() + options.connect_timeout;
        let mut pause = Duration::from_millis(100);
        loop {
            let left = give_up_at.saturating_duration_since(Instant::now());
            let timed_out = || Error::unavailable("the database did not answer in time");
            let opened = tokio::time::timeout(left, Self::open(options)).await;
            let error = match opened.unwrap_or_else(|_| Err(timed_out())) {
                Err(error) if error.code().is_outage() && Instant::now() + pause < give_up_at => error,
                outcome => return outcome,
            };
            tracing::warn!(error = error.chain(), retry_in = ?pause, "waiting for {name}");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(5));
        }
    }

    /// Looks for damage if that is quick: in small embedded databases.
    async fn check_integrity(&self) -> Result<()> {
        match self {
            Self::Postgres(..) => Ok(()),
            Self::Sqlite(_, reader) => sqlite::check_integrity(reader).await,
        }
    }

    async fn schema(&self, backend: Backend) -> Result<SchemaStatus> {
        let sql = "SELECT version, checksum FROM _sqlx_migrations WHERE success ORDER BY version";
        let applied: Result<Vec<AppliedMigration>, sqlx::Error> = match self {
            Self::Postgres(_, reader) => sqlx::query_as(sql).fetch_all(reader).await,
            Self::Sqlite(_, reader) => sqlx::query_as(sql).fetch_all(reader).await,
        };
        let applied = match applied {
            Ok(applied) => applied,
            // The table is missing: the database was never migrated.
            Err(sqlx::Error::Database(error)) if is_missing_table(error.as_ref()) => Vec::new(),
            Err(error) => return Err(db(error)),
        };
        check_migrations(backend.migrator(), &applied)?;
        let found = applied.last().map_or(0, |(version, _)| *version);
        Ok(SchemaStatus { found, required: backend.required_version() })
    }
}

/// The version and the checksum of a migration that the database has.
type AppliedMigration = (i64, Vec<u8>);

/// Fails if the database was migrated by other migrations of the same numbers, or lacks some of them.
fn check_migrations(known: &Migrator, applied: &[AppliedMigration]) -> Result<()> {
    let Some((newest, _)) = applied.last() else { return Ok(()) };
    for migration in known.iter().filter(|migration| migration.version <= *newest) {
        let (version, name) = (migration.version, &migration.description);
        let problem = match applied.iter().find(|(applied, _)| *applied == version) {
            Some((_, checksum)) if checksum[..] == migration.checksum[..] => continue,
            Some(_) => "is not the one of this binary: another build migrated the database, or it is damaged",
            None => "is missing: the database is damaged",
        };
        let message = format!("migration {version} ({name}) of the database {problem}; see docs/backup.md");
        return Err(Error::new(Code::SchemaMismatch, message));
    }
    Ok(())
}

impl Pools {
    async fn migrate(&self, backend: Backend) -> Result<()> {
        let done = match self {
            Self::Postgres(writer, _) => {
                let mut connection = writer.acquire().await.map_err(db)?;
                postgres::lift_time_limits(&mut connection).await?;
                backend.migrator().run(&mut *connection).await
            }
            Self::Sqlite(writer, _) => backend.migrator().run(writer).await,
        };
        done.map_err(|error| match error {
            MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => match db(error) {
                error if matches!(error.code(), Code::StorageFull | Code::StorageCorrupt) => error,
                error => Error::internal("the migration failed").with_source(error),
            },
            error => Error::internal("the migration failed").with_source(error),
        })
    }

    /// SQLite does not serialize two concurrent migrations. The slower one fails on a step that the other has done; it
    /// retries as long as the version advances.
    async fn follow_concurrent_migration(
        &self,
        backend: Backend,
        mut found: i64,
        mut error: Error,
    ) -> Result<()> {
        loop {
            let now = self.schema(backend).await?;
            if now.check().is_ok() {
                return Ok(());
            }
            if now.found <= found {
                return Err(error);
            }
            found = now.found;
            error = match self.migrate(backend).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
        }
    }
}

/// Maps an error of opening. The driver's message may contain host and user, but never the password.
fn opening_failed(error: sqlx::Error) -> Error {
    let refused = match &error {
        sqlx::Error::Configuration(_) => {
            return Error::invalid("store.url", "expected a valid database URL").with_source(error);
        }
        sqlx::Error::Database(database) if database.code().is_some_and(|code| is_corrupt(&code)) => {
            return storage_corrupt(error).at("store.url");
        }
        // PostgreSQL 28xxx: wrong password, 3D000: no such database. SQLite 14: cannot be opened. Retrying does not
        // help.
        sqlx::Error::Database(database) => {
            let permanent = |code: &str| code.starts_with("28") || matches!(code, "3D000" | "14");
            database.code().is_some_and(|code| permanent(&code))
        }
        _ => false,
    };
    if refused {
        return Error::invalid("store.url", "the database refused the connection").with_source(error);
    }
    Error::unavailable("the database cannot be reached").with_source(error)
}

fn is_missing_table(error: &dyn sqlx::error::DatabaseError) -> bool {
    error.code().as_deref() == Some("42P01") || error.message().contains("no such table")
}

/// Keeps other users of this machine out of the files of an embedded database.
fn protect_files(options: &Options) -> Result<()> {
    match options.backend()? {
        Backend::Postgres => Ok(()),
        Backend::Sqlite => sqlite::protect_files(&options.url).map_err(opening_failed),
    }
}

/// Opens the store. Fails with `schema_mismatch` unless the schema has the version this binary needs, see [`migrate`].
pub async fn connect(options: &Options) -> Result<Arc<dyn Store>> {
    let backend = options.backend()?;
    protect_files(options)?;
    let pools = Pools::open_with_retry(options).await?;
    pools.schema(backend).await?.check()?;
    Ok(match pools {
        Pools::Postgres(writer, reader) => {
            Arc::new(postgres::SqlStore::new(postgres::Context::new(writer, reader, options)))
        }
        Pools::Sqlite(writer, reader) => {
            Arc::new(sqlite::SqlStore::new(sqlite::Context::new(writer, reader, options)))
        }
    })
}

/// Migrates the schema to the version this binary needs, and returns the status from before. Idempotent and safe to run
/// concurrently.
pub async fn migrate(options: &Options) -> Result<SchemaStatus> {
    let backend = options.backend()?;
    protect_files(options)?;
    let pools = Pools::open_with_retry(options).await?;
    pools.check_integrity().await?;
    let before = pools.schema(backend).await?;
    if before.found > before.required {
        before.check()?;
    }
    match pools.migrate(backend).await {
        Ok(()) => Ok(before),
        Err(error) => pools.follow_concurrent_migration(backend, before.found, error).await.map(|()| before),
    }
}

/// Reads the schema version without changing anything.
pub async fn schema_status(options: &Options) -> Result<SchemaStatus> {
    let pools = Pools::open_with_retry(options).await?;
    pools.check_integrity().await?;
    pools.schema(options.backend()?).await
}
