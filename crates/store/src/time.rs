//! One time type for both databases: `timestamptz` on PostgreSQL, microseconds since 1970 on SQLite.

use remuda_domain::Timestamp;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use sqlx::{
    Database, Decode, Encode, Postgres, Sqlite, Type,
    encode::IsNull,
    error::BoxDynError,
    postgres::{PgHasArrayType, PgTypeInfo},
};

/// A timestamp column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DbTime(pub(crate) Timestamp);

impl Type<Postgres> for DbTime {
    fn type_info() -> <Postgres as Database>::TypeInfo {
        <Timestamp as Type<Postgres>>::type_info()
    }
}

impl Encode<'_, Postgres> for DbTime {
    fn encode_by_ref(
        &self,
        buffer: &mut <Postgres as Database>::ArgumentBuffer,
    ) -> Result<IsNull, BoxDynError> {
        <Timestamp as Encode<'_, Postgres>>::encode_by_ref(&self.0, buffer)
    }
}

impl<'r> Decode<'r, Postgres> for DbTime {
    fn decode(value: <Postgres as Database>::ValueRef<'r>) -> Result<Self, BoxDynError> {
        <Timestamp as Decode<'r, Postgres>>::decode(value).map(Self)
    }
}

impl PgHasArrayType for DbTime {
    fn array_type_info() -> PgTypeInfo {
        Timestamp::array_type_info()
    }
}

impl Type<Sqlite> for DbTime {
    fn type_info() -> <Sqlite as Database>::TypeInfo {
        <i64 as Type<Sqlite>>::type_info()
    }

    fn compatible(ty: &<Sqlite as Database>::TypeInfo) -> bool {
        <i64 as Type<Sqlite>>::compatible(ty)
    }
}

impl<'q> Encode<'q, Sqlite> for DbTime {
    fn encode_by_ref(
        &self,
        buffer: &mut <Sqlite as Database>::ArgumentBuffer,
    ) -> Result<IsNull, BoxDynError> {
        <i64 as Encode<'q, Sqlite>>::encode_by_ref(&self.0.timestamp_micros(), buffer)
    }
}

impl<'r> Decode<'r, Sqlite> for DbTime {
    fn decode(value: <Sqlite as Database>::ValueRef<'r>) -> Result<Self, BoxDynError> {
        let micros = <i64 as Decode<'r, Sqlite>>::decode(value)?;
        Timestamp::from_timestamp_micros(micros).map(Self).ok_or_else(|| "time out of range".into())
    }
}

impl ToSql for DbTime {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.0.timestamp_micros().into())
    }
}

impl FromSql for DbTime {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let micros = value.as_i64()?;
        Timestamp::from_timestamp_micros(micros).map(Self).ok_or(FromSqlError::OutOfRange(micros))
    }
}

/// The current time, truncated to the precision of both databases, so that a value survives a round trip.
pub(crate) fn now() -> Timestamp {
    let now = chrono::Utc::now();
    Timestamp::from_timestamp_micros(now.timestamp_micros()).unwrap_or(now)
}
