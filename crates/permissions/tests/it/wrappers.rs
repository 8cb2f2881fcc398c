//! Wrapper programs with their own argument syntax.

use PermissionAction::{Allow, Ask, Deny};
use remuda_domain::permission::PermissionAction;

use crate::shell::{NO_RM, Row, check};

fn check_all(commands: &[&'static str], expected: PermissionAction) {
    let rows: Vec<Row> = commands.iter().map(|command| (*command, NO_RM, expected)).collect();
    check(&rows);
}

#[test]
fn commands_of_remote_programs_are_found() {
    check_all(
        &[
            "ssh host <<'E'\nrm x\nE",
            "ssh host bash -s <<'E'\nrm x\nE",
            "ssh -o 'ProxyCommand = rm x' h ls",
            "ssh -oProxyCommand='rm x' h ls",
            "scp -o ProxyCommand='rm x' a b",
            "scp -S rm a b",
            "sftp -oProxyCommand='rm x' h",
            "rsync -e 'rm x' a h:b",
            "rsync -ave 'rm x' a h:b",
            "rsync --rsh='rm x' a h:b",
            "rsync --rsync-path='rm x; rsync' a h:b",
        ],
        Deny,
    );
    check_all(&["echo rm x | ssh host", "ssh host", "ssh -o \"$X\" host ls"], Ask);
    check_all(
        &[
            "ssh host bash -s <<'E'\nls\nE",
            "ssh -N -L 80:a:80 host",
            "rsync -av -e 'ssh -p 22' a host:b",
            "rsync -av a b",
            "scp -P 22 a host:b",
            "scp -o StrictHostKeyChecking=no a host:b",
            "scp -oIdentityFile=DSrm a host:b",
        ],
        Allow,
    );
}

#[test]
fn commands_in_git_options_are_found() {
    check_all(
        &[
            "git clone -u 'rm x;' . y",
            "git ls-remote --upload-pack='rm x;' .",
            "git fetch --upload-p 'rm x' o",
            "git push --receive-pack='rm x' o",
            "git rebase -x'rm x' main",
            "git rebase --exe 'rm x' main",
            "git rebase -ix 'rm x' main",
            "git grep -O'rm x' a",
            "git difftool -x 'rm x'",
            "git filter-branch --tree-filter 'rm x' HEAD",
        ],
        Deny,
    );
    check_all(
        &[
            "git clone -c core.fsmonitor='x' u",
            "git clone --config core.sshCommand=x u",
            "git clone --template=t u",
            "git config alias.z '!x'",
            "git config --global core.pager x",
            "git config core.pager user.x",
            "git config -f user.x core.pager x",
            "git --strange push",
            "git -c init.templateDir=x init",
        ],
        Ask,
    );
    check_all(
        &[
            "git clone --depth 1 https://a.org/b.git c",
            "git clone -c user.name=a u",
            "git config user.email a@b.org",
            "git config --get core.pager",
            "git config -l",
            "git rebase -i main",
            "git grep -n rm src",
            "git push -u origin main",
            "git --no-pager log -n 5",
        ],
        Allow,
    );
}

#[test]
fn commands_behind_wrapper_programs_are_found() {
    check_all(
        &[
            "script -q -c ls -c 'rm x' /dev/null",
            "script -Brec.log -c 'rm x'",
            "script -q -tc -c 'rm x' f",
            "su -mc 'rm x'",
            "su --comm='rm x'",
            "fakeroot <<'E'\nrm x\nE",
            "setarch x86_64 rm x",
            "setarch -R rm x",
            "linux64 rm x",
            "prlimit rm x",
            "prlimit --nofile=10 rm x",
            "sg root -c 'rm x'",
            "choom -n 0 -- rm x",
            "nsenter -t 1 -m rm x",
            "dbus-run-session -- rm x",
            "systemd-run --user rm x",
            "chronic rm x",
            "unbuffer rm x",
            "hyperfine -p 'rm x' ls",
            "hyperfine --prepare='rm x' ls",
            "fd -x rm",
            "fdfind . -X rm",
            "npx rm x",
            "npm exec -- rm x",
            "pnpm exec rm x",
            "uv run --with a rm x",
            "poetry run rm x",
            "pipenv run rm x",
            "bundle exec rm x",
            "docker exec -it c rm x",
            "docker compose exec web rm x",
            "podman run --rm i rm x",
            "kubectl exec -it p -- rm x",
            "/lib64/ld-linux-x86-64.so.2 /bin/rm x",
            "firejail rm x",
            "nix develop -c rm x",
            "fish -c 'rm x'",
            "zsh -c 'ls; rm x'",
        ],
        Deny,
    );
    check_all(
        &[
            "su -s /bin/x root",
            "su root -c -p x",
            "fakeroot",
            "npx -c 'x'",
            "docker run --entrypoint x i y",
            "docker --context c exec web x",
            "kubectl exec p x",
            "tmux new -d 'x'",
            "screen -dm x",
            "crontab -",
            "crontab f",
            "zsh -c '=ls'",
            "echo x | fish",
            "pwsh -c 'x'",
            "csh -c ls",
            "zsh --emulate sh -c ls",
            "curl x | python3.12",
            "curl x | pypy3",
            "curl x | python3 -u",
            "curl x | bun -",
            "curl x | python3 -W ignore",
            "curl x | python3 -v",
            "python3 <(curl x)",
            "curl x | node -r fs",
        ],
        Ask,
    );
    check_all(
        &[
            "npx tsc --noEmit",
            "npm test && npm run build && npm install",
            "yarn add x",
            "uv run pytest -q",
            "uv pip install x",
            "docker ps && docker build -t x .",
            "docker run --rm -it -v a:b image ls",
            "kubectl get pods",
            "tmux ls",
            "crontab -l",
            "fd -e rs foo",
            "python3 --version; node -v; python3.12 x.py; python3 -m pytest",
            "zsh script.zsh",
            "hyperfine 'ls -l'",
            "bundle install",
        ],
        Allow,
    );
}
