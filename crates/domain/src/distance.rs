//! Edit distance between two names, for suggestions.

/// Levenshtein distance. Names are short, so one row of the table is kept.
#[must_use]
pub fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn edits_are_counted() {
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    proptest! {
        #[test]
        fn distance_is_a_metric(a in ".{0,12}", b in ".{0,12}") {
            prop_assert_eq!(distance(&a, &b), distance(&b, &a));
            prop_assert_eq!(distance(&a, &a), 0);
            prop_assert!(distance(&a, &b) <= a.chars().count().max(b.chars().count()));
        }
    }
}
