//! Rows that the write path inserts and updates, each declared once.
//!
//! A declaration lists the columns with their PostgreSQL types and says how each one is written. Both dialects build
//! their statements and bind their values from it, so a column cannot be forgotten in one of them.

use sqlx::{Sqlite, postgres::PgArguments, sqlite::SqliteArguments};

pub(crate) type EncodeResult = std::result::Result<(), sqlx::error::BoxDynError>;
pub(crate) type SqliteQuery<'q> = sqlx::query::Query<'q, Sqlite, SqliteArguments>;

/// What a statement does with a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Identifies the row to update.
    Key,
    /// Is written.
    Set,
    /// Is added to the stored value.
    Add,
    /// Replaces the stored value unless it is null.
    Keep,
    /// Is not written: PostgreSQL compares it before it writes anything.
    Guard,
    /// Exists on SQLite only. Null keeps the stored value.
    Sqlite,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    /// The type on PostgreSQL.
    pub(crate) sql_type: &'static str,
    pub(crate) role: Role,
}

/// A row of the write path, see [`written_row!`].
pub(crate) trait WrittenRow: Sized {
    const TABLE: &'static str;
    const COLUMNS: &'static [Column];
    /// What an update of the row `t` sets beside the columns.
    const ALSO_SET: &'static str;
    /// Which rows `t` are updated at all.
    const CONDITION: &'static str;

    /// The row's statement on SQLite, built once.
    fn sqlite_statement(build: fn() -> String) -> &'static str;
    /// Binds one array per column of PostgreSQL. Guards are bound only if they are compared.
    fn bind_arrays(rows: &[&Self], guarded: bool, arguments: &mut PgArguments) -> EncodeResult;
    /// Binds all columns but the guards.
    fn bind<'q>(&self, query: SqliteQuery<'q>) -> SqliteQuery<'q>;
    /// Binds all columns but the guards, on the flush thread's connection.
    fn bind_raw(&self, statement: &mut rusqlite::Statement<'_>) -> rusqlite::Result<()>;

    /// Whether rows are updated, and not inserted.
    fn is_update() -> bool {
        Self::COLUMNS.iter().any(|column| column.role == Role::Key)
    }
}

impl Role {
    /// Whether the column is part of a statement on PostgreSQL.
    pub(crate) fn is_bound_on_postgres(self, guarded: bool) -> bool {
        match self {
            Self::Key | Self::Set | Self::Add | Self::Keep => true,
            Self::Guard => guarded,
            Self::Sqlite => false,
        }
    }
}

/// Declares a [`WrittenRow`].
macro_rules! written_row {
    (
        $(#[$meta:meta])*
        struct $name:ident in $table:ident {
            $($(#[$field_meta:meta])* $role:ident $field:ident: $type:ty => $sql:ident,)*
        }
        $(set $also:literal)?
        $(where $condition:literal)?
    ) => {
        $(#[$meta])*
        #[derive(Debug)]
        pub(crate) struct $name {
            $($(#[$field_meta])* pub(crate) $field: $type,)*
        }

        impl $crate::written_row::WrittenRow for $name {
            const TABLE: &'static str = stringify!($table);
            const ALSO_SET: &'static str = concat!($(", ", $also)?);
            const CONDITION: &'static str = concat!($(" AND ", $condition)?);
            const COLUMNS: &'static [$crate::written_row::Column] = &[$($crate::written_row::Column {
                name: stringify!($field),
                sql_type: stringify!($sql),
                role: $crate::written_row::Role::$role,
            },)*];

            fn sqlite_statement(build: fn() -> String) -> &'static str {
                static STATEMENT: std::sync::OnceLock<String> = std::sync::OnceLock::new();
                STATEMENT.get_or_init(build)
            }

            fn bind_arrays(
                rows: &[&Self],
                guarded: bool,
                arguments: &mut sqlx::postgres::PgArguments,
            ) -> $crate::written_row::EncodeResult {
                $(if $crate::written_row::Role::$role.is_bound_on_postgres(guarded) {
                    sqlx::Arguments::add(arguments, rows.iter().map(|row| &row.$field).collect::<Vec<_>>())?;
                })*
                Ok(())
            }

            fn bind<'q>(
                &self,
                mut query: $crate::written_row::SqliteQuery<'q>,
            ) -> $crate::written_row::SqliteQuery<'q> {
                $(if $crate::written_row::Role::$role != $crate::written_row::Role::Guard {
                    query = query.bind(&self.$field);
                })*
                query
            }

            fn bind_raw(&self, statement: &mut rusqlite::Statement<'_>) -> rusqlite::Result<()> {
                let mut parameter = 0;
                $(if $crate::written_row::Role::$role != $crate::written_row::Role::Guard {
                    parameter += 1;
                    statement.raw_bind_parameter(parameter, &self.$field)?;
                })*
                Ok(())
            }
        }
    };
}
