//! Finds the known name that is most similar to a mistyped one.

use remuda_domain::distance;

/// The most similar name of `known`, if it is similar enough for a typo.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (name.chars().count() / 3).clamp(1, 4);
    known
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_names_are_suggested() {
        let known = ["slots", "pool", "lease", "heartbeat"];
        let suggest = |name| nearest(name, known.into_iter());
        assert_eq!(suggest("slot"), Some("slots"));
        assert_eq!(suggest("hartbeat"), Some("heartbeat"));
        assert_eq!(suggest("colour"), None);
        assert_eq!(suggest(""), None);
    }
}
