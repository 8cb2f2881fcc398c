//! Human-readable spending and budgets.

use remuda_domain::money::dollars;
use remuda_proto::v1;

use crate::output::count;

/// Input and output tokens.
fn tokens(total: &v1::Total) -> u64 {
    total.usage.as_ref().map_or(0, |usage| usage.input_tokens + usage.output_tokens)
}

/// `$0.0123`, or the tokens if the models have no price; empty if nothing was spent.
pub(super) fn short(total: Option<&v1::Total>) -> String {
    match total {
        Some(total) if total.micros > 0 => dollars(total.micros),
        Some(total) if tokens(total) > 0 => format!("{} tokens", count(tokens(total))),
        _ => String::new(),
    }
}

/// `$0.0123 · 3 model calls · 1.2k tokens in, 30 out`; empty without model calls.
pub(super) fn summary(total: Option<&v1::Total>) -> String {
    let Some(total) = total.filter(|total| total.model_calls > 0) else { return String::new() };
    let usage = total.usage.unwrap_or_default();
    let mut parts = Vec::new();
    if total.micros > 0 {
        parts.push(dollars(total.micros));
    }
    let calls = if total.model_calls == 1 { "model call" } else { "model calls" };
    parts.push(format!("{} {calls}", total.model_calls));
    parts.push(format!("{} tokens in, {} out", count(usage.input_tokens), count(usage.output_tokens)));
    parts.join(" · ")
}

/// The spending including children, if it differs.
pub(super) fn tree_summary(own: Option<&v1::Total>, tree: Option<&v1::Total>) -> String {
    if tree == own { String::new() } else { summary(tree) }
}

/// `120 of 1.0k tokens, $0.10 of $2.50`; empty without a budget.
pub(super) fn budget_summary(budget: Option<&v1::Budget>) -> String {
    let Some(budget) = budget else { return String::new() };
    let limit = budget.limit.unwrap_or_default();
    let reserved = |reserved: String, is_reserved: bool| {
        if is_reserved { format!(" ({reserved} reserved)") } else { String::new() }
    };
    let mut parts = Vec::new();
    if let Some(tokens) = limit.tokens {
        let reserved = reserved(count(budget.reserved_tokens), budget.reserved_tokens > 0);
        parts.push(format!("{}{reserved} of {} tokens", count(budget.spent_tokens), count(tokens)));
    }
    if let Some(micros) = limit.micros {
        let reserved = reserved(dollars(budget.reserved_micros), budget.reserved_micros > 0);
        parts.push(format!("{}{reserved} of {}", dollars(budget.spent_micros), dollars(micros)));
    }
    if parts.is_empty() { "no limit".to_owned() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(micros: u64) -> v1::Total {
        let usage = v1::Usage { input_tokens: 1200, output_tokens: 30, ..v1::Usage::default() };
        v1::Total { model_calls: 2, usage: Some(usage), micros }
    }

    #[test]
    fn money_is_shown_first_and_tokens_without_a_price() {
        assert_eq!(short(Some(&total(12_300))), "$0.0123");
        assert_eq!(short(Some(&total(0))), "1.2k tokens");
        assert_eq!((short(None), summary(None)), (String::new(), String::new()));
        assert_eq!(summary(Some(&total(12_300))), "$0.0123 · 2 model calls · 1.2k tokens in, 30 out");
        assert_eq!(tree_summary(Some(&total(1)), Some(&total(1))), "");
    }

    #[test]
    fn budget_shows_spending_reservations_and_limits() {
        let budget = v1::Budget {
            limit: Some(v1::Limit { tokens: Some(1000), micros: Some(2_500_000) }),
            spent_tokens: 120,
            spent_micros: 100_000,
            reserved_tokens: 0,
            reserved_micros: 5,
        };
        assert_eq!(budget_summary(Some(&budget)), "120 of 1.0k tokens, $0.10 ($0.000005 reserved) of $2.50");
        assert_eq!(budget_summary(Some(&v1::Budget::default())), "no limit");
    }
}
