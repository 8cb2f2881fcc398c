//! Conversions of budgets, limits and totals.

use remuda_domain::{
    budget::{Amount, Budget, Limit, Total},
    error::Result,
};

use crate::v1;

impl From<Limit> for v1::Limit {
    fn from(limit: Limit) -> Self {
        Self { tokens: limit.tokens, micros: limit.micros }
    }
}

/// Converts a limit of a request.
pub fn limit(field: &str, given: v1::Limit) -> Result<Limit> {
    let limit = Limit { tokens: given.tokens, micros: given.micros };
    limit.check(field)?;
    Ok(limit)
}

impl From<v1::Budget> for Budget {
    fn from(budget: v1::Budget) -> Self {
        let limit = budget.limit.unwrap_or_default();
        Self {
            limit: Limit { tokens: limit.tokens, micros: limit.micros },
            spent: Amount { tokens: budget.spent_tokens, micros: budget.spent_micros },
            reserved: Amount { tokens: budget.reserved_tokens, micros: budget.reserved_micros },
        }
    }
}

impl From<Budget> for v1::Budget {
    fn from(budget: Budget) -> Self {
        Self {
            limit: Some(budget.limit.into()),
            spent_tokens: budget.spent.tokens,
            spent_micros: budget.spent.micros,
            reserved_tokens: budget.reserved.tokens,
            reserved_micros: budget.reserved.micros,
        }
    }
}

impl From<Total> for v1::Total {
    fn from(total: Total) -> Self {
        Self { model_calls: total.model_calls, usage: Some(total.usage.into()), micros: total.micros }
    }
}
