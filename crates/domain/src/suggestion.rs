//! Finds the known name that a mistyped one probably means.

/// Names are shorter than this. Comparing long texts is slow, and they are not mistyped names.
const MAX_NAME: usize = 128;

/// The most similar name of `known`, if it is similar enough for a typo. Ignores case.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = name.to_lowercase();
    let length = wanted.chars().count();
    if length == 0 || name.len() > MAX_NAME {
        return None;
    }
    let limit = ((length + 1) / 3).clamp(1, 4);
    known
        .into_iter()
        .filter(|candidate| candidate.chars().count().abs_diff(length) <= limit)
        .map(|candidate| (distance(&wanted, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein distance. Names are short, so one row of the table is kept.
fn distance(a: &str, b: &str) -> usize {
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
    fn only_similar_names_are_suggested() {
        let suggest = |name| nearest(name, ["max_steps", "Bash", "mode", "slots", "heartbeat"]);
        for (name, expected) in [
            ("maxsteps", Some("max_steps")),
            ("bash", Some("Bash")),
            ("Bsh", Some("Bash")),
            ("hartbeat", Some("heartbeat")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(suggest(name), expected, "{name}");
        }
        assert_eq!(suggest(&"x".repeat(MAX_NAME + 1)), None);
    }

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
