//! The judge of shell commands: alone, and against real shells.

use std::{
    fs, io,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use remuda_domain::{
    permission::{PermissionAction, PermissionMode, PermissionRule},
    tool::{CallSubject, Effects, ToolDescriptor},
};
use remuda_permissions::{Layer, ProposedCall, Ruleset, Verdict};
use remuda_sandbox::guarded_script;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Target, kind};

pub(super) const VERDICT: Target =
    Target { name: "shell-verdicts", run: verdicts, dictionary: PIECES, inputs: 3_000 };
pub(super) const EXECUTION: Target =
    Target { name: "shell-execution", run: execution, dictionary: PIECES, inputs: 150 };

const PIECES: &[&str] = &[
    "rm",
    "rm x",
    "ls",
    "x",
    "echo",
    " ",
    " ",
    "\n",
    ";",
    "&&",
    "||",
    "|",
    "|&",
    "&",
    "(",
    ")",
    "{ ",
    " }",
    "$(",
    "`",
    "'",
    "\"",
    "\\",
    "\\\n",
    "$x",
    "${x}",
    "${x:-",
    "${x:=rm}",
    "${x#",
    "}",
    "$((",
    "))",
    "((",
    "[[",
    "]]",
    "#",
    "<<E\n",
    "\nE\n",
    "<<-'E'\n",
    "<<<",
    "<(",
    ">(",
    ">",
    "2>&1",
    "&>",
    "if ",
    "then ",
    "else ",
    "fi",
    "for f in ",
    "do ",
    "done",
    "while ",
    "case x in ",
    "x) ",
    ";;",
    ";&",
    "esac",
    "!",
    "time ",
    "eval ",
    "bash -c ",
    "sh -c ",
    "sh ",
    "env ",
    "xargs ",
    "command ",
    "exec ",
    "builtin ",
    "trap ",
    " EXIT",
    "x=",
    "x=rm ",
    "a[",
    "]",
    "=",
    "$'",
    "\\x72m",
    "$\"",
    "{rm,x}",
    "*",
    "?",
    "~",
    "-",
    "--",
    "-c",
    "set -- ",
    "$@",
    "\"$@\"",
    "shift",
    "read x",
    "printf ",
    "test ",
    "let ",
    "declare ",
    "export ",
    "alias ",
    "unset ",
    "é",
    "\r",
    "\t",
    "function ",
    "coproc ",
    "select ",
    "in",
    "[ ",
    "$#",
    "$1",
    "${!x}",
    "${x@P}",
    "${x//",
    "!rm",
    "\u{b}",
];

fn judge(rule: &str, script: &str) -> Verdict {
    let tool = ToolDescriptor {
        permission: "bash".into(),
        subject: |arguments: &Value| CallSubject::Script {
            argument: "command",
            script: arguments["command"].as_str(),
        },
        ..ToolDescriptor::new("Bash", Effects::Mutating)
    };
    let deny = PermissionRule::new("bash", rule, PermissionAction::Deny);
    let rules = Ruleset::new().with(Layer::Workspace, [deny]);
    rules.judge(
        PermissionMode::Default,
        "/w",
        &ProposedCall { tool: &tool, arguments: &json!({ "command": script }) },
    )
}

/// There is a verdict, in time that is bounded by the size, and it is always the same one.
fn verdicts(bytes: &[u8]) -> u64 {
    let script = String::from_utf8_lossy(bytes);
    let started = Instant::now();
    let verdict = judge("rm *", &script);
    assert!(started.elapsed() < Duration::from_secs(10), "the verdict takes long");
    assert_eq!(judge("rm *", &script), verdict, "the verdict is not always the same");
    // What is denied without a rule about this command is denied by a rule about all.
    assert!(matches!(judge("*", &script), Verdict::Deny(_)), "a rule about all commands misses one");
    kind(match verdict {
        Verdict::Allow => String::new(),
        Verdict::Ask(ask) => ask.why,
        Verdict::Deny(denial) => denial.why,
    })
}

/// A script in which a shell executes `rm` is not allowed by rules that deny `rm`.
fn execution(bytes: &[u8]) -> u64 {
    let script = String::from_utf8_lossy(bytes);
    let verdict = judge("rm *", &script).action();
    if verdict != PermissionAction::Allow || !may_run(&script) {
        return kind(verdict);
    }
    let bench = Bench::get();
    let executed: Vec<&str> =
        bench.shells.iter().copied().filter(|shell| bench.executes(shell, &script)).collect();
    assert!(
        executed.is_empty(),
        "rules that deny `rm` allow a script in which {executed:?} executes it: {script:?}"
    );
    kind((verdict, script.chars().filter(|next| !next.is_alphanumeric()).take(12).collect::<String>()))
}

/// Whether a real shell may run the script: it must not be able to leave its directory, to wait for long, or to start
/// processes without end.
fn may_run(script: &str) -> bool {
    let mut plain = script.replace("\\\n", "");
    plain.retain(|next| !next.is_whitespace() && !"'\"\\{}".contains(next));
    // No paths, no functions, no signals, no limits, no shells that read the terminal.
    let forbidden = [
        "/", "()", "($", "(`", "function", "coproc", "kill", "ulimit", "suspend", "while", "until", "wait",
        "~+", "~-",
    ];
    script.len() <= 300 && !script.contains('\0') && !forbidden.iter().any(|word| plain.contains(word))
}

/// A directory in which scripts run, and the programs that they find.
struct Bench {
    shells: Vec<&'static str>,
    programs: PathBuf,
    _directory: TempDir,
}

impl Bench {
    fn get() -> &'static Self {
        static BENCH: OnceLock<Bench> = OnceLock::new();
        #[expect(clippy::expect_used, reason = "without its directory, the target cannot run")]
        BENCH.get_or_init(|| Self::new().expect("the directory for scripts"))
    }

    fn new() -> io::Result<Self> {
        let directory = tempfile::Builder::new().prefix("remuda-fuzz-").tempdir()?;
        let programs = directory.path().join("bin");
        fs::create_dir(&programs)?;
        let program = |name: &str, text: &str| {
            let path = programs.join(name);
            fs::write(&path, text)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
        };
        // It says that it was executed by a file that the script cannot name. As the script of a shell (`bash rm`) it does
        // nothing: the real `rm` is no script. Then `$0` is not its path.
        let mark = directory.path().join("executed");
        program("rm", &format!("#!/bin/sh\ncase $0 in /*) : > '{}' ;; esac\n", mark.display()))?;
        for harmless in ["ls", "x"] {
            program(harmless, "#!/bin/sh\n")?;
        }
        let (mut shells, found) = (Vec::new(), |path: &str| Path::new(path).try_exists().unwrap_or(false));
        for (name, paths) in [
            ("bash", ["/bin/bash", "/usr/bin/bash"]),
            ("dash", ["/bin/dash", "/usr/bin/dash"]),
            ("env", ["/bin/env", "/usr/bin/env"]),
            ("xargs", ["/bin/xargs", "/usr/bin/xargs"]),
        ] {
            let Some(path) = paths.into_iter().find(|path| found(path)) else { continue };
            std::os::unix::fs::symlink(path, programs.join(name))?;
            if matches!(name, "bash" | "dash") {
                shells.push(name);
            }
        }
        std::os::unix::fs::symlink("/bin/sh", programs.join("sh"))?;
        assert!(!shells.is_empty(), "there is neither bash nor dash");
        Ok(Self { shells, programs, _directory: directory })
    }

    /// Whether a shell executes `rm` in this script.
    fn executes(&self, shell: &str, script: &str) -> bool {
        #[expect(clippy::expect_used, reason = "the machine has no room for the test")]
        let directory = tempfile::tempdir().expect("a directory for the script");
        let mark = self.programs.with_file_name("executed");
        fs::remove_file(&mark).ok();
        let child = Command::new(self.programs.join(shell))
            .args(["-c", &guarded_script(script)])
            .env_clear()
            .env("PATH", &self.programs)
            .env("HOME", directory.path())
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        child.is_ok_and(|child| {
            finish(child);
            mark.try_exists().unwrap_or(false)
        })
    }
}

/// Waits for a shell, and kills everything that it started.
fn finish(mut child: Child) {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(2) {
        match child.try_wait() {
            Ok(None) => std::thread::park_timeout(Duration::from_micros(300)),
            _ => break,
        }
    }
    // The group: background processes of the script are in it as well.
    if let Ok(group) = i32::try_from(child.id()) {
        killpg(Pid::from_raw(group), Signal::SIGKILL).ok();
    }
    child.wait().ok();
}
