//! Prices, costs and budgets.

use std::ops::Add;

use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    ids::StepId,
    model::Usage,
};

/// Money in millionths of a dollar.
pub type Micros = u64;

/// Price of a model, in millionths of a dollar per million tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Price {
    pub input: Micros,
    pub output: Micros,
    /// For input read from the provider's cache; `input` if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input: Option<Micros>,
    /// For input written to the provider's cache; `input` if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<Micros>,
}

impl Price {
    /// Cost of a model call, rounded up.
    #[must_use]
    pub fn of(&self, usage: &Usage) -> Micros {
        let cached = usage.cached_input_tokens.min(usage.input_tokens);
        let written = usage.cache_write_tokens.min(usage.input_tokens - cached);
        let plain = usage.input_tokens - cached - written;
        let millionths = [
            (plain, self.input),
            (cached, self.cached_input.unwrap_or(self.input)),
            (written, self.cache_write.unwrap_or(self.input)),
            (usage.output_tokens, self.output),
        ];
        let sum: u128 =
            millionths.iter().map(|(tokens, price)| u128::from(*tokens) * u128::from(*price)).sum();
        Micros::try_from(sum.div_ceil(1_000_000)).unwrap_or(Micros::MAX)
    }
}

/// An amount of tokens and money.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Amount {
    pub tokens: u64,
    pub micros: Micros,
}

impl Add for Amount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_add(other.tokens),
            micros: self.micros.saturating_add(other.micros),
        }
    }
}

/// Upper limits of spending. A missing value means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limit {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub micros: Option<Micros>,
}

impl Limit {
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.tokens.is_none() && self.micros.is_none()
    }

    /// Whether this amount may be spent.
    #[must_use]
    pub fn allows(&self, amount: Amount) -> bool {
        self.tokens.is_none_or(|limit| amount.tokens <= limit)
            && self.micros.is_none_or(|limit| amount.micros <= limit)
    }

    /// Rejects a limit of zero, under which no model call could ever be made.
    pub fn check(&self, field: &str) -> Result<()> {
        if self.tokens == Some(0) {
            return Err(Error::invalid(format!("{field}.tokens"), "expected more than 0"));
        }
        if self.micros == Some(0) {
            return Err(Error::invalid(format!("{field}.cost"), "expected more than 0"));
        }
        Ok(())
    }
}

/// A limit and what was spent of it, by a run and its descendants or by a session and its descendants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    pub limit: Limit,
    pub spent: Amount,
    /// Reserved for model calls under way.
    pub reserved: Amount,
}

impl Budget {
    /// Whether this amount may be reserved in addition.
    #[must_use]
    pub fn has_room(&self, amount: Amount) -> bool {
        self.limit.allows(self.spent + self.reserved + amount)
    }

    /// The budget if this much of its reservations were released.
    #[must_use]
    pub const fn without(self, held: Amount) -> Self {
        let tokens = self.reserved.tokens.saturating_sub(held.tokens);
        let micros = self.reserved.micros.saturating_sub(held.micros);
        Self { reserved: Amount { tokens, micros }, ..self }
    }
}

/// Cost of one model call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// The step of the model call, which also identifies its reservation.
    pub step: StepId,
    pub usage: Usage,
    pub micros: Micros,
}

impl Spent {
    #[must_use]
    pub const fn amount(&self) -> Amount {
        let tokens = self.usage.input_tokens.saturating_add(self.usage.output_tokens);
        Amount { tokens, micros: self.micros }
    }
}

/// Total cost of several model calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Total {
    /// Completed model calls.
    pub model_calls: u64,
    pub usage: Usage,
    pub micros: Micros,
}

impl Add for Total {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            model_calls: self.model_calls.saturating_add(other.model_calls),
            usage: self.usage + other.usage,
            micros: self.micros.saturating_add(other.micros),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_uses_cache_prices_and_rounds_up() {
        let price =
            Price { input: 3_000_000, output: 15_000_000, cached_input: Some(300_000), cache_write: None };
        let usage = Usage {
            input_tokens: 1_000_000,
            cached_input_tokens: 900_000,
            output_tokens: 1,
            ..Usage::default()
        };
        assert_eq!(price.of(&usage), 300_000 + 270_000 + 15);
        let one = Usage { input_tokens: 1, ..Usage::default() };
        assert_eq!(Price { input: 1, ..Price::default() }.of(&one), 1);
        assert_eq!(Price::default().of(&usage), 0);
    }

    #[test]
    fn reserved_amounts_count_against_the_budget() {
        let limit = Limit { tokens: Some(100), micros: None };
        let amount = |tokens| Amount { tokens, micros: 5 };
        let budget = Budget { limit, spent: amount(50), reserved: amount(30) };
        assert!(budget.has_room(amount(20)) && !budget.has_room(amount(21)));
        let without = budget.without(amount(10));
        assert!(without.has_room(amount(30)) && !without.has_room(amount(31)));
        assert_eq!(budget.without(amount(31)).reserved, Amount::default());
        assert!(Limit::default().allows(amount(u64::MAX)));
        assert_eq!(
            Limit { tokens: Some(0), micros: None }.check("budget").unwrap_err().field(),
            Some("budget.tokens")
        );
    }

    /// The numbers come from a provider and may be anything.
    #[test]
    fn sums_saturate() {
        let usage = Usage {
            input_tokens: u64::MAX,
            output_tokens: u64::MAX,
            cached_input_tokens: u64::MAX,
            cache_write_tokens: u64::MAX,
            reasoning_tokens: u64::MAX,
        };
        let most = Amount { tokens: u64::MAX, micros: u64::MAX };
        assert_eq!((usage + usage, most + most), (usage, most));
        assert_eq!(Spent { step: StepId::new(), usage, micros: u64::MAX }.amount(), most);
        let total = Total { model_calls: u64::MAX, usage, micros: u64::MAX };
        assert_eq!(total + total, total);
        let budget = Budget { spent: most, reserved: most, limit: Limit { tokens: Some(1), micros: None } };
        assert!(!budget.has_room(most));
    }
}
