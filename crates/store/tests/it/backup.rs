//! Damaged databases, and the backups of docs/backup.md.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use remuda_domain::{Code, Error, error};
use remuda_store::{Options, connect, migrate, schema_status};
use remuda_testkit::{TestDatabase, postgres_program};
use sqlx::{Connection as _, SqliteConnection};

use crate::{
    fixture::{Fixture, PATIENCE, TestDb, input},
    query_plans::execute,
};

const PAGE: &str = include_str!("../../../../docs/backup.md");

fn points_to_the_page<T>(outcome: error::Result<T>, code: Code) -> Result<Error> {
    let error = outcome.err().context("the database was accepted")?;
    assert_eq!(error.code(), code, "{error:?}");
    assert!(error.message().contains("docs/backup.md"), "{error:?}");
    Ok(error)
}

/// A fixture on a directory whose database is closed again, with some data.
async fn closed_database(directory: &Path) -> Result<Options> {
    let fixture = Fixture::on(TestDb::Existing(directory.to_owned())).await?;
    let session = fixture.session().await?;
    for _ in 0..20 {
        let mut run = fixture.new_run(session);
        run.run.input = input(&"x".repeat(10_000));
        fixture.store.submit(run).await?;
    }
    let options = fixture.options();
    drop(fixture);
    // Moves everything from the write-ahead log into the database.
    let mut connection = SqliteConnection::connect(&options.url).await?;
    sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut connection).await?;
    connection.close().await?;
    Ok(options)
}

#[tokio::test]
async fn damaged_sqlite_database_is_refused_as_corrupt() -> Result<()> {
    for damage in ["truncated", "overwritten", "not a database"] {
        let directory = tempfile::tempdir()?;
        let options = closed_database(directory.path()).await?;
        let path = directory.path().join("remuda.db");
        for file in ["remuda.db-wal", "remuda.db-shm"] {
            fs::remove_file(directory.path().join(file)).ok();
        }
        let file = File::options().write(true).open(&path)?;
        let size = file.metadata()?.len();
        match damage {
            "truncated" => file.set_len(size / 2)?,
            "overwritten" => file.write_all_at(&vec![0xa5; usize::try_from(size / 2)?], size / 4)?,
            _ => file.write_all_at(b"something else entirely", 0)?,
        }
        drop(file);
        let before = fs::read(&path)?;
        points_to_the_page(schema_status(&options).await, Code::StorageCorrupt)?;
        points_to_the_page(migrate(&options).await, Code::StorageCorrupt)?;
        ensure!(fs::read(&path)? == before, "a {damage} database was changed");
    }
    Ok(())
}

pub(crate) async fn changed_or_missing_migration_is_refused(fixture: &Fixture) -> Result<()> {
    let options = fixture.options();
    // As text, so that one statement serves both.
    execute(fixture, "UPDATE _sqlx_migrations SET checksum = 'abc' WHERE version = 2").await?;
    for refused in [
        connect(&options).await.map(|_| ()),
        migrate(&options).await.map(|_| ()),
        schema_status(&options).await.map(|_| ()),
    ] {
        let error = points_to_the_page(refused, Code::SchemaMismatch)?;
        assert!(error.message().starts_with("migration 2 (recovery) of the database is not"), "{error:?}");
    }
    execute(fixture, "DELETE FROM _sqlx_migrations WHERE version = 2").await?;
    let error = points_to_the_page(connect(&options).await.map(drop), Code::SchemaMismatch)?;
    assert!(error.message().contains("migration 2 (recovery) of the database is missing"), "{error:?}");
    Ok(())
}

/// Fails unless the page has this command.
fn documented(command: &str) -> &str {
    assert!(PAGE.contains(command), "docs/backup.md does not say {command}");
    command
}

async fn continues(fixture: Fixture, restored: &Options) -> Result<()> {
    let session = fixture.session().await?;
    let run = fixture.submit(session).await?.run;
    let (tenant, after) = (fixture.tenant, fixture.submit(session).await?.run.id);
    let store = connect(restored).await?;
    ensure!(store.get_run(tenant, run.id).await.is_err(), "the backup is older than this run");
    ensure!(store.get_run(tenant, after).await.is_err());
    Ok(())
}

#[tokio::test]
async fn sqlite_backup_of_a_running_server_can_be_restored() -> Result<()> {
    let fixture = Fixture::sqlite().await?;
    let session = fixture.session().await?;
    let run = fixture.submit(session).await?.run.id;
    let directory = tempfile::tempdir()?;
    let copy = directory.path().join("remuda.db");
    // What the command-line shell of SQLite executes.
    documented("sqlite3 \"$DATA/remuda.db\" \"VACUUM INTO '$BACKUP/remuda.db'\"");
    let mut connection = SqliteConnection::connect(&fixture.options().url).await?;
    sqlx::query("VACUUM INTO $1").bind(copy.to_str()).execute(&mut connection).await?;
    let restored = Fixture::existing(TestDb::Existing(directory.path().to_owned())).await?;
    ensure!(restored.run(run).await?.id == run);
    restored.submit(session).await?;
    restored.check(session).await?;
    continues(fixture, &restored.options()).await
}

#[tokio::test]
async fn postgres_backup_of_a_running_server_can_be_restored() -> Result<()> {
    let (fixture, target) = (Fixture::postgres().await?, TestDatabase::create()?);
    let session = fixture.session().await?;
    let run = fixture.submit(session).await?.run.id;
    let directory = tempfile::tempdir()?;
    let dump = directory.path().join("remuda.dump");
    documented("pg_dump --format=custom --file=\"$BACKUP/remuda.dump\" \"$DATABASE_URL\"");
    program("pg_dump", |command| {
        command.arg("--format=custom").arg(format!("--file={}", dump.display())).arg(fixture.options().url);
    })?;
    documented(
        "pg_restore --exit-on-error --no-owner --dbname=\"$NEW_DATABASE_URL\" \"$BACKUP/remuda.dump\"",
    );
    program("pg_restore", |command| {
        command.args(["--exit-on-error", "--no-owner"]).arg(format!("--dbname={}", target.url())).arg(&dump);
    })?;
    let restored = Fixture::existing(TestDb::Database(target)).await?;
    ensure!(restored.run(run).await?.id == run);
    restored.submit(session).await?;
    restored.check(session).await?;
    continues(fixture, &Options { connect_timeout: PATIENCE, ..restored.options() }).await
}

fn program(name: &str, arguments: impl FnOnce(&mut Command)) -> Result<()> {
    let mut command = Command::new(postgres_program(name)?);
    arguments(&mut command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {name}"))?;
    ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
