//! Attempts to evade the rules. Each command that is not allowed really ran `rm x` in bash.

use PermissionAction::{Allow, Ask, Deny};
use remuda_domain::permission::PermissionAction;

use crate::shell::{NO_RM, Row, check};

fn check_all(commands: &[&'static str], expected: PermissionAction) {
    let rows: Vec<Row> = commands.iter().map(|command| (*command, NO_RM, expected)).collect();
    check(&rows);
}

#[test]
fn unusual_ways_to_set_variables_are_detected() {
    check_all(
        &[
            "env 'A=1' rm x",
            "env \"A=$HOME\" rm x",
            "env a.b=1 rm x",
            "sudo 'A=1' rm x",
            "env -S '-i rm x'",
            "env -S rm x",
            "env -S 'bash -c \"rm x\"'",
        ],
        Deny,
    );
    check_all(
        &[
            "env A=$B ls",
            "env \"A$B\" ls",
            "env 'BASH_FUNC_ls%%=() { rm x; }' bash -c ls",
            "env 'BASH_ENV=e' bash -c ls",
            "env -u HOME sh -c 'ls $HOME'",
            "export 'PATH=/tmp'; ls",
            "export \"$X\"; ls",
            "export $(cat .env)",
            "declare -n r=PATH; r=/tmp; ls",
            "BASH_CMDS[foo]=/bin/rm; foo x",
            "declare 'BASH_CMDS[foo]=/tmp/y'; foo x",
            "hash -p /bin/rm foo; foo x",
            "shopt -s expand_aliases\nBASH_ALIASES[e]=rm\ne x",
            "POSIXLY_CORRECT=1\nls",
            "for PATH in .; do ls; done",
            "select PATH in .; do ls; done",
            "printf -v PATH %s .; ls",
            "printf -vPATH %s .; ls",
            "y=vPATH; printf -$y /tmp; ls",
            "read -raPATH <<< /tmp; ls",
            "y=n; declare -$y r=PATH; r=/tmp; ls",
            "y=p; hash -$y /bin/rm foo; foo x",
            "printf $X PATH %s .; ls",
            "printf '%s%n' aaa PATH; ls",
            "printf -v 'BASH_CMDS[ls]' /bin/rm; ls x",
            "((PATH=1)); ls",
            "echo $((PATH=1)) $[ 1 ]; ls",
            "echo $[PATH=1]; ls",
            "echo ${a[PATH=1]}; ls",
            ": ${BASH_CMDS[ls]:=/bin/rm}; ls x",
            ": ${PATH=/tmp}; ls x",
            "y=BASH_CMDS[ls]; : ${!y:=/bin/rm}; ls x",
            "read PATH <<< /tmp; ls",
            "read -r \"$X\" <<< /tmp; ls",
            "mapfile -t PATH <<< /tmp; ls",
            "getopts a PATH; ls",
            "unset HOME; ls",
            "alias q='#'\nq '\nrm y\nq '",
            "alias h='cat <<E'",
            "TAR_OPTIONS='--to-command=rm' tar x",
            "MAKEFLAGS=--eval=x make",
            "RUSTC=./evil cargo build",
            "PYTHONPATH=evil python3 x",
            "NODE_PATH=evil node x",
            "PERL5LIB=e perl x",
            "ZDOTDIR=evil ls",
            "XDG_CONFIG_HOME=evil git log",
            "SHELL=./evil parallel ls ::: a",
        ],
        Ask,
    );
    check_all(
        &[
            "env A=1 \"B=$C\" ls",
            "env -S 'A=1 ls -l'",
            "declare -i n=1; export A='b c'",
            "printf '%s\\n' \"$x\" a; printf -v y %s a",
            "printf \"$x\\n\"",
            "read -r -p 'Name: ' name; unset name",
            "while IFS= read -r l; do echo \"$l\"; done < f",
            "IFS=, read -r a b <<< x",
            "alias; hash; jobs -l",
            "for i in 1 2; do echo $((i + 1)); done",
        ],
        Allow,
    );
}

#[test]
fn unclear_start_of_a_command_is_detected() {
    check_all(
        &[
            "eval -- rm x",
            "env --split='rm x' rm x",
            "bash -login -c 'rm x'",
            "bash -noediting -c 'rm x'",
            "bash -posix -c 'rm x' <<< ls",
            "jobs -x rm x",
            "coproc rm time x",
        ],
        Deny,
    );
    check_all(
        &[
            "env -S 'rm\\_x'",
            "env -S $'rm\\vx'",
            "env -S 'A=> rm x'",
            "env -S ls -S 'rm x'",
            "env --split='rm x'",
            "bash --rcfile f -c ls",
            "E=; env -u $E ls rm x",
            "E=' rm'; env -u A$E x",
            "E=; exec -a $E ls rm x",
            "E=; nice -n $E ls rm x",
            "echo rm | xargs --repl=Q Q x",
            "compgen -C 'rm x' ''",
            "compgen -W '$(rm x)' ''",
            "mapfile -C 'rm x;' -c 1 a <<< y",
            "readarray -C 'rm x;' -c 1 a <<< y",
            "unset HOME; $HOME rm x",
            "$HOME rm x",
            "r${HOME}m x",
        ],
        Ask,
    );
    check_all(&["nice -n \"$N\" ls", "timeout --signal=KILL 5 ls", "cd $HOME && ls \"$HOME\"/x"], Allow);
    check(&[
        ("git -C $E status push", "deny git push *", Ask),
        ("git -C \"$DIR\" status", "deny git push *", Allow),
        ("git --attr-source HEAD push", "deny git push *", Deny),
    ]);
}

#[test]
fn script_in_the_input_of_a_shell_is_judged() {
    check_all(
        &[
            "echo rm x | sh 3<<E\nls\nE",
            "echo rm x | sh 3<<< ls",
            "echo rm x | sh -s -c ls",
            "echo rm x | sh <<E 0<&3\nls\nE",
            "sh /dev/fd/3 3< <(echo rm x) <<E\nls\nE",
            "echo rm x | bash //dev/stdin",
            "echo rm x | bash /dev/../dev/stdin",
            "echo rm x | bash ../../../dev/stdin",
        ],
        Ask,
    );
    check_all(
        &[
            "sh -s -c ls <<< 'rm x'",
            "sh 0<<E\nrm x\nE",
            "sh 3<<A 0<<< 'rm x'\nls\nA",
            "bash /dev/fd/0 <<< 'rm x'",
        ],
        Deny,
    );
    check_all(&["bash <<'E'\nls\nE", "cat 3<<E\nrm x\nE", "sh dev/x; sh ./proc"], Allow);
}

#[test]
fn commands_in_evaluated_arithmetic_are_detected() {
    check_all(
        &[
            "y='a[$(rm x)]'; echo $((y))",
            "y='a[`rm x`]'; echo $((y))",
            "y='$(rm x)'; z='a['$y']'; ((z))",
            "y='a[$(rm x)]'; [[ y -eq 1 ]]",
            "y='a[$(rm x)]'; echo ${!y}",
            "y='a[$(rm x)]'; echo ${z:y}",
            "y='a[$(rm x)]'; b[y]=1",
            "for y in 'a[$(rm x)]'; do ((y)); done",
            "read y <<< 'a[$(rm x)]'; ((y))",
            "read y <<'E'; ((y))\na[$(rm x)]\nE",
            "set -- 'a[$(rm x)]'; echo $(($1))",
            "f() { (( $1 )); }; f 'a[$(rm x)]'",
            "b=('a[$(rm x)]'); echo $((b))",
            "declare -i y; y='a[$(rm x)]'",
            "y='a[$(rm x)]'; RANDOM=$y",
            "y='a[$(rm x)]'; OPTIND=y",
            "echo ${a['$(rm x)']}",
            "echo ${a[\"\\$(rm x)\"]}",
            "echo ${a[\\$(rm x)]}",
            "echo ${y:'$(rm x)'}",
            "[[ -v 'a[$(rm x)]' ]]",
            "[[ 'a[$(rm x)]' -eq 1 ]]",
            "test -v 'a[$(rm x)]'",
            "y='$(rm x)'; echo ${y@\\\nP}",
        ],
        Ask,
    );
    check_all(
        &[
            "awk '{ a[$(NF-1)]++ } END { print a[1] }' f",
            "bash -c 'if [ -f x ]; then y=$(ls); echo $((y + 1)); fi'",
            "echo \"[$(date)] $((i + 1))\"",
            "echo ${a[i+1]} ${a[$i]} ${y:1:2} ${y:-'a b'}",
            "[[ $x -gt 1 && $y == 'a[0]' ]]",
        ],
        Allow,
    );
}

#[test]
fn ambiguous_syntax_is_detected() {
    check_all(
        &["sh -c 'ls &> f rm x'", "echo $'\\c' ; rm x #'", "eval 'ls; rm x'", "sh -c 'eval \"ls && rm x\"'"],
        Deny,
    );
    check_all(
        &[
            "[[ -n a # '\n]] ; echo # ' ]]",
            "a[ #]; echo x",
            "a[ <<E ]\necho x\nE",
            "ls >&'$(rm x)'",
            "ls >&'`rm x`'",
            "y='$(rm x)'; ls >&\"$y\"",
            "ls >&1${y:-'`rm x`'}",
            "sh -c 'ls &> f'",
            "sh -c 'cat $[[ -n a #)\necho x\n]]'",
            "sh -c 'eval \"[[ a || $(echo rm x) ]]\"'",
            "sh -c \"echo \\$'\\\\'; echo x #'\"",
        ],
        Ask,
    );
    check_all(
        &[
            "ls &> \"$log\"",
            "bash -c 'ls &> f'",
            "ls >&2 2>&1",
            "echo $'a\\tb'",
            "[[ $# -gt 1 ]]",
            "echo a[0] b[$i]",
        ],
        Allow,
    );
}
