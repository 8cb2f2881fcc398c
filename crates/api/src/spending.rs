//! Spending and its limits.

use remuda_proto::v1;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Total spending.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Total {
    pub model_calls: u64,
    #[serde(flatten)]
    pub usage: Usage,
    /// Millionths of a dollar.
    pub cost_micros: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// The part of the input that came from the provider's cache.
    pub cached_input_tokens: u64,
    /// The part of the input that was written to the provider's cache.
    pub cache_write_tokens: u64,
    /// The part of the output that was reasoning.
    pub reasoning_tokens: u64,
}

/// A spending limit and its use.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Budget {
    pub limit: Limit,
    pub spent: Amount,
    /// Reserved for model calls under way.
    pub reserved: Amount,
}

/// A spending limit. Missing fields are unlimited.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// Input and output tokens together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Millionths of a dollar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micros: Option<u64>,
}

#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct Amount {
    pub tokens: u64,
    /// Millionths of a dollar.
    pub micros: u64,
}

impl From<v1::Usage> for Usage {
    fn from(usage: v1::Usage) -> Self {
        Self {
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            cached_input_tokens: usage.cached_input_tokens,
            cache_write_tokens: usage.cache_write_tokens,
            reasoning_tokens: usage.reasoning_tokens,
        }
    }
}

impl From<v1::Total> for Total {
    fn from(total: v1::Total) -> Self {
        let usage = total.usage.unwrap_or_default().into();
        Self { model_calls: total.model_calls, usage, cost_micros: total.micros }
    }
}

impl From<v1::Budget> for Budget {
    fn from(budget: v1::Budget) -> Self {
        Self {
            limit: budget.limit.unwrap_or_default().into(),
            spent: Amount { tokens: budget.spent_tokens, micros: budget.spent_micros },
            reserved: Amount { tokens: budget.reserved_tokens, micros: budget.reserved_micros },
        }
    }
}

impl From<v1::Limit> for Limit {
    fn from(limit: v1::Limit) -> Self {
        Self { tokens: limit.tokens, micros: limit.micros }
    }
}

impl From<Limit> for v1::Limit {
    fn from(limit: Limit) -> Self {
        Self { tokens: limit.tokens, micros: limit.micros }
    }
}
