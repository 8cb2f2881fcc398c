//! Opening a store: schema versions and errors.

use std::{
    path::Path,
    str::FromStr as _,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use remuda_domain::{Code, Labels, RunId, TenantId};
use remuda_store::{Options, connect, migrate, schema_status};
use sqlx::{AssertSqlSafe, Connection as _, migrate::Migrator};

use crate::fixture::{Fixture, refusal};

pub(crate) async fn migrating_twice_changes_nothing(fixture: &Fixture) -> Result<()> {
    let session = fixture.session().await?;
    let before = migrate(&fixture.options()).await?;
    assert_eq!(before.found, before.required);
    assert_eq!(schema_status(&fixture.options()).await?, before);
    fixture.check(session).await
}

pub(crate) async fn concurrent_migrations_succeed(fixture: &Fixture) -> Result<()> {
    let database = fixture.empty_database()?;
    let options = database.options();
    let (one, two, three) = tokio::join!(migrate(&options), migrate(&options), migrate(&options));
    one.and(two).and(three)?;
    connect(&options).await?.ping().await?;
    Ok(())
}

/// A run as version 0.1.0 stored it, in place of `{uuid}` one id, and of `{now}` a time.
const OLD_RUN: [&str; 3] = [
    "INSERT INTO workspaces (id, tenant_id, name, root, created_at) VALUES ({uuid}, {uuid}, 'w', '/w', {now})",
    "INSERT INTO sessions (id, tenant_id, workspace_id, title, pool, created_at, pending, last_seq) \
     VALUES ({uuid}, {uuid}, {uuid}, '', 'default', {now}, 1, 1)",
    "INSERT INTO runs (id, tenant_id, session_id, seq, state, input, timeout_ms, created_at) \
     VALUES ({uuid}, {uuid}, {uuid}, 1, 0, '{\"kind\":\"tools\",\"calls\":[]}', 1000, {now})",
];

fn old_run(uuid: &str, now: &str) -> impl Iterator<Item = AssertSqlSafe<String>> {
    OLD_RUN.into_iter().map(move |sql| AssertSqlSafe(sql.replace("{uuid}", uuid).replace("{now}", now)))
}

/// Migrates from the version before the newest one, with existing rows.
pub(crate) async fn migration_keeps_existing_rows(fixture: &Fixture) -> Result<()> {
    let database = fixture.empty_database()?;
    let url = database.options().url;
    let earlier = all_but_the_newest(fixture.is_postgres())?;
    let tenant = uuid::Uuid::now_v7();
    if fixture.is_postgres() {
        let mut connection = sqlx::PgConnection::connect(&url).await?;
        Migrator::new(earlier.path()).await?.run(&mut connection).await?;
        let insert = "INSERT INTO tenants VALUES ($1, 'acme', now())";
        sqlx::query(insert).bind(tenant).execute(&mut connection).await?;
        for sql in old_run(&format!("'{tenant}'"), "now()") {
            sqlx::query(sql).execute(&mut connection).await?;
        }
    } else {
        let created = sqlx::sqlite::SqliteConnectOptions::from_str(&url)?.create_if_missing(true);
        let mut connection = sqlx::SqliteConnection::connect_with(&created).await?;
        Migrator::new(earlier.path()).await?.run(&mut connection).await?;
        let insert = "INSERT INTO tenants VALUES ($1, 'acme', 0)";
        sqlx::query(insert).bind(tenant).execute(&mut connection).await?;
        for sql in old_run(&format!("X'{}'", tenant.simple()), "0") {
            sqlx::query(sql).execute(&mut connection).await?;
        }
    }
    let before = migrate(&database.options()).await?;
    assert!(0 < before.found && before.found < before.required, "{before:?}");
    let store = connect(&database.options()).await?;
    assert_eq!(store.find_tenant("acme").await?.map(|it| it.id.as_uuid()), Some(tenant));
    let run = store.get_run(TenantId::from_uuid(tenant), RunId::from_uuid(tenant)).await?;
    assert_eq!((run.seq, run.labels), (1, Labels::default()));
    Ok(())
}

/// A directory with all migrations except the newest.
fn all_but_the_newest(postgres: bool) -> Result<tempfile::TempDir> {
    copied_migrations(postgres, |files| {
        files.pop();
    })
}

/// A directory with all migrations before the one of this name.
pub(crate) fn migrations_before(postgres: bool, name: &str) -> Result<tempfile::TempDir> {
    copied_migrations(postgres, |files| {
        let named = |file: &std::path::PathBuf| file.to_string_lossy().ends_with(&format!("_{name}.sql"));
        files.truncate(files.iter().position(named).unwrap_or_default());
    })
}

fn copied_migrations(
    postgres: bool,
    leave_out: impl FnOnce(&mut Vec<std::path::PathBuf>),
) -> Result<tempfile::TempDir> {
    let migrations = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../migrations");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(migrations.join(if postgres { "postgres" } else { "sqlite" }))? {
        files.push(entry?.path());
    }
    files.sort();
    leave_out(&mut files);
    let directory = tempfile::tempdir()?;
    for file in &files {
        std::fs::copy(file, directory.path().join(file.file_name().context("no name")?))?;
    }
    Ok(directory)
}

pub(crate) async fn unmigrated_database_is_refused_with_advice(fixture: &Fixture) -> Result<()> {
    let database = fixture.empty_database()?;
    let error = connect(&database.options()).await.err().context("an empty database was opened")?;
    assert_eq!(error.code(), Code::SchemaMismatch);
    assert!(error.to_string().contains("remuda migrate"), "{error}");
    assert_eq!(schema_status(&database.options()).await?.found, 0);
    Ok(())
}

pub(crate) async fn newer_schema_is_refused(fixture: &Fixture) -> Result<()> {
    let insert = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
                  VALUES (9999, 'from the future', TRUE, '', 0)";
    crate::query_plans::execute(fixture, insert).await?;
    let error = connect(&fixture.options()).await.err().context("a newer database was opened")?;
    assert_eq!(error.code(), Code::SchemaMismatch);
    assert!(error.to_string().contains("older than the database"), "{error}");
    let error = migrate(&fixture.options()).await.err().context("a newer database was migrated")?;
    assert_eq!(error.code(), Code::SchemaMismatch);
    Ok(())
}

fn impatient(url: &str) -> Options {
    Options { connect_timeout: Duration::from_millis(500), ..Options::new(url) }
}

#[tokio::test]
async fn invalid_url_error_names_the_field() -> Result<()> {
    for url in ["", "remuda", "mysql://host/db", "postgres://host:port/db", "postgres://s3cret@[/db"] {
        let error = connect(&impatient(url)).await.err().context("opened")?;
        assert_eq!((error.code(), error.field()), (Code::InvalidArgument, Some("store.url")), "{url}");
        assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
    }
    Ok(())
}

#[tokio::test]
async fn unreachable_database_times_out_without_revealing_its_password() -> Result<()> {
    // One port refuses connections; the other accepts them and never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    for port in [remuda_testkit::free_port()?, silent.local_addr()?.port()] {
        let options = impatient(&format!("postgres://user:s3cret@127.0.0.1:{port}/db"));
        assert!(!format!("{options:?}").contains("s3cret"));
        let begin = Instant::now();
        let error = connect(&options).await.err().context("opened")?;
        assert!(begin.elapsed() < Duration::from_secs(3), "took {:?}", begin.elapsed());
        assert_eq!(error.code(), Code::Unavailable);
        assert!(!format!("{error} {error:?} {}", error.chain()).contains("s3cret"), "{error:?}");
    }
    Ok(())
}

#[tokio::test]
async fn refused_connection_is_not_retried() -> Result<()> {
    let database = crate::fixture::TestDb::postgres()?;
    let missing = format!("{}_missing", database.options().url);
    let begin = Instant::now();
    assert_eq!(refusal(schema_status(&Options::new(missing)).await), Code::InvalidArgument);
    assert_eq!(
        refusal(schema_status(&Options::new("sqlite:/nonexistent/directory/x.db")).await),
        Code::InvalidArgument
    );
    assert!(begin.elapsed() < Duration::from_secs(10), "took {:?}", begin.elapsed());
    Ok(())
}
