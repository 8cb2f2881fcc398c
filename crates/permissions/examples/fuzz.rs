use remuda_domain::{permission::*, tool::Effects};
use remuda_permissions::*;
use std::{fs, process::Command};
struct R(u64);
impl R {
    fn n(&mut self, m: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % m as u64) as usize
    }
    fn p<'a>(&mut self, x: &[&'a str]) -> &'a str {
        let i = self.n(x.len());
        x[i]
    }
}
fn q(s: &str) -> String {
    s.replace('\'', "'\\''")
}
fn cmd(r: &mut R, d: usize) -> String {
    if d == 0 || r.n(6) == 0 {
        return r
            .p(&[
                "rm MARKER",
                "rm MARKER",
                "rm MARKER",
                "'rm' MARKER",
                "r\\m MARKER",
                "echo rm MARKER",
                "echo 'rm MARKER'",
                "echo \"rm MARKER\"",
                "ls",
                "x=1",
                "echo a",
                "echo ${y:-rm MARKER}",
                "true",
            ])
            .to_owned();
    }
    let t = r.p(&[
        "@ ; @",
        "@ && @",
        "@ | @",
        "@\n@",
        "(@)",
        "( @ )",
        "{ @\n}",
        "echo $(@)",
        "echo \"$(@)\"",
        "echo `%`",
        "echo \"`%`\"",
        "if true; then @\nfi",
        "if @\nthen :; fi",
        "for f in a b; do @\ndone",
        "while @\ndo break; done",
        "until false; do @\nbreak; done",
        "case x in x) @\n;; esac",
        "case x in (a|b) @\n;; x) @\n;; esac",
        "f() { @\n}; f",
        "f() ( @\n)\nf",
        "function f { @\n}\nf",
        "coproc { @\n}\nwait",
        "coproc N { @\n}\nwait",
        "! @",
        "time @",
        "cat <<E\n@\nE",
        "cat <<'E'\n@\nE",
        "cat <<-E\n\t@\n\tE",
        "cat <<E\n$(@)\nE",
        "cat <<E; @\nrm MARKER\nE",
        "cat <<E |\nrm MARKER\nE\n@",
        "bash <<'E'\n@\nE",
        "sh <<E\n@\nE",
        "bash <<< '~'",
        "bash -c '~'",
        "sh -c '~'",
        "eval '~'",
        "eval \"~\"",
        "trap '~' EXIT",
        "cat <(@)",
        "ls > >(@)",
        "x=$(@)",
        "x=($(@) b)",
        "echo ${y:-$(@)}",
        "echo \"${y:-`%`}\"",
        "echo $((1+$(@)))",
        "(( z[$(@)0] ))",
        "[[ -n $(@) ]]",
        "[[ a == b || $(@) ]]",
        "echo $[ $(@) 1 ]",
        "env A=1 @",
        "env -i PATH=\"$PATH\" @",
        "xargs -n1 @ < /dev/null",
        "echo a | xargs -I{} @",
        "sudo @",
        "command @",
        "exec @",
        "$'\\x72m' MARKER",
        "# @\n@",
        "echo a#b; @",
        "echo \\# ; @",
        "echo ${#x} # @",
        "\\\n@",
        "echo a\\\n; @",
        "x=1 @",
        "> o @",
        "2>&1 @",
        "select f in a; do @\nbreak; done <<< 1",
        "((@))",
        "((@); @)",
        "( (@) )",
        "$((@) )",
        "$(@)",
        "@ & wait",
        "alias q='~'\n@",
        "echo \"a ' b\" ; @",
        "echo 'a \" b' ; @",
        "echo \"\\\"\" ; @",
        "echo $'\\'' ; @",
        "echo \\' ; @",
        "echo \"${y:-a}\" '}' ; @",
        "echo ${y:-'}'} ; @",
        "echo \"${y#'a'}\" ; @",
        "echo \"${y:-'a'}\" ; @",
        "case $(@) in *) ;; esac",
        "cat <<\"A B\"\n@\nA B\n@",
        "cat <<A <<B\n@\nA\n@\nB\n@",
        "cat <<E\\\n\n@\nE\n",
        "echo $(cat <<E\n@\nE\n)",
        "echo $(case x in x) @\n;; esac)",
        "[ -n \"`%`\" ]",
        "{ cat; @\n} <<E\na\nE",
        "a[0]=1 @",
        "a[$(@)]=1",
        "echo {a,b} ; @",
        "while read l; do @\ndone <<E\na\nE",
        "test 1 = 1 && @ || @",
        "exec 3>&1; @",
        "@ >&2",
        "if ((1)); then @\nfi",
        "for ((i=0;i<1;i++)); do @\ndone",
        "for f do @\ndone",
        "set -- rm MARKER; @",
        "time -p @",
        "[[ x =~ ^(a|x)$ ]] && @",
        "@ |& cat",
        "@ ;: # '\n@",
        "echo ${x/\\//\"$(@)\"}",
    ]);
    let mut out = String::new();
    for c in t.chars() {
        match c {
            '@' => {
                let s = cmd(r, d - 1);
                out.push_str(&s)
            }
            '%' => {
                let s = cmd(r, d - 1);
                out.push_str(&s.replace('\\', "\\\\").replace('`', "\\`"))
            }
            '~' => {
                let s = cmd(r, d - 1);
                if t.contains('"') {
                    out.push_str(
                        &s.replace('\\', "\\\\").replace('"', "\\\"").replace('$', "\\$").replace('`', "\\`"),
                    )
                } else {
                    out.push_str(&q(&s))
                }
            }
            c => out.push(c),
        }
    }
    out
}
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let (dir, n): (String, usize) = (args[1].clone(), args[2].parse().unwrap());
    let mut r = R(args[3].parse::<u64>().unwrap().wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mode = args.get(4).map(String::as_str).unwrap_or("");
    let noise = [
        "\"", "'", "$(", ")", "(", "((", "))", "`", "\\", "\n", ";", "|", " ", "{ ", "}", "<<E", "\nE\n",
        "\t", "#", " #", "$", "\\\n", "esac", "fi", "done", ";;", "[[", "]]", "${", "<(", "&", "=",
    ];
    let set =
        Ruleset::new().with(Layer::Workspace, [PermissionRule::new("bash", "rm *", PermissionAction::Deny)]);
    let (mut allow, mut ran, mut missed) = (0, 0, 0);
    let work = format!("{dir}/w");
    let marker = format!("{work}/MARKER");
    for _ in 0..n {
        let d = 1 + r.n(3);
        let mut text = cmd(&mut r, d);
        if r.n(3) == 0 {
            for _ in 0..1 + r.n(3) {
                let mut v: Vec<char> = text.chars().collect();
                if v.is_empty() {
                    break;
                }
                let at = r.n(v.len());
                if r.n(3) == 0 {
                    v.remove(at);
                    text = v.into_iter().collect();
                } else {
                    let p = r.p(&noise);
                    text = v[..at].iter().collect::<String>() + p + &v[at..].iter().collect::<String>();
                }
            }
        }
        let verdict = set.judge(
            PermissionMode::Default,
            "/w",
            &Asked {
                tool: "Bash",
                arguments: &serde_json::json!({"command": text}),
                effects: Effects::Mutating,
            },
        );
        let a = verdict.action();
        let want = match mode {
            "deny" => PermissionAction::Deny,
            "ask" => PermissionAction::Ask,
            _ => PermissionAction::Allow,
        };
        if a != want {
            continue;
        }
        allow += 1;
        let _ = fs::remove_dir_all(&work);
        let _ = fs::create_dir_all(&work);
        let _ = Command::new("/usr/bin/timeout")
            .args(["2", "/usr/bin/bash", "-c", &text])
            .env_clear()
            .env("PATH", format!("{dir}/bin:"))
            .current_dir(&work)
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status();
        ran += 1;
        let did = fs::metadata(&marker).is_ok();
        let odd = if mode.is_empty() { did } else { !did };
        if odd {
            missed += 1;
            if mode != "ask" && missed < 40 {
                println!("ODD: {text:?}")
            }
        }
    }
    println!("{mode} judged {allow} ran {ran} odd {missed}");
}
