//! Detects interactive commands.
//!
//! Commands have no input, so an interactive one would fail in a confusing way or hang. It is rejected with
//! advice instead. A false rejection is worse than a miss: uncertain cases pass.

use super::simple_commands::{SimpleCommand, commands};

/// Advice for the first interactive command of a script, if there is one.
pub(super) fn advice(script: &str) -> Option<String> {
    let editor_is_chosen = script.contains("EDITOR") || script.contains("VISUAL");
    commands(script).iter().find_map(|command| advice_for(command, editor_is_chosen))
}

/// Condition on the arguments of a command.
#[derive(Clone, Copy)]
enum Condition {
    /// Any arguments.
    Always,
    /// No arguments.
    Alone,
    /// Exactly these arguments.
    Words(&'static [&'static str]),
    /// This first argument, and any of these after it.
    With(&'static str, &'static [&'static str]),
    /// Only operands and these options.
    Only(&'static [&'static str]),
    /// One operand.
    OneName,
    /// Like `Only`, with this first argument. Opens an editor, so it does not apply if the script sets one.
    Editor(&'static str, &'static [&'static str]),
    /// Like `With`. Opens an editor, so it does not apply if the script sets one.
    EditorWith(&'static str, &'static [&'static str]),
}

const FULL_SCREEN: &str = "needs a terminal; use Read, Edit or Write for files";
const MONITOR: &str = "needs a terminal; `ps` and `top -b -n 1` print once";
const REPL: &str = "waits for input; give it a file or a command as an argument, or pipe the input in";
const SHELL_THERE: &str = "opens a shell and waits for input; add the command to run there";
const PATCH: &str = "asks about each change; name the files instead";
const TTY: &str = "needs a terminal; leave `-it` out";

/// Programs, condition, advice.
const RULES: &[(&[&str], Condition, &str)] = &[
    (&["vi", "nano", "pico", "joe", "mcedit"], Condition::Always, FULL_SCREEN),
    // With options these may run non-interactively.
    (&["vim", "nvim"], Condition::Only(&[]), FULL_SCREEN),
    (&["emacs"], Condition::Only(&["-nw"]), FULL_SCREEN),
    (&["top"], Condition::Alone, MONITOR),
    (&["htop", "btop", "nethogs"], Condition::Alone, MONITOR),
    (&["tmux"], Condition::Alone, "needs a terminal; use run_in_background for what should go on"),
    (&["screen"], Condition::Alone, "needs a terminal; use run_in_background for what should go on"),
    (
        &[
            "python",
            "python2",
            "python3",
            "ipython",
            "node",
            "irb",
            "ghci",
            "psql",
            "mysql",
            "sqlite3",
            "redis-cli",
            "mongosh",
        ],
        Condition::Alone,
        REPL,
    ),
    (&["ssh"], Condition::OneName, SHELL_THERE),
    (&["telnet", "ftp", "sftp"], Condition::OneName, REPL),
    (&["passwd"], Condition::Alone, "asks for a password; pipe it to `chpasswd`"),
    (&["passwd"], Condition::OneName, "asks for a password; pipe it to `chpasswd`"),
    (&["crontab"], Condition::Words(&["-e"]), "opens an editor; pipe the new table to `crontab -`"),
    (&["visudo"], Condition::Alone, "opens an editor; write a file beneath /etc/sudoers.d"),
    (&["npm", "yarn"], Condition::Words(&["init"]), "asks questions; add `-y`"),
    (
        &["git"],
        Condition::EditorWith("rebase", &["-i", "--interactive"]),
        "opens an editor; set GIT_SEQUENCE_EDITOR",
    ),
    (&["git"], Condition::With("add", &["-p", "-i", "-e", "--patch", "--interactive", "--edit"]), PATCH),
    (&["git"], Condition::With("checkout", &["-p", "--patch"]), PATCH),
    (&["git"], Condition::With("restore", &["-p", "--patch"]), PATCH),
    (&["git"], Condition::With("reset", &["-p", "--patch"]), PATCH),
    (
        &["git"],
        Condition::Editor(
            "commit",
            &[
                "-a",
                "--all",
                "--amend",
                "-s",
                "--signoff",
                "-q",
                "--quiet",
                "-n",
                "--no-verify",
                "--allow-empty",
                "-v",
                "--verbose",
            ],
        ),
        "opens an editor; add `-m` with a message, or `--no-edit`",
    ),
    (&["docker", "podman"], Condition::With("run", &["-it", "-ti"]), TTY),
    (&["docker", "podman", "kubectl"], Condition::With("exec", &["-it", "-ti"]), TTY),
    (&["read"], Condition::Only(&["-r", "-p", "-s", "-a"]), "waits for input, and there is none; pipe it in"),
];

fn advice_for(command: &SimpleCommand, editor_is_chosen: bool) -> Option<String> {
    let (program, arguments) = command.words.split_first()?;
    if command.has_input {
        return None;
    }
    let (_, _, advice) = RULES.iter().find(|(programs, condition, _)| {
        programs.contains(&program.as_str()) && condition.matches(arguments, editor_is_chosen)
    })?;
    Some(format!("`{program}` {advice}"))
}

impl Condition {
    fn matches(self, arguments: &[String], editor_is_chosen: bool) -> bool {
        let any = |options: &[&str]| arguments.iter().any(|word| options.contains(&word.as_str()));
        let first = |expected: &str| arguments.first().is_some_and(|word| word == expected);
        let is_name = |word: &String| !word.starts_with(['-', '+']);
        match self {
            Self::Always => true,
            Self::Alone => arguments.is_empty(),
            Self::Words(words) => arguments.iter().map(String::as_str).eq(words.iter().copied()),
            Self::With(word, options) => first(word) && any(options),
            Self::Only(options) => {
                arguments.iter().all(|word| is_name(word) || options.contains(&word.as_str()))
            }
            Self::OneName => matches!(arguments, [name] if is_name(name)),
            Self::Editor(word, options) => {
                !editor_is_chosen && first(word) && Self::Only(options).matches(arguments, editor_is_chosen)
            }
            Self::EditorWith(word, options) => !editor_is_chosen && first(word) && any(options),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interactive_commands_are_rejected_with_advice() {
        for script in [
            "vim src/main.rs",
            "cd src && nano a.txt",
            "make; vi Makefile",
            "python3",
            "X=1 python",
            "node;",
            "psql",
            "top",
            "htop",
            "ssh example.org",
            "passwd",
            "sudo passwd alice",
            "git rebase -i HEAD~3",
            "git add -p",
            "git add src --patch",
            "git commit",
            "git commit -a",
            "git commit --amend",
            "git commit src/a.rs",
            "git add . && git commit",
            "crontab -e",
            "npm init",
            "docker run -it busybox",
            "docker exec -it c sh",
            "read answer",
            "read -p 'Sure? ' answer",
            "echo hi; read -r x",
            "tmux",
            "emacs notes",
            "nvim",
        ] {
            let advice = advice(script);
            assert!(advice.as_ref().is_some_and(|text| text.starts_with('`')), "{script}: {advice:?}");
        }
        assert_eq!(
            advice("python3").unwrap(),
            "`python3` waits for input; give it a file or a command as an argument, or pipe the input in"
        );
    }

    #[test]
    fn commands_that_may_work_pass() {
        for script in [
            "ls",
            "cat file",
            "echo vim",
            "which vim",
            "grep -r nano .",
            "man ls",
            "less file",
            "ls | less",
            "python3 x.py",
            "python3 -c 'print(1)'",
            "echo 'print(1)' | python3",
            "python3 < x.py",
            "python3 <<E\nprint(1)\nE",
            "node server.js &",
            "psql -c 'select 1'",
            "psql < dump.sql",
            "top -b -n 1",
            "vim -es -c 'q' f",
            "vim --version",
            "vim -Nes -c q f",
            "read -rt 1 x",
            "emacs --batch -l x.el",
            "ssh host uptime",
            "ssh -o BatchMode=yes host",
            "ssh -V",
            "passwd -l alice",
            "echo 'a:b' | chpasswd",
            "git rebase main",
            "git rebase --continue",
            "GIT_SEQUENCE_EDITOR=true git rebase -i HEAD~3",
            "export EDITOR=true; git commit",
            "git add .",
            "git add -u",
            "git commit -m x",
            "git commit -am x",
            "git commit -F f",
            "git commit --no-edit --amend",
            "git commit -C HEAD",
            "git commit --message=x",
            "git -c core.editor=true commit",
            "git commit --fixup HEAD",
            "git commit --dry-run",
            "git log -p",
            "git diff",
            "git stash -p x",
            "npm init -y",
            "npm install",
            "docker run -i x",
            "docker ps",
            "echo y | read x",
            "read x < f",
            "read -r a b <<< \"$x\"",
            "read -t 1 x",
            "while read l; do echo $l; done < f",
            "printf 'a' | while read x; do echo $x; done",
            "for f in *; do vim $f; done",
            "vim() { echo mine; }; vim",
            "alias vim=cat; vim x",
            "bash -c 'python3'",
            "yes | npm init",
            "cat > f",
            "$EDITOR f",
            "./vim f",
            "timeout 5 top",
            "echo \"$(vim --version)\"",
            "(python3)",
        ] {
            assert_eq!(advice(script), None, "{script}");
        }
    }
}
