//! The journal of the tools, independent of Remuda: each script appends lines to a file of its session.
//!
//! A line is one `write` to a file opened with `O_APPEND`, so lines of several processes never mix. Scripts use bash
//! built-ins for time and sleep: a script that starts no other program is cheap even on a small machine.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;

use crate::observed_history::{Effect, Mark};

/// How often a long script records that it is alive.
pub(crate) const TICK_INTERVAL: Duration = Duration::from_millis(50);

/// The directory of the journal files.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    directory: PathBuf,
}

/// What a script does between its first and its last line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Script {
    pub(crate) duration: Duration,
    pub(crate) style: ScriptStyle,
    pub(crate) exit_code: i32,
}

/// How hard a script is to kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptStyle {
    Plain,
    /// A child process of the shell does the work.
    Child,
    /// SIGTERM has no effect.
    Stubborn,
}

impl Journal {
    pub(crate) fn new(directory: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&directory)?;
        Ok(Self { directory })
    }

    fn file(&self, session: usize) -> PathBuf {
        self.directory.join(format!("session-{session}"))
    }

    /// The script of one call. It contains the run's key, which identifies its processes in `/proc`.
    pub(crate) fn script(&self, session: usize, key: &str, call: usize, spec: &Script) -> String {
        let file = self.file(session);
        let mut script = format!(
            "exec 8>>'{}'\nsay() {{ echo \"${{EPOCHREALTIME/[.,]/}} {key} {call} $1 $BASHPID\" >&8; }}\n",
            file.display()
        );
        if spec.style == ScriptStyle::Stubborn {
            script.push_str("trap '' TERM\n");
        }
        script.push_str("say start\n");
        let ticks = spec.duration.as_millis() / TICK_INTERVAL.as_millis();
        if ticks > 0 {
            // Reading from an empty pipe with a timeout is bash's built-in way to sleep.
            let tick = format!("read -r -t 0.0{} -u 9; say tick", TICK_INTERVAL.as_millis());
            let work_loop = format!("for ((i = 0; i < {ticks}; i++)); do {tick}; done");
            script.push_str("exec 9<> <(:)\n");
            match spec.style {
                ScriptStyle::Child => script.push_str(&format!("( {work_loop} ) & wait\n")),
                ScriptStyle::Plain | ScriptStyle::Stubborn => script.push_str(&format!("{work_loop}\n")),
            }
        }
        script.push_str(&format!("say end\nexit {}\n", spec.exit_code));
        script
    }

    /// Reads everything written so far.
    pub(crate) fn read(&self) -> anyhow::Result<Vec<Effect>> {
        let mut effects = Vec::new();
        for entry in fs::read_dir(&self.directory).context("cannot read the journal")? {
            let path = entry?.path();
            effects.extend(read_file(&path)?);
        }
        Ok(effects)
    }
}

fn read_file(path: &Path) -> anyhow::Result<Vec<Effect>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let parse = |line: &str| {
        parse(line).with_context(|| format!("{} has a line that no script writes: {line:?}", path.display()))
    };
    text.lines().map(parse).collect()
}

fn parse(line: &str) -> Option<Effect> {
    let mut words = line.split(' ');
    let effect = Effect {
        at: words.next()?.parse().ok()?,
        key: words.next()?.to_owned(),
        call: words.next()?.parse().ok()?,
        mark: match words.next()? {
            "start" => Mark::Start,
            "tick" => Mark::Tick,
            "end" => Mark::End,
            _ => return None,
        },
        pid: words.next()?.parse().ok()?,
    };
    words.next().is_none().then_some(effect)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::observed_history::now;

    fn run(journal: &Journal, spec: &Script) -> Option<i32> {
        let script = journal.script(3, "key-1", 2, spec);
        let mut bash = Command::new("bash");
        bash.arg("-c").arg(script).stdin(Stdio::null()).status().unwrap().code()
    }

    #[test]
    fn script_records_start_ticks_and_end() {
        for style in [ScriptStyle::Plain, ScriptStyle::Child, ScriptStyle::Stubborn] {
            let directory = tempfile::tempdir().unwrap();
            let journal = Journal::new(directory.path().join("journal")).unwrap();
            let before = now();
            let spec = Script { duration: 3 * TICK_INTERVAL, style, exit_code: 7 };
            assert_eq!(run(&journal, &spec), Some(7));
            let effects = journal.read().unwrap();
            let marks: Vec<Mark> = effects.iter().map(|effect| effect.mark).collect();
            assert_eq!(marks, [Mark::Start, Mark::Tick, Mark::Tick, Mark::Tick, Mark::End]);
            assert!(effects.iter().all(|effect| effect.key == "key-1" && effect.call == 2));
            assert!(effects.windows(2).all(|pair| pair[0].at < pair[1].at), "{effects:?}");
            assert!(before < effects[0].at && effects[4].at < now(), "microseconds of the same clock");
            assert!(effects[4].at - effects[0].at >= 3 * 50_000);
            assert_eq!(effects[0].pid == effects[1].pid, style != ScriptStyle::Child);
        }
    }

    #[test]
    fn malformed_line_is_an_error() {
        for line in ["", "1 key 0 start", "1 key 0 start 5 6", "1 key 0 begin 5", "x key 0 start 5"] {
            assert_eq!(parse(line), None, "{line:?}");
        }
        assert!(parse("1 key 0 start 5").is_some());
    }
}
