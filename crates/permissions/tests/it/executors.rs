//! Commands that make their program execute something else: a rule that allows them has to name what executes.

use PermissionAction::{Allow, Ask, Deny};
use remuda_domain::permission::PermissionAction;
use remuda_permissions::Verdict;

use crate::{bash, shell::check, workspace_rules};

/// Everything needs approval, except what the rule allows.
fn judged(rule: &str, command: &str) -> PermissionAction {
    bash(&workspace_rules(&format!("ask *, {rule}")), command).action()
}

fn assert_all(rule: &str, commands: &[&str], expected: PermissionAction) {
    let wrong: Vec<&&str> = commands.iter().filter(|command| judged(rule, command) != expected).collect();
    assert!(wrong.is_empty(), "not {expected:?} under {rule}: {wrong:#?}");
}

#[test]
fn git_rule_does_not_allow_what_git_executes() {
    assert_all(
        "allow git *",
        &[
            "git clone -c protocol.ext.allow=always 'ext::sh -c \"touch x\"' y",
            "git -c protocol.ext.allow=always clone 'ext::sh -c x' y",
            "git clone ext::x y",
            "git fetch ext::x",
            "git remote add o 'ext::x'",
            "git -c branch.main.remote=ext::x pull",
            "git lg",
            "git -C sub lg",
            "git -c alias.lg='!x' lg",
            "git config alias.lg '!x'",
            "git config core.fsmonitor x",
            "git config --global core.fsmonitor x",
            "git -c core.fsmonitor=x status",
            "git -c core.sshCommand=x fetch",
            "git clone --config core.fsmonitor=x u",
            "git clone --template=t u",
            "git diff --ext-diff",
            "git difftool -y",
            "git mergetool",
            "git instaweb",
            "git $X",
            "git fetch $X",
            "git \"$X\" status",
        ],
        Ask,
    );
    assert_all(
        "allow git *",
        &[
            "git status",
            "git -C sub log --oneline",
            "git clone https://a.org/b.git",
            "git clone git@a.org:b.git",
            "git add $FILE",
            "git commit -m 'use a::b'",
            "git log --format='%h::%s'",
            "git show HEAD:src/a.rs",
            "git fetch -- $X",
            "git config user.name a",
            "/usr/bin/git push origin main",
        ],
        Allow,
    );
}

#[test]
fn rule_that_names_what_executes_allows_it() {
    check(&[
        ("git lg", "ask *, allow git lg *", Allow),
        ("git -c core.fsmonitor=x status", "ask *, allow git -c core.fsmonitor=x *", Ask),
        ("git config core.fsmonitor x", "ask *, allow git config core.fsmonitor x", Allow),
        ("git config core.fsmonitor x", "ask *, allow git config *", Ask),
        ("git clone ext::x y", "ask *, allow git clone ext::x *", Allow),
        ("cargo run -p x", "ask *, allow cargo *", Ask),
        ("cargo run -p x", "ask *, allow cargo run *", Allow),
        ("/usr/bin/cargo run", "ask *, allow cargo run *", Allow),
        ("/tmp/evil/cargo run", "ask *, allow cargo run *", Ask),
        ("npm run build", "ask *, allow npm run *", Allow),
        ("make -j4 test", "ask *, allow make *", Allow),
        ("make -j4 test", "ask *, allow m* *", Ask),
        ("python3 x.py", "ask *, allow python3 *", Allow),
        ("python3 x.py", "ask *, allow *.py", Ask),
        // Rules about everything mean everything.
        ("git -c core.fsmonitor=x status", "", Allow),
        ("git lg", "allow *", Allow),
        ("git lg", "deny rm *", Allow),
        // Rules that deny or ask are not concerned.
        ("git lg", "deny git *", Deny),
        ("cargo run", "allow *, deny c*", Deny),
    ]);
}

#[test]
fn options_that_execute_are_found() {
    for (rule, executing, harmless) in [
        (
            "allow tar *",
            &[
                "tar cf x --checkpoint=1 --checkpoint-action=exec=sh y",
                "tar xf x --to-command='sh -c y'",
                "tar xf x --to-com=y",
                "tar -I y -xf x",
                "tar xIf y x",
                "tar -xf x --use-compress-program y",
                "tar $X",
            ][..],
            &["tar xzf x.tgz -C y", "tar -czf x.tgz -- $FILES", "tar --exclude=x -cf y z"][..],
        ),
        (
            "allow ssh *",
            &[
                "ssh -F x host ls",
                "ssh -o ProxyCommand=x host ls",
                "ssh -oProxyCommand=x host",
                "ssh -I x h ls",
            ],
            &["ssh -N -L 80:a:80 host"],
        ),
        (
            "allow rsync *",
            &["rsync -e x a b", "rsync -ave x a h:b", "rsync --rsh=x a b", "rsync $X a b"],
            &["rsync -a a b"],
        ),
        ("allow find *", &["find . -exec touch {} +", "find . -execdir x ;"], &["find . -name x -delete"]),
        ("allow xargs *", &["xargs touch", "xargs -0 sh -c x"], &["xargs -0"]),
        ("allow env *", &["env touch x", "env -S 'touch x'"], &["env", "env -0"]),
        (
            "allow sed *",
            &[
                "sed '1e touch x' f",
                "sed s/a/b/e f",
                "sed -n -f x f",
                "sed -e p -e 'e x' f",
                "sed -ne e f",
                "sed $X f",
            ],
            &["sed -n 1,5p f", "sed -i s/a/e/g f", "sed -Ei.bak 's/[a-e]+/x/; /e/d' f"],
        ),
        (
            "allow awk *",
            &[
                "awk 'BEGIN { system(\"touch x\") }'",
                "awk '{ print | \"sh\" }' f",
                "awk -f x f",
                "awk '{ \"date\" | getline d }'",
            ],
            &["awk '{ print $1 }' f", "awk -F: '/x/ { print $1 }' f"],
        ),
        ("allow less *", &["less '+!touch x' f"], &["less f"]),
        ("allow man *", &["man -P x ls", "man --pager=x ls", "man --pag x ls"], &["man ls"]),
        ("allow v*", &["vim -c ':!x' f", "vim f"], &["vmstat"]),
        (
            "allow npm *",
            &["npm run build", "npm test", "npm install x", "npm i", "npm --script-shell x ls"],
            &["npm ls", "npm view x"],
        ),
        (
            "allow cargo *",
            &[
                "cargo run",
                "cargo t",
                "cargo build",
                "cargo +nightly x",
                "cargo --config build.rustc-wrapper=x tree",
            ],
            &["cargo tree", "cargo fmt --all", "cargo metadata --format-version 1"],
        ),
        ("allow pip *", &["pip install x", "pip wheel ."], &["pip list", "pip show x"]),
        (
            "allow docker *",
            &[
                "docker run image",
                "docker exec c",
                "docker --context c run i",
                "docker build .",
                "docker compose up",
            ],
            &["docker ps -a", "docker logs -f x"],
        ),
        (
            "allow kubectl *",
            &["kubectl exec p -- x", "kubectl edit p", "kubectl some-plugin", "kubectl run x"],
            &["kubectl get pods", "kubectl logs x"],
        ),
        ("allow sort *", &["sort --compress-program=x f", "sort --compress-prog x f"], &["sort -u f"]),
        (
            "allow go *",
            &["go test ./...", "go run .", "go list -toolexec=x ./..."],
            &["go list ./...", "go mod tidy"],
        ),
        (
            "allow sqlite3 *",
            &["sqlite3 db '.shell x'", "sqlite3 db \"select load_extension('x')\"", "sqlite3 -cmd x db"],
            &["sqlite3 db 'select 1'"],
        ),
        ("allow rg *", &["rg --pre x y"], &["rg -n x src"]),
        (
            "allow make *",
            &["make --eval='$(shell x)'", "make 'X=$(shell x)'", "make SHELL=x"],
            &["make -j4 all"],
        ),
        ("allow wget *", &["wget -e use_askpass=x u", "wget --use-askpass=x u"], &["wget -q u"]),
    ] {
        assert_all(rule, executing, Ask);
        assert_all(rule, harmless, Allow);
    }
}

/// A command in an option is also judged by the rules about it.
#[test]
fn commands_in_options_are_judged_on_their_own() {
    check(&[
        ("tar xf x --to-command='rm y'", "deny rm *", Deny),
        ("tar cf x --checkpoint-action=exec='rm y' z", "deny rm *", Deny),
        ("tar -I 'rm y' -xf x", "deny rm *", Deny),
        ("man -P 'rm x' ls", "deny rm *", Deny),
        ("split --filter='rm x' f", "deny rm *", Deny),
        ("sort --compress-program=rm f", "deny rm *", Deny),
        ("man -P \"$X\" ls", "deny rm *", Ask),
        ("tar xf x", "deny rm *", Allow),
    ]);
}

#[test]
fn verdict_explains_why_the_rule_does_not_allow() {
    let set = workspace_rules("ask *, allow git *");
    let Verdict::Ask(ask) = bash(&set, "git fetch ext::x") else { panic!("not asked") };
    assert_eq!(
        ask.why,
        "the workspace asks about bash `*`; `git *` does not allow `git fetch ext::x`: an address names the program that \
         connects"
    );
    assert_eq!(ask.always.len(), 1);
    assert_eq!(ask.always[0].pattern, "git fetch ext::x", "only this command is offered");
    let Verdict::Ask(ask) = bash(&workspace_rules("ask *, allow cargo *"), "cargo test -p x") else {
        panic!("not asked")
    };
    assert!(ask.why.ends_with("it executes code of the workspace or of packages"), "{}", ask.why);
    assert_eq!(ask.always[0].pattern, "cargo test *");
    let Verdict::Deny(denial) = bash(&workspace_rules("deny *, allow git *"), "git lg") else {
        panic!("not denied")
    };
    assert!(denial.why.contains("it may be an alias"), "{}", denial.why);
}
