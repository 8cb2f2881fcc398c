//! A text column whose value is shared: the JSON of events is stored and published without a copy.

use std::sync::Arc;

use rusqlite::types::{ToSql, ToSqlOutput};
use sqlx::postgres::{PgHasArrayType, PgTypeInfo};

#[derive(Clone, Debug, sqlx_macros::Type)]
#[sqlx(transparent, no_pg_array)]
pub(crate) struct SharedText(pub(crate) Arc<str>);

impl PgHasArrayType for SharedText {
    fn array_type_info() -> PgTypeInfo {
        <String as PgHasArrayType>::array_type_info()
    }
}

impl ToSql for SharedText {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::from(&*self.0))
    }
}
