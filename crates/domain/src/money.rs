//! Parsing and formatting of dollar amounts.

use crate::{
    budget::Micros,
    error::{Error, Result},
};

const DECIMALS: usize = 6;
const MICROS_PER_DOLLAR: Micros = 1_000_000;

/// Parses dollars such as `2`, `2.50` or `0.000001`, exactly. Errors name `field`.
pub fn parse_dollars(field: &str, text: &str) -> Result<Micros> {
    let wrong = |why: &str| Error::invalid(field, format!("expected dollars such as 2.50: {why}"));
    let plain = text.strip_prefix('$').unwrap_or(text);
    if plain.starts_with('-') {
        return Err(wrong("the amount is negative"));
    }
    let (whole, part) = plain.split_once('.').unwrap_or((plain, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) {
        return Err(wrong("this is not a number"));
    }
    let part = part.trim_end_matches('0');
    if part.len() > DECIMALS {
        return Err(wrong("the smallest amount is a millionth"));
    }
    let micros = format!("{part:0<DECIMALS$}").parse::<Micros>().unwrap_or_default();
    let whole = whole.parse::<Micros>().ok().and_then(|whole| whole.checked_mul(MICROS_PER_DOLLAR));
    let total = whole.and_then(|whole| whole.checked_add(micros));
    // Databases store signed numbers.
    total.filter(|total| i64::try_from(*total).is_ok()).ok_or_else(|| wrong("the amount is too large"))
}

/// Formats as `$2.50` or `$0.000001`: exact, with at least two decimals.
#[must_use]
pub fn dollars(micros: Micros) -> String {
    let (whole, part) = (micros / MICROS_PER_DOLLAR, micros % MICROS_PER_DOLLAR);
    let part = format!("{part:0DECIMALS$}");
    let cents = part.get(..2).unwrap_or_default();
    let rest = part.get(2..).unwrap_or_default().trim_end_matches('0');
    format!("${whole}.{cents}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsing_and_formatting_are_exact() {
        let cases = [
            ("0", 0, "$0.00"),
            ("2", 2_000_000, "$2.00"),
            ("2.5", 2_500_000, "$2.50"),
            ("$2.50", 2_500_000, "$2.50"),
            ("0.000001", 1, "$0.000001"),
            ("0.1000000000", 100_000, "$0.10"),
            ("0.0123", 12_300, "$0.0123"),
            ("007.25", 7_250_000, "$7.25"),
            ("9223372036854.775807", 9_223_372_036_854_775_807, "$9223372036854.775807"),
        ];
        for (text, micros, shown) in cases {
            assert_eq!(parse_dollars("cost", text).unwrap(), micros, "{text}");
            assert_eq!(dollars(micros), shown);
            assert_eq!(parse_dollars("cost", shown).unwrap(), micros, "{shown}");
        }
    }

    #[test]
    fn invalid_amounts_are_rejected() {
        let refused = [
            "",
            "-1",
            "-0.5",
            "$-1",
            "1.",
            ".5",
            ".",
            "1e3",
            "1,50",
            "1 ",
            " 1",
            "+1",
            "NaN",
            "inf",
            "0x10",
            "1.2.3",
            "0.0000001",
            "1.9999999",
            "$",
            "$$1",
            "١",
            "9223372036854.775808",
            "99999999999999999999999",
        ];
        for text in refused {
            let error = parse_dollars("cost", text).unwrap_err();
            assert_eq!(error.field(), Some("cost"), "{text}");
        }
    }
}
