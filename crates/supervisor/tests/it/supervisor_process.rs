//! Test fixture: a running supervisor process and the processes of its commands.

use std::{
    io::{Read, Write},
    process::{Child, ChildStdin, Command, ExitStatus as ProcessStatus, Stdio},
    sync::{
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use remuda_supervisor::{
    Decoder, End, ExitStatus, Frame, FromSupervisor, Limits, Program, Refusal, Request, ToSupervisor,
};

/// Upper bound of every wait in these tests.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct SupervisorProcess {
    child: Child,
    input: Option<ChildStdin>,
    frames: mpsc::Receiver<Frame<FromSupervisor>>,
    mark: String,
}

/// Output and end of a command.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) result: Result<End, Refusal>,
}

impl Outcome {
    pub(crate) fn end(&self) -> End {
        self.result.clone().unwrap()
    }

    pub(crate) fn status(&self) -> ExitStatus {
        self.end().status
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }
}

impl SupervisorProcess {
    pub(crate) fn start(mode: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mark = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        // As a background job of a script: commands must not inherit the ignored signals.
        let mut child = Command::new("/bin/sh")
            .args(["-c", r#"trap "" HUP INT QUIT; exec "$0" "$1""#])
            .args([env!("CARGO_BIN_EXE_remuda-supervisor"), mode])
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, frames) = mpsc::channel();
        let mut output = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            let (mut decoder, mut buffer) = (Decoder::default(), [0; 8192]);
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                decoder.push(&buffer[..count]);
                while let Some(frame) = decoder.next().unwrap() {
                    // The test may have dropped the receiver.
                    let _seen = sender.send(frame);
                }
            }
        });
        let supervisor = Self { input: child.stdin.take(), child, frames, mark };
        assert_eq!(supervisor.next(), Frame { channel: 0, message: FromSupervisor::Ready });
        supervisor
    }

    pub(crate) fn send(&mut self, channel: u32, message: ToSupervisor) {
        assert!(self.try_send(channel, message));
    }

    /// Sends a message. False if the supervisor has closed its input.
    pub(crate) fn try_send(&mut self, channel: u32, message: ToSupervisor) -> bool {
        let bytes = Frame { channel, message }.to_bytes();
        self.input.as_mut().unwrap().write_all(&bytes).is_ok()
    }

    pub(crate) fn start_command(&mut self, channel: u32, request: Request) {
        self.send(channel, ToSupervisor::Start(Box::new(request)));
    }

    pub(crate) fn shell(&mut self, script: &str) -> Outcome {
        let request = self.script(script);
        self.start_command(0, request);
        self.outcome(0)
    }

    /// A request whose processes are found by [`alive`](Self::alive).
    pub(crate) fn script(&self, script: &str) -> Request {
        self.request(Program::Shell { shell: None, script: script.to_owned() })
    }

    pub(crate) fn request(&self, program: Program) -> Request {
        let env = [("PATH", std::env::var("PATH").unwrap()), ("SUPERVISOR_TEST", self.mark.clone())];
        Request {
            program,
            cwd: None,
            env: env.map(|(name, value)| (name.to_owned(), value)).to_vec(),
            has_input: false,
            limits: Limits::default(),
            user: None,
            file_capabilities: false,
            confinement: None,
            grace_ms: 200,
        }
    }

    pub(crate) fn next(&self) -> Frame<FromSupervisor> {
        self.frames.recv_timeout(TIMEOUT).unwrap()
    }

    /// Reads all messages of one command. No other command may send in the meantime.
    pub(crate) fn outcome(&self, channel: u32) -> Outcome {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let result = loop {
            let frame = self.next();
            assert_eq!(frame.channel, channel);
            match frame.message {
                FromSupervisor::Stdout(bytes) => stdout.extend(bytes),
                FromSupervisor::Stderr(bytes) => stderr.extend(bytes),
                FromSupervisor::Ended(end) => break Ok(end),
                FromSupervisor::Refused(refusal) => break Err(refusal),
                FromSupervisor::Ready => panic!("Ready was sent twice"),
            }
        };
        Outcome { stdout, stderr, result }
    }

    /// Waits for exactly this output.
    pub(crate) fn expect_output(&self, channel: u32, expected: &str) {
        let mut seen = Vec::new();
        while seen != expected.as_bytes() {
            match self.next() {
                Frame { channel: from, message: FromSupervisor::Stdout(bytes) } if from == channel => {
                    seen.extend(bytes);
                }
                other => panic!("expected {expected:?}, not {other:?}"),
            }
        }
    }

    pub(crate) fn close_input(&mut self) {
        self.input = None;
    }

    pub(crate) fn id(&self) -> i32 {
        self.child.id().try_into().unwrap()
    }

    pub(crate) fn wait(&mut self) -> ProcessStatus {
        wait_until(|| self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap()
    }

    pub(crate) fn assert_nothing_runs(&self) {
        let alive = self.alive();
        assert!(alive.is_empty(), "{alive:?}");
    }

    /// Living processes that commands of this supervisor started, found by an environment variable.
    pub(crate) fn alive(&self) -> Vec<i32> {
        let wanted = format!("SUPERVISOR_TEST={}", self.mark);
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        ids.filter(|id| {
            // The environment of a zombie is empty.
            let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
        })
        .collect()
    }
}

impl Drop for SupervisorProcess {
    fn drop(&mut self) {
        self.input = None;
        // The supervisor kills its processes and exits; a failing test must not wait for that forever.
        let deadline = Instant::now() + Duration::from_secs(10);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::park_timeout(Duration::from_millis(2));
        }
        let _ignored = self.child.kill().and_then(|()| self.child.wait());
    }
}

pub(crate) fn wait_until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "condition not met in time");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}
