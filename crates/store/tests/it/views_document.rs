//! The views against docs/sql.md, and their read-only access.

use anyhow::{Context as _, Result, ensure};
use sqlx::{AssertSqlSafe, Connection as _};

use crate::{
    fixture::Fixture,
    views::{CONTENTS, VIEWS, rows, runs_in_each_state},
};

const DOCUMENT: &str = include_str!("../../../../docs/sql.md");

/// No view contains any content, whatever is selected.
pub(crate) async fn views_show_no_contents(fixture: &Fixture) -> Result<()> {
    runs_in_each_state(fixture).await?;
    for view in VIEWS {
        // On SQLite ids are bytes, not text.
        let mut columns = columns_of(fixture, view).await?;
        columns.retain(|column| !column.ends_with("_uuid"));
        for row in rows(fixture, &columns.join(", "), view).await? {
            let told = row.values().flatten().find(|text| text.contains(CONTENTS));
            ensure!(told.is_none(), "{view}: {row:?}");
        }
    }
    Ok(())
}

pub(crate) async fn columns_of(fixture: &Fixture, view: &str) -> Result<Vec<String>> {
    let url = fixture.options().url;
    Ok(if fixture.is_postgres() {
        let sql = "SELECT column_name::text FROM information_schema.columns WHERE table_name = $1 ORDER BY ordinal_position";
        sqlx::query_scalar(sql).bind(view).fetch_all(&mut sqlx::PgConnection::connect(&url).await?).await?
    } else {
        let sql = "SELECT name FROM pragma_table_info($1) ORDER BY cid";
        sqlx::query_scalar(sql)
            .bind(view)
            .fetch_all(&mut sqlx::SqliteConnection::connect(&url).await?)
            .await?
    })
}

/// The columns that the document describes, by view.
fn documented(view: &str) -> Vec<&'static str> {
    let section = DOCUMENT.split(&format!("\n### {view}\n")).nth(1).unwrap_or_default();
    let section = section.split("\n#").next().unwrap_or_default();
    let column = |line: &'static str| line.strip_prefix("| `")?.split('`').next();
    section.lines().filter_map(column).collect()
}

pub(crate) async fn documentation_names_all_columns(fixture: &Fixture) -> Result<()> {
    for view in VIEWS {
        let documented = documented(view);
        ensure!(documented.len() > 5, "docs/sql.md describes too few columns of {view}: {documented:?}");
        assert_eq!(columns_of(fixture, view).await?, documented, "{view}");
    }
    Ok(())
}

pub(crate) async fn documented_queries_run(fixture: &Fixture) -> Result<()> {
    runs_in_each_state(fixture).await?;
    let url = fixture.options().url;
    let mut asked = 0;
    for block in DOCUMENT.split("```sql").skip(1) {
        let (kind, rest) = block.split_once('\n').context("no block")?;
        let sql = rest.split("```").next().context("no end")?;
        let outcome = match (kind.trim(), fixture.is_postgres()) {
            ("postgres", false) => continue,
            (_, true) => {
                let mut connection = sqlx::PgConnection::connect(&url).await?;
                sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut connection).await.map(drop)
            }
            (_, false) => {
                let mut connection = sqlx::SqliteConnection::connect(&url).await?;
                sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut connection).await.map(drop)
            }
        };
        outcome.with_context(|| sql.to_owned())?;
        asked += 1;
    }
    ensure!(asked >= 10, "only {asked} questions");
    Ok(())
}

/// Not even the owner of the views can write through them.
pub(crate) async fn views_are_read_only(fixture: &Fixture) -> Result<()> {
    runs_in_each_state(fixture).await?;
    let url = fixture.options().url;
    for view in VIEWS {
        let column = documented(view)[0];
        for sql in [
            format!("INSERT INTO {view} ({column}) VALUES ('x')"),
            format!("UPDATE {view} SET {column} = 'x'"),
            format!("DELETE FROM {view}"),
        ] {
            let done = if fixture.is_postgres() {
                let mut connection = sqlx::PgConnection::connect(&url).await?;
                sqlx::query(AssertSqlSafe(sql.clone())).execute(&mut connection).await.map(drop)
            } else {
                let mut connection = sqlx::SqliteConnection::connect(&url).await?;
                sqlx::query(AssertSqlSafe(sql.clone())).execute(&mut connection).await.map(drop)
            };
            let error = done.err().with_context(|| format!("done: {sql}"))?.to_string();
            ensure!(error.contains("cannot") || error.contains("view"), "{sql}: {error}");
        }
    }
    Ok(())
}
