//! Budget rows and spending totals.

use remuda_domain::{
    budget::{Amount, Budget, Limit, Total},
    model::Usage,
};
use sqlx_macros::FromRow;
use uuid::Uuid;

/// Upper bound for stored amounts: far beyond real spending, and small enough that sums fit into the database's
/// integers.
const MAX: u64 = 1 << 53;

/// Converts a count to the databases' integer type.
pub(crate) fn count_to_db(count: u64) -> i64 {
    i64::try_from(count.min(MAX)).unwrap_or(i64::MAX)
}

pub(crate) fn amount_to_db(amount: Amount) -> (i64, i64) {
    (count_to_db(amount.tokens), count_to_db(amount.micros))
}

pub(crate) fn amount_from_db(tokens: i64, micros: i64) -> Amount {
    Amount { tokens: count(tokens), micros: count(micros) }
}

fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// The spending of one run, or the sum over many.
#[derive(Clone, Copy, Debug, FromRow)]
pub(crate) struct TotalRow {
    pub(crate) model_calls: Option<i64>,
    pub(crate) input_tokens: Option<i64>,
    pub(crate) output_tokens: Option<i64>,
    pub(crate) cached_tokens: Option<i64>,
    pub(crate) cache_write_tokens: Option<i64>,
    pub(crate) reasoning_tokens: Option<i64>,
    pub(crate) cost_micros: Option<i64>,
}

impl TotalRow {
    pub(crate) fn into_total(self) -> Total {
        let number = |number: Option<i64>| count(number.unwrap_or(0));
        Total {
            model_calls: number(self.model_calls),
            usage: Usage {
                input_tokens: number(self.input_tokens),
                output_tokens: number(self.output_tokens),
                cached_input_tokens: number(self.cached_tokens),
                cache_write_tokens: number(self.cache_write_tokens),
                reasoning_tokens: number(self.reasoning_tokens),
            },
            micros: number(self.cost_micros),
        }
    }
}

#[derive(Clone, Copy, Debug, FromRow)]
pub(crate) struct BudgetRow {
    pub(crate) id: Uuid,
    limit_tokens: Option<i64>,
    limit_micros: Option<i64>,
    spent_tokens: i64,
    spent_micros: i64,
    reserved_tokens: i64,
    reserved_micros: i64,
}

impl BudgetRow {
    pub(crate) fn into_budget(self) -> Budget {
        Budget {
            limit: Limit { tokens: self.limit_tokens.map(count), micros: self.limit_micros.map(count) },
            spent: amount_from_db(self.spent_tokens, self.spent_micros),
            reserved: amount_from_db(self.reserved_tokens, self.reserved_micros),
        }
    }
}
