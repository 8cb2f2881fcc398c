//! Checks names and URLs, and finds similar names.

use remuda_domain::distance;

const MAX_NAME: usize = 64;

/// Whether this is a valid name of an agent, skill, action or tool server.
pub(crate) fn is_name(name: &str) -> bool {
    fits(name, |c| c.is_ascii_alphanumeric())
}

/// Whether this is a valid name of a model, which may be in any script.
pub(crate) fn is_model_name(name: &str) -> bool {
    fits(name, char::is_alphanumeric)
}

fn fits(name: &str, letter: impl Fn(char) -> bool) -> bool {
    let length = name.chars().count();
    (1..=MAX_NAME).contains(&length)
        && name.chars().all(|c| letter(c) || matches!(c, '.' | '_' | '-'))
        && name != "."
        && name != ".."
}

/// The authority of an HTTP URL: host, port and user information; `None` if it is not an HTTP URL.
pub(crate) fn authority(url: &str) -> Option<&str> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"))?;
    rest.split(['/', '?', '#']).next()
}

/// The most similar name of `known`, if it is similar enough for a typo.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Comparing long texts is slow, and they are not mistyped names.
    if name.len() > 2 * MAX_NAME {
        return None;
    }
    let wanted = name.to_lowercase();
    let length = wanted.chars().count();
    let limit = ((length + 1) / 3).clamp(1, 4);
    known
        .into_iter()
        .filter(|candidate| candidate.chars().count().abs_diff(length) <= limit)
        .map(|candidate| (distance(&wanted, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_restricted_alphabet_and_length() {
        for good in ["build", "a", "x.y_z-1", &"a".repeat(64)] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", ".", "..", "a b", "a/b", "größe", "模型", &"a".repeat(65)] {
            assert!(!is_name(bad), "{bad}");
        }
        assert!(is_model_name("模型-1") && !is_model_name("a b"));
    }

    #[test]
    fn only_similar_names_are_suggested() {
        let suggest = |name| nearest(name, ["max_steps", "Bash", "mode"]);
        assert_eq!(suggest("maxsteps"), Some("max_steps"));
        assert_eq!(suggest("bash"), Some("Bash"));
        assert_eq!(suggest("colour"), None);
    }
}
