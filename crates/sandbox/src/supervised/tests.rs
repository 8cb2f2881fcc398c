use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use tokio::sync::mpsc;

use super::*;
use crate::output::NoOutput;

/// A supervisor that says what the test tells it to.
struct Scripted {
    said: mpsc::UnboundedReceiver<FromSupervisor>,
    heard: Arc<Mutex<Vec<ToSupervisor>>>,
    /// Takes nothing.
    deaf: bool,
}

impl Wire for Scripted {
    async fn send(&mut self, message: ToSupervisor) -> Result<()> {
        if self.deaf {
            std::future::pending::<()>().await;
        }
        self.heard.lock().unwrap().push(message);
        Ok(())
    }

    async fn receive(&mut self) -> Result<FromSupervisor> {
        self.said.recv().await.ok_or_else(|| Error::unavailable("it is gone"))
    }
}

struct Stage {
    wire: Scripted,
    supervisor: mpsc::UnboundedSender<FromSupervisor>,
    files: HostFiles,
    cancel: CancellationToken,
    command: Command,
    _workspace: TempDir,
}

impl Stage {
    async fn new() -> Self {
        let workspace = TempDir::new().unwrap();
        let (supervisor, said) = mpsc::unbounded_channel();
        Self {
            wire: Scripted { said, heard: Arc::default(), deaf: false },
            supervisor,
            files: HostFiles::open(workspace.path(), None).await.unwrap(),
            cancel: CancellationToken::new(),
            command: Command::shell("true", Duration::from_secs(60)),
            _workspace: workspace,
        }
    }

    fn says(&self, message: FromSupervisor) {
        self.supervisor.send(message).unwrap();
    }

    async fn drive(&mut self) -> Result<ExecResult> {
        let grace = Duration::from_millis(500);
        let (command, files, cancel) = (&self.command, &self.files, &self.cancel);
        let job = Job { command, files, output: &NoOutput, cancel, grace };
        let request = job.request(Conditions::default());
        drive(&mut self.wire, request, &job).await
    }

    /// Without the request.
    fn heard(&self) -> Vec<ToSupervisor> {
        self.wire.heard.lock().unwrap()[1..].to_vec()
    }
}

fn end(status: ExitStatus, out_of_memory: bool) -> FromSupervisor {
    FromSupervisor::Ended(End { status, cpu_ms: 12, max_rss_kib: 3, left_behind: 1, out_of_memory })
}

#[tokio::test(start_paused = true)]
async fn how_it_ended() {
    for (status, out_of_memory, expected) in [
        (ExitStatus::Exited(3), false, ExecStatus::Exited(3)),
        (ExitStatus::Signalled(9), false, ExecStatus::Signalled(9)),
        (ExitStatus::Signalled(9), true, ExecStatus::OutOfMemory),
        // Some other process of the container was killed.
        (ExitStatus::Exited(0), true, ExecStatus::Exited(0)),
    ] {
        let mut stage = Stage::new().await;
        stage.says(FromSupervisor::Ready);
        stage.says(FromSupervisor::Stdout(b"out".to_vec()));
        stage.says(FromSupervisor::Stderr(b"err".to_vec()));
        stage.says(end(status, out_of_memory));
        let result = stage.drive().await.unwrap();
        assert_eq!(result.status, expected);
        assert_eq!((result.stdout.text.as_str(), result.stderr.text.as_str()), ("out", "err"));
        let usage = Usage { cpu: Duration::from_millis(12), max_memory_bytes: 3072, left_behind: 1 };
        assert_eq!((result.usage, result.stdout.truncated), (usage, false));
        assert_eq!(stage.heard(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn refusals_have_codes() {
    for (kind, code, field) in [
        (RefusalKind::ProgramNotFound, Code::FileNotFound, Some("command")),
        (RefusalKind::ProgramNotExecutable, Code::ToolFailed, Some("command")),
        (RefusalKind::DirectoryNotFound, Code::FileNotFound, Some("cwd")),
        (RefusalKind::ArgumentsTooLong, Code::TooLarge, Some("command")),
        (RefusalKind::NotConfined, Code::Unavailable, None),
        (RefusalKind::OutOfResources, Code::Unavailable, None),
        (RefusalKind::Other, Code::Unavailable, None),
    ] {
        let mut stage = Stage::new().await;
        stage.says(FromSupervisor::Refused(Refusal { kind, detail: "/secret/path".to_owned() }));
        let error = stage.drive().await.unwrap_err();
        assert_eq!((error.code(), error.field()), (code, field));
        assert!(!error.message().contains("secret"));
    }
}

#[tokio::test(start_paused = true)]
async fn input_is_sent_in_pieces_and_ends() {
    let mut stage = Stage::new().await;
    stage.command.stdin = Some(vec![b'x'; INPUT_CHUNK + 1]);
    stage.says(end(ExitStatus::Exited(0), false));
    stage.drive().await.unwrap();
    let sizes: Vec<usize> = stage
        .heard()
        .iter()
        .map(|message| match message {
            ToSupervisor::Input(bytes) => bytes.len(),
            other => panic!("{other:?} is no input"),
        })
        .collect();
    assert_eq!(sizes, [INPUT_CHUNK, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn one_that_does_not_answer_is_asked_then_killed_then_left() {
    let mut stage = Stage::new().await;
    stage.says(FromSupervisor::Stdout(b"some".to_vec()));
    let result = stage.drive().await.unwrap();
    assert_eq!(result.status, ExecStatus::TimedOut);
    assert_eq!(stage.heard(), [ToSupervisor::Stop, ToSupervisor::Kill]);
    assert_eq!((result.stdout.text.as_str(), result.stdout.truncated), ("some", true));
    assert!(result.duration >= stage.command.timeout + ANSWER_TIME);
}

#[tokio::test(start_paused = true)]
async fn one_that_takes_nothing_is_left() {
    let mut stage = Stage::new().await;
    stage.wire.deaf = true;
    assert_eq!(stage.drive().await.unwrap().status, ExecStatus::TimedOut);
    stage.cancel.cancel();
    assert_eq!(stage.drive().await.unwrap().status, ExecStatus::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn a_lost_supervisor_is_an_error_unless_it_was_to_end() {
    let Stage { mut wire, files, cancel, command, supervisor, _workspace } = Stage::new().await;
    drop(supervisor);
    let grace = Duration::ZERO;
    let job = Job { command: &command, files: &files, output: &NoOutput, cancel: &cancel, grace };
    let request = job.request(Conditions::default());
    assert_eq!(drive(&mut wire, request.clone(), &job).await.unwrap_err().code(), Code::Unavailable);
    cancel.cancel();
    assert_eq!(drive(&mut wire, request, &job).await.unwrap().status, ExecStatus::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn an_endless_timeout_is_one() {
    let mut stage = Stage::new().await;
    stage.command.timeout = Duration::MAX;
    stage.says(end(ExitStatus::Exited(0), false));
    assert_eq!(stage.drive().await.unwrap().status, ExecStatus::Exited(0));
}
