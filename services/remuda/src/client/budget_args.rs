//! How much may be spent, as flags.

use remuda_domain::{Error, money};
use remuda_proto::v1;

/// How much a run and the runs below it may spend.
#[derive(Clone, Copy, Debug, Default, PartialEq, clap::Args)]
pub(crate) struct BudgetArgs {
    /// Tokens that the run and those below it may use, such as 200000, 200k or 2M.
    ///
    /// What a question may cost is held before it is asked. When it no longer fits, the run waits as data until
    /// `remuda budget set` raises the limit.
    #[arg(long, value_name = "TOKENS", value_parser = tokens, help_heading = "Budget")]
    budget_tokens: Option<u64>,
    /// Dollars that the run and those below it may cost, such as 2.50. Needs models with a price.
    #[arg(long, value_name = "DOLLARS", value_parser = cost, help_heading = "Budget")]
    budget_cost: Option<u64>,
}

impl BudgetArgs {
    /// What to ask for; nothing when no flag was given.
    pub(super) fn into_request(self) -> Option<v1::Limit> {
        let Self { budget_tokens: tokens, budget_cost: micros } = self;
        (tokens.is_some() || micros.is_some()).then_some(v1::Limit { tokens, micros })
    }
}

/// Reads `1500`, `200k` or `2M`, and not nothing.
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
        Some(0) => Err("expected more than 0: nothing could ever be asked".to_owned()),
        Some(number) => Ok(number),
        None => Err("expected a number of tokens, such as 200000, 200k or 2M".to_owned()),
    }
}

/// Reads dollars, and not nothing.
pub(super) fn cost(text: &str) -> Result<u64, String> {
    match money::parse_dollars("cost", text).map_err(|error: Error| error.message().to_owned())? {
        0 => Err("expected more than 0: nothing could ever be asked".to_owned()),
        micros => Ok(micros),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_whole_and_more_than_none() {
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
    fn money_is_more_than_none() {
        assert_eq!((cost("2.50"), cost("0.000001")), (Ok(2_500_000), Ok(1)));
        for text in ["0", "0.00", "-1", "0.0000001", "free", ""] {
            assert!(cost(text).is_err(), "{text}");
        }
    }
}
