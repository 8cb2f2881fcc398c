//! Property tests for arbitrary commands.

use proptest::prelude::*;
use remuda_domain::permission::PermissionMode;
use remuda_permissions::{Verdict, fits};
use serde_json::json;

use crate::{bash, call, workspace_rules};

const RULES: &str = "ask git push *, deny rm *, ask *secret*, deny edit:*.lock, allow ls *";

const PIECES: [&str; 46] = [
    "rm",
    "ls",
    "git push",
    "x",
    " ",
    " ",
    ";",
    "&",
    "|",
    "\n",
    "(",
    ")",
    "{",
    "}",
    "$(",
    "`",
    "'",
    "\"",
    "\\",
    "$",
    "${",
    "#",
    "<",
    ">",
    "<<E",
    "\nE\n",
    "<<<",
    "<(",
    "((",
    "))",
    "case x in",
    "esac",
    ";;",
    "if",
    "fi",
    "for f in",
    "do",
    "done",
    "[[",
    "]]",
    "bash -c ",
    "eval ",
    "sudo ",
    "xargs ",
    "=",
    "é",
];

/// Syntactically complete commands.
fn complete() -> impl Strategy<Value = String> {
    let simple = prop::sample::select(vec![
        "ls",
        "rm x",
        "git push",
        "echo \"rm\"",
        "cat $f",
        "$X",
        "cat a | sh",
        "echo x > y.lock",
        "X=1",
        "cat <<E\na\nE",
        "echo 'a b'",
        "find . -exec rm {} \\;",
        "PATH=/x ls",
        "echo \"${x:-'a'}\"",
    ]);
    let simple = simple.prop_map(ToOwned::to_owned);
    simple.prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a}\n{b}")),
            inner.clone().prop_map(|a| format!("(\n{a}\n)")),
            inner.clone().prop_map(|a| format!("{{ {a}\n}}")),
            inner.clone().prop_map(|a| format!("echo \"$({a}\n)\"")),
            inner.clone().prop_map(|a| format!("if true; then {a}\nfi")),
            inner.clone().prop_map(|a| format!("case x in a) {a}\n;; esac")),
            inner.prop_map(|a| format!("bash -c '{}'", a.replace('\'', "'\\''"))),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_gets_a_deterministic_verdict(text in ".{0,300}") {
        let verdict = bash(&workspace_rules(RULES), &text);
        prop_assert_eq!(bash(&workspace_rules(RULES), &text), verdict);
        let denied = bash(&workspace_rules("deny *"), &text);
        prop_assert!(matches!(denied, Verdict::Deny(_)));
    }

    #[test]
    fn any_shell_text_gets_a_verdict_in_every_mode(pieces in prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..60)) {
        let text = pieces.concat();
        for mode in PermissionMode::ALL {
            call(&workspace_rules(RULES), mode, "Bash", &json!({ "command": text }));
        }
        prop_assert!(matches!(bash(&workspace_rules("deny *"), &text), Verdict::Deny(_)), "{text}");
        prop_assert_eq!(bash(&workspace_rules(""), &text).action() as u8, 0, "{}", text);
    }

    #[test]
    fn adding_commands_never_relaxes_the_verdict(first in complete(), second in complete()) {
        let set = workspace_rules(RULES);
        let (a, b) = (bash(&set, &first).action(), bash(&set, &second).action());
        for both in [format!("{first}\n{second}"), format!("({first}\n)\n{second}"), format!("{first}\n$(\n{second}\n)")] {
            let verdict = bash(&set, &both);
            prop_assert!(verdict.action() >= a.max(b), "{both}: {verdict:?}, alone {a:?} and {b:?}");
        }
    }

    #[test]
    fn offered_rules_allow_the_command(command in complete()) {
        let set = workspace_rules("ask *, ask edit:*");
        if let Verdict::Ask(ask) = bash(&set, &command) {
            let then = set.with(remuda_permissions::Layer::Session, ask.always.iter().cloned());
            let verdict = bash(&then, &command);
            prop_assert!(ask.always.is_empty() || verdict == Verdict::Allow, "{verdict:?}");
        }
    }

    #[test]
    fn patterns_agree_with_a_recursive_matcher(pattern in "[ab*? ]{0,8}", text in "[ab ]{0,8}") {
        fn slow(pattern: &[char], text: &[char]) -> bool {
            match pattern.split_first() {
                None => text.is_empty(),
                Some(('*', rest)) => (0..=text.len()).any(|at| slow(rest, &text[at..])),
                Some((next, rest)) => {
                    text.split_first().is_some_and(|(first, text)| (*next == '?' || next == first) && slow(rest, text))
                }
            }
        }
        let chars = |text: &str| text.chars().collect::<Vec<_>>();
        let bare = pattern.strip_suffix(" *").is_some_and(|bare| slow(&chars(bare), &chars(&text)));
        prop_assert_eq!(fits(&pattern, &text), bare || slow(&chars(&pattern), &chars(&text)));
    }
}
