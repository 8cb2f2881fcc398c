//! Writes rows on SQLite: one statement per row, on a pooled connection or on the flush thread's own.

use remuda_domain::error::Result;
use sqlx::query;

use super::dialect::Connection;
use crate::{
    error::db,
    written_row::{Role, WrittenRow},
};

/// Inserts or updates rows.
pub(super) async fn write<R: WrittenRow>(connection: &mut Connection, rows: &[R]) -> Result<()> {
    for row in rows {
        let statement = query(R::sqlite_statement(statement::<R>));
        row.bind(statement).execute(&mut *connection).await.map_err(db)?;
    }
    Ok(())
}

/// Inserts or updates a row on the flush thread's connection.
pub(super) fn write_raw<R: WrittenRow>(connection: &rusqlite::Connection, row: &R) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(R::sqlite_statement(statement::<R>))?;
    row.bind_raw(&mut statement)?;
    statement.raw_execute()?;
    Ok(())
}

/// The statement that inserts a row, or updates the row `t`. Its parameters are the columns without the guards.
fn statement<R: WrittenRow>() -> String {
    let columns: Vec<_> = R::COLUMNS.iter().filter(|column| column.role != Role::Guard).collect();
    let table = R::TABLE;
    if !R::is_update() {
        let names: Vec<&str> = columns.iter().map(|column| column.name).collect();
        let parameters = vec!["?"; columns.len()].join(", ");
        return format!("INSERT INTO {table} ({}) VALUES ({parameters})", names.join(", "));
    }
    let (mut set, mut keys) = (Vec::new(), String::new());
    for (column, n) in columns.iter().zip(1..) {
        let name = column.name;
        match column.role {
            Role::Key => keys += &format!(" AND t.{name} = ?{n}"),
            Role::Set => set.push(format!("{name} = ?{n}")),
            Role::Add => set.push(format!("{name} = t.{name} + ?{n}")),
            Role::Keep | Role::Sqlite => set.push(format!("{name} = coalesce(?{n}, t.{name})")),
            Role::Guard => {}
        }
    }
    let (set, also_set) = (set.join(", "), R::ALSO_SET);
    format!("UPDATE {table} AS t SET {set}{also_set} WHERE TRUE{keys}{}", R::CONDITION)
}
