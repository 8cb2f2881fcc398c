//! Pattern matching.

use remuda_permissions::fits;

#[test]
fn patterns_match_whole_texts() {
    for (pattern, text, expected) in [
        ("*", "", true),
        ("*", "a/b c\nd", true),
        ("", "", true),
        ("", "a", false),
        ("a", "a", true),
        ("a", "A", false),
        ("a", "ab", false),
        ("a*", "a", true),
        ("a*b*c", "aXbYc", true),
        ("a*b*c", "aXbY", false),
        ("a*a", "a", false),
        ("a*a", "aa", true),
        ("*ab", "aab", true),
        ("*a*b*", "ba", false),
        ("?", "", false),
        ("?", "ä", true),
        ("??", "ä", false),
        ("a?c*", "abcd", true),
        ("*?b", "ab", true),
        ("*?b", "b", false),
        ("*a?c*", "xxabxabc", true),
        ("**", "x", true),
        ("ls *", "ls", true),
        ("ls *", "ls -la", true),
        ("ls *", "lsof", false),
        ("ls*", "lsof", true),
        ("git push *", "git push", true),
        ("git push *", "git pushx", false),
        (" *", "", true),
        ("[a]", "[a]", true),
        ("[a]", "a", false),
        ("a.c", "abc", false),
        ("a\\*", "a\\b", true),
    ] {
        assert_eq!(fits(pattern, text), expected, "{pattern:?} {text:?}");
    }
}

/// With backtracking, these would practically never finish.
#[test]
fn matching_needs_no_backtracking() {
    let text = "a".repeat(60_000);
    for pattern in ["*a".repeat(10_000), "a*".repeat(10_000), "*".repeat(100_000), "*?".repeat(10_000)] {
        assert!(fits(&pattern, &text));
        assert!(!fits(&format!("{pattern}b"), &text));
        assert!(!fits(&format!("{pattern}*b*a"), &text));
    }
    assert!(!fits(&"?".repeat(60_001), &text));
    assert!(fits(&"?".repeat(60_000), &text));
    assert!(!fits(&format!("*{}b*", "a".repeat(500)), &text));
    assert!(!fits(&format!("*?{}b*", "a".repeat(200)), &text[..20_000]));
}
