//! Writes rows on PostgreSQL: one statement for many rows, which are passed as one array per column.

use std::collections::HashSet;

use remuda_domain::{Error, error::Result};
use sqlx::{Arguments as _, AssertSqlSafe, postgres::PgArguments, query_scalar_with, query_with};
use uuid::Uuid;

use super::{dialect::Connection, write_set::WriteSet};
use crate::{
    error::db,
    rows::{HeadWrite, WORKER_GONE},
    written_row::{Column, Role, WrittenRow},
};

/// Inserts rows, or updates rows that the transaction has locked.
pub(super) async fn write<R: WrittenRow>(connection: &mut Connection, rows: &[R]) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut parameters = Parameters { arguments: PgArguments::default(), guarded: false };
    let sql = parameters.statement(&rows.iter().collect::<Vec<_>>())?;
    query_with(AssertSqlSafe(sql), parameters.arguments).execute(connection).await.map_err(db)?;
    Ok(())
}

/// Writes small write sets of different sessions in one statement, without locks: each one only if its session has the
/// version that was read, and if the lease of the worker that gets it is live. Returns the sessions that were written.
pub(super) async fn write_unchanged(
    connection: &mut Connection,
    sets: &[&WriteSet],
) -> Result<HashSet<Uuid>> {
    let mut parameters = Parameters { arguments: PgArguments::default(), guarded: true };
    // The same order in which sessions are locked, so that statements cannot deadlock.
    let mut heads: Vec<&HeadWrite> = sets.iter().flat_map(|set| &set.heads).collect();
    heads.sort_unstable_by_key(|head| head.id);
    let has_grants = heads.iter().any(|head| head.granted_to.is_some());
    let update = parameters.statement(&heads)?;
    let live_worker = match has_grants {
        true => format!(
            " AND (n.granted_to IS NULL OR EXISTS (SELECT 1 FROM workers w WHERE w.id = n.granted_to \
             AND w.state < {WORKER_GONE} AND w.lease_until > clock_timestamp()))"
        ),
        false => String::new(),
    };
    let mut parts = vec![format!("won AS ({update} AND t.version = n.version{live_worker} RETURNING t.id)")];
    parameters.part("queued", sets.iter().flat_map(|set| &set.runs), &mut parts)?;
    parameters.part("labelled", sets.iter().flat_map(|set| &set.labels), &mut parts)?;
    parameters.part("ended", sets.iter().flat_map(|set| &set.finished), &mut parts)?;
    parameters.part("appended", sets.iter().flat_map(|set| &set.chunks), &mut parts)?;
    let sql = format!("WITH {} SELECT id FROM won", parts.join(", "));
    let statement = query_scalar_with(AssertSqlSafe(sql), parameters.arguments);
    let written: Vec<Uuid> = statement.fetch_all(connection).await.map_err(db)?;
    Ok(written.into_iter().collect())
}

/// The parameters of a statement.
struct Parameters {
    arguments: PgArguments,
    /// Whether the statement compares guards.
    guarded: bool,
}

impl Parameters {
    /// Adds the rows of sessions that were won, and the part of the statement that writes them.
    fn part<'a, R: WrittenRow + 'a>(
        &mut self,
        name: &str,
        rows: impl Iterator<Item = &'a R>,
        parts: &mut Vec<String>,
    ) -> Result<()> {
        let rows: Vec<&R> = rows.collect();
        if !rows.is_empty() {
            let statement = self.statement(&rows)?;
            // `coalesce` keeps the planner from making a join of it, which would compare every row with every session:
            // hash joins are off.
            let won = "coalesce(n.session_id IN (SELECT id FROM won), FALSE)";
            parts.push(format!("{name} AS ({statement} AND {won})"));
        }
        Ok(())
    }

    /// Adds rows and returns the statement that inserts the rows `n`, or updates the rows `t` from them. It ends with a
    /// condition.
    fn statement<R: WrittenRow>(&mut self, rows: &[&R]) -> Result<String> {
        let first = self.arguments.len() + 1;
        let rejected = |error| Error::internal("a value cannot be encoded").with_source(error);
        R::bind_arrays(rows, self.guarded, &mut self.arguments).map_err(rejected)?;
        let bound = R::COLUMNS.iter().filter(|column| column.role.is_bound_on_postgres(self.guarded));
        let arrays = bound.clone().zip(first..).map(|(column, n)| format!("${n}::{}[]", column.sql_type));
        let columns = join(bound.map(|column| column.name.to_owned()));
        let source = format!("unnest({}) AS n ({columns})", join(arrays));
        let table = R::TABLE;
        if !R::is_update() {
            let written = R::COLUMNS.iter().filter(|column| column.role.is_bound_on_postgres(false));
            let written = join(written.map(|column| column.name.to_owned()));
            return Ok(format!("INSERT INTO {table} ({written}) SELECT {written} FROM {source} WHERE TRUE"));
        }
        let (set, also_set) = (join(R::COLUMNS.iter().filter_map(set)), R::ALSO_SET);
        let keys = R::COLUMNS.iter().filter(|column| column.role == Role::Key);
        let keys: String = keys.map(|column| format!(" AND t.{0} = n.{0}", column.name)).collect();
        Ok(format!("UPDATE {table} t SET {set}{also_set} FROM {source} WHERE TRUE{keys}{}", R::CONDITION))
    }
}

/// The assignment to a column, if it is written.
fn set(column: &Column) -> Option<String> {
    let name = column.name;
    match column.role {
        Role::Set => Some(format!("{name} = n.{name}")),
        Role::Add => Some(format!("{name} = t.{name} + n.{name}")),
        Role::Keep => Some(format!("{name} = coalesce(n.{name}, t.{name})")),
        Role::Key | Role::Guard | Role::Sqlite => None,
    }
}

fn join(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}
