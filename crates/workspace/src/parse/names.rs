//! Checks names and URLs.

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
}
