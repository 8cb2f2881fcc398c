//! Resolves paths lexically, for matching against rules.

use crate::wildcard::ANY;

/// The forms of a path that a rule may match: relative to the workspace and absolute, each as a file and as a directory.
/// The first one is for display.
pub(crate) fn forms(root: &str, path: &str) -> Vec<String> {
    // An unknown part may contain any number of `..`.
    if path.contains(ANY) {
        let absolute = if path.starts_with(['/', ANY]) || root.is_empty() {
            path.to_owned()
        } else {
            format!("{}/{path}", root.trim_end_matches('/'))
        };
        return vec![path.to_owned(), absolute];
    }
    let root = (!root.is_empty()).then(|| parts(root.split('/')));
    let in_root = root.iter().flatten().copied().chain(path.split('/'));
    let absolute = if path.starts_with('/') {
        Some(parts(path.split('/')))
    } else {
        root.as_ref().map(|_| parts(in_root))
    };
    let relative = match (&root, &absolute) {
        (Some(root), Some(absolute)) => relative_to(root, absolute),
        (_, None) => lexical(path),
        (None, Some(_)) => String::new(),
    };
    let absolute = absolute.map(|parts| format!("/{}", parts.join("/")));
    let mut forms: Vec<String> =
        [Some(relative), absolute].into_iter().flatten().filter(|form| !form.is_empty()).collect();
    let directories: Vec<String> =
        forms.iter().filter(|form| *form != "/").map(|form| format!("{form}/")).collect();
    forms.extend(directories);
    forms
}

/// A path pattern without a leading `./`.
pub(crate) fn pattern(pattern: &str) -> &str {
    pattern.strip_prefix("./").filter(|rest| !rest.is_empty()).unwrap_or(pattern)
}

/// The components of an absolute path; `..` at its root has no effect.
fn parts<'a>(path: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut parts = Vec::new();
    for part in path {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts
}

fn relative_to(root: &[&str], path: &[&str]) -> String {
    let common = root.iter().zip(path).take_while(|(a, b)| a == b).count();
    let up = std::iter::repeat_n("..", root.len() - common);
    let relative: Vec<&str> = up.chain(path[common..].iter().copied()).collect();
    if relative.is_empty() { ".".to_owned() } else { relative.join("/") }
}

/// Normalizes a relative path whose root is unknown.
pub(crate) fn lexical(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    if parts.is_empty() { ".".to_owned() } else { parts.join("/") }
}
