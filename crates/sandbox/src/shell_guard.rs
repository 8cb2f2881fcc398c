//! Keeps scripts in the syntax of bash from running in another shell.
//!
//! A script runs in bash, or in `sh` where there is none. Permission rules judge it as bash reads it, and another shell may find
//! other commands in the same text: in `ls &>log rm x`, dash runs `rm x`. So a script with such syntax begins with a
//! command that ends it unless the shell is bash.

use std::borrow::Cow;

/// Syntax that other shells read differently, rather than not at all.
const ONLY_BASH: [&str; 11] = ["&>", "[[", "((", "<<<", "<(", ">(", "|&", ";&", "$'", "$\"", "$["];
/// On the first line of the script, so that lines keep their numbers.
const GUARD: &str = "[ -n \"$BASH_VERSION\" ] || { echo 'this script needs bash, which is not installed here' >&2; exit 126; }; ";

/// The script as it may run in any shell.
#[must_use]
pub fn guarded_script(script: &str) -> Cow<'_, str> {
    // A joined line may hide a mark.
    let joined = script.replace("\\\n", "");
    if ONLY_BASH.iter().any(|mark| joined.contains(mark)) || quotes_in_expansion(&joined) {
        Cow::Owned(format!("{GUARD}{script}"))
    } else {
        Cow::Borrowed(script)
    }
}

/// Whether there is a quote between `${` and `}`. Shells disagree on what it quotes.
fn quotes_in_expansion(script: &str) -> bool {
    let inner = script.split("${").skip(1).map(|rest| rest.split_once('}').map_or(rest, |(inner, _)| inner));
    inner.into_iter().any(|inner| inner.contains(['\'', '"', '\\', '`']))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn run(shell: &str, script: &str) -> (Option<i32>, String) {
        let output = Command::new(shell).args(["-c", &guarded_script(script)]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    }

    #[test]
    fn script_of_bash_runs_only_in_bash() {
        for (script, expected) in [
            ("[[ a == a ]] && echo yes", "yes\n"),
            ("echo quiet &>/dev/null echo loud", ""),
            ("x=; echo ${x:-'a'}\necho $LINENO", "a\n2\n"),
            ("# $'\necho yes", "yes\n"),
        ] {
            assert_eq!(run("bash", script), (Some(0), expected.to_owned()), "{script}");
            assert_eq!(run("dash", script), (Some(126), String::new()), "{script}");
        }
    }

    #[test]
    fn plain_script_is_left_as_it_is() {
        for script in ["", "echo a | cat", "if [ -f x ]; then . ./x; fi; echo \"$(ls) ${1} ${x:-y}\" >x 2>&1"]
        {
            assert!(matches!(guarded_script(script), Cow::Borrowed(_)), "{script}");
        }
    }
}
