//! Writes rows on SQLite: a few rows per statement on a pooled connection, one on the flush thread's own.

use remuda_domain::error::Result;
use sqlx::{AssertSqlSafe, query};

use super::dialect::Connection;
use crate::{
    error::db,
    written_row::{Role, WrittenRow},
};

/// Most rows of one statement. A statement on a pooled connection is a message to another thread and back, which costs
/// more than writing a row; but each number of rows is prepared once more.
const MAX_ROWS: usize = 16;

/// Inserts or updates rows, each at most once.
pub(super) async fn write<R: WrittenRow>(connection: &mut Connection, rows: &[R]) -> Result<()> {
    for rows in rows.chunks(MAX_ROWS) {
        let statement = query(AssertSqlSafe(statement::<R>(rows.len())));
        let statement = rows.iter().fold(statement, |statement, row| row.bind(statement));
        statement.execute(&mut *connection).await.map_err(db)?;
    }
    Ok(())
}

/// Inserts or updates a row on the flush thread's connection.
pub(super) fn write_raw<R: WrittenRow>(connection: &rusqlite::Connection, row: &R) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(R::sqlite_statement(|| statement::<R>(1)))?;
    row.bind_raw(&mut statement)?;
    statement.raw_execute()?;
    Ok(())
}

/// The statement that inserts rows, or updates the rows `t`. Its parameters are the columns without the guards, row by
/// row.
fn statement<R: WrittenRow>(rows: usize) -> String {
    let columns: Vec<_> = R::COLUMNS.iter().filter(|column| column.role != Role::Guard).collect();
    let names = columns.iter().map(|column| column.name).collect::<Vec<_>>().join(", ");
    let row = format!("({})", vec!["?"; columns.len()].join(", "));
    let values = vec![row.as_str(); rows].join(", ");
    let table = R::TABLE;
    if !R::is_update() {
        return format!("INSERT INTO {table} ({names}) VALUES {values}");
    }
    // A single row needs no temporary table.
    let (with, from) = match rows {
        1 => (String::new(), ""),
        _ => (format!("WITH n ({names}) AS (VALUES {values}) "), " FROM n"),
    };
    let (mut set, mut keys) = (Vec::new(), String::new());
    for (column, n) in columns.iter().zip(1..) {
        let name = column.name;
        let value = if rows == 1 { format!("?{n}") } else { format!("n.{name}") };
        match column.role {
            Role::Key => keys += &format!(" AND t.{name} = {value}"),
            Role::Set => set.push(format!("{name} = {value}")),
            Role::Add => set.push(format!("{name} = t.{name} + {value}")),
            Role::Keep | Role::Sqlite => set.push(format!("{name} = coalesce({value}, t.{name})")),
            Role::Guard => {}
        }
    }
    let (set, also_set) = (set.join(", "), R::ALSO_SET);
    format!("{with}UPDATE {table} AS t SET {set}{also_set}{from} WHERE TRUE{keys}{}", R::CONDITION)
}
