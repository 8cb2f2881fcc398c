//! Finds the metrics and labels in a PromQL expression. promtool checks whether the expression is valid.

use std::{collections::BTreeSet, iter::Peekable, str::CharIndices};

/// A metric with the labels of its selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selector {
    pub(crate) metric: String,
    pub(crate) labels: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueryUsage {
    pub(crate) selectors: Vec<Selector>,
    /// Labels used for grouping or matching.
    pub(crate) grouping: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token<'a> {
    Name(&'a str),
    /// A string, a number or a duration.
    Literal,
    Mark(char),
}

const GROUPING: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
const OPERATORS: [&str; 6] = ["and", "or", "unless", "bool", "offset", "atan2"];

/// Parses an expression. Panics at unknown syntax.
pub(crate) fn read(expression: &str) -> QueryUsage {
    let tokens = tokens(expression);
    let mut used = QueryUsage::default();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        let Token::Name(name) = *token else { continue };
        let next = tokens.get(at);
        if GROUPING.contains(&name) {
            let (names, end) = names(&tokens, at, '(', ')');
            used.grouping.extend(names);
            at = end;
        } else if OPERATORS.contains(&name) || next == Some(&Token::Mark('(')) || is_grouping(next) {
            // An operator, a function, or an aggregation whose grouping comes first.
        } else {
            let (labels, end) = names_of_matchers(&tokens, at);
            used.selectors.push(Selector { metric: name.to_owned(), labels });
            at = end;
        }
    }
    used
}

fn is_grouping(token: Option<&Token<'_>>) -> bool {
    matches!(token, Some(Token::Name(name)) if matches!(*name, "by" | "without"))
}

/// The names between two marks, and the position after them; none if the first mark is missing.
fn names(tokens: &[Token<'_>], at: usize, open: char, close: char) -> (Vec<String>, usize) {
    if tokens.get(at) != Some(&Token::Mark(open)) {
        return (Vec::new(), at);
    }
    let end = tokens[at..].iter().position(|token| *token == Token::Mark(close)).map(|end| at + end);
    let end = end.unwrap_or_else(|| panic!("no {close} after {open}"));
    let name = |token: &Token<'_>| match token {
        Token::Name(name) => Some((*name).to_owned()),
        Token::Literal | Token::Mark(_) => None,
    };
    (tokens[at..end].iter().filter_map(name).collect(), end + 1)
}

fn names_of_matchers(tokens: &[Token<'_>], at: usize) -> (Vec<String>, usize) {
    names(tokens, at, '{', '}')
}

fn tokens(expression: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = expression.char_indices().peekable();
    while let Some((start, first)) = rest.next() {
        let token = match first {
            _ if first.is_whitespace() => continue,
            '"' => {
                string(&mut rest);
                Token::Literal
            }
            '[' => {
                while rest.next().is_some_and(|(_, next)| next != ']') {}
                Token::Literal
            }
            '0'..='9' => {
                word(expression, &mut rest, start);
                Token::Literal
            }
            'a'..='z' | 'A'..='Z' | '_' | ':' => Token::Name(word(expression, &mut rest, start)),
            _ if "(){},=!~<>+-*/%^.@".contains(first) => Token::Mark(first),
            _ => panic!("unexpected {first} in {expression}"),
        };
        tokens.push(token);
    }
    tokens
}

fn string(rest: &mut Peekable<CharIndices<'_>>) {
    while let Some((_, next)) = rest.next() {
        match next {
            '\\' => drop(rest.next()),
            '"' => return,
            _ => {}
        }
    }
    panic!("a string has no end");
}

fn word<'a>(text: &'a str, rest: &mut Peekable<CharIndices<'_>>, start: usize) -> &'a str {
    while rest.next_if(|(_, next)| next.is_ascii_alphanumeric() || matches!(next, '_' | ':')).is_some() {}
    let end = rest.peek().map_or(text.len(), |(end, _)| *end);
    &text[start..end]
}

#[test]
fn metrics_and_labels_are_found() {
    let used = read(
        "histogram_quantile(0.95, sum by (le, pool) (rate(a_bucket{pool=~\"x|{y}\", kind!=\"z\"}[5m]))) > 1e3\n\
         and on (pool) remuda:slots:sum offset 15m unless max(b) by (task) / time() == bool 0",
    );
    let selector = |metric: &str, labels: &[&str]| Selector {
        metric: metric.to_owned(),
        labels: labels.iter().map(|&label| label.to_owned()).collect(),
    };
    assert_eq!(
        used.selectors,
        [selector("a_bucket", &["pool", "kind"]), selector("remuda:slots:sum", &[]), selector("b", &[])]
    );
    assert_eq!(used.grouping, ["le", "pool", "task"].map(str::to_owned).into());
}
