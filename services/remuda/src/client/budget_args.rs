//! Flags for budgets.

use remuda_domain::{Error, money};
use remuda_proto::v1;

/// The budget of a run and its child runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, clap::Args)]
pub(crate) struct BudgetArgs {
    /// Limit of tokens, such as 200000, 200k or 2M. Child runs count too.
    ///
    /// The maximum cost of each model call is reserved before the call. If it exceeds the budget, the run waits, without
    /// occupying a worker, until `remuda budget set` raises the limit.
    #[arg(long, value_name = "TOKENS", value_parser = tokens, help_heading = "Budget")]
    budget_tokens: Option<u64>,
    /// Limit in dollars, such as 2.50. Child runs count too. Needs models with a price.
    #[arg(long, value_name = "DOLLARS", value_parser = cost, help_heading = "Budget")]
    budget_cost: Option<u64>,
}

impl BudgetArgs {
    /// The limit to request; `None` if no flag was given.
    pub(super) fn into_request(self) -> Option<v1::Limit> {
        let Self { budget_tokens: tokens, budget_cost: micros } = self;
        (tokens.is_some() || micros.is_some()).then_some(v1::Limit { tokens, micros })
    }
}

/// Parses a positive number of tokens: `1500`, `200k` or `2M`.
pub(super) fn tokens(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1000),
        None => match text.strip_suffix(['m', 'M']) {
            Some(digits) => (digits, 1_000_000),
            None => (text, 1),
        },
    };
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.parse::<u64>().ok().filter(|_| plain).and_then(|number| number.checked_mul(factor));
    let number = number.filter(|number| i64::try_from(*number).is_ok());
    match number {
        Some(0) => Err("expected more than 0: with 0 no model call is possible".to_owned()),
        Some(number) => Ok(number),
        None => Err("expected a number of tokens, such as 200000, 200k or 2M".to_owned()),
    }
}

/// Parses a positive amount of dollars into micros.
pub(super) fn cost(text: &str) -> Result<u64, String> {
    match money::parse_dollars("cost", text).map_err(|error: Error| error.message().to_owned())? {
        0 => Err("expected more than 0: with 0 no model call is possible".to_owned()),
        micros => Ok(micros),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_must_be_a_positive_integer() {
        assert_eq!(tokens("1500"), Ok(1500));
        assert_eq!(tokens("200k"), Ok(200_000));
        assert_eq!(tokens("2M"), Ok(2_000_000));
        for text in [
            "",
            "0",
            "0k",
            "k",
            "-1",
            "+5",
            "1.5",
            "1.5M",
            "1e6",
            "many",
            "9223372036854775808",
            "99999999999999M",
        ] {
            assert!(tokens(text).is_err(), "{text}");
        }
    }

    #[test]
    fn cost_must_be_positive() {
        assert_eq!((cost("2.50"), cost("0.000001")), (Ok(2_500_000), Ok(1)));
        for text in ["0", "0.00", "-1", "0.0000001", "free", ""] {
            assert!(cost(text).is_err(), "{text}");
        }
    }
}
