use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use tokio::sync::mpsc;

use super::*;
use crate::output_sink::NoOutput;

/// A fake supervisor that sends scripted messages and records what it receives.
struct ScriptedSupervisor {
    messages: mpsc::UnboundedReceiver<FromSupervisor>,
    received: Arc<Mutex<Vec<ToSupervisor>>>,
    /// Never completes a send.
    ignores_messages: bool,
}

impl SupervisorConnection for ScriptedSupervisor {
    async fn send(&mut self, message: ToSupervisor) -> Result<()> {
        if self.ignores_messages {
            std::future::pending::<()>().await;
        }
        self.received.lock().unwrap().push(message);
        Ok(())
    }

    async fn receive(&mut self) -> Result<FromSupervisor> {
        self.messages.recv().await.ok_or_else(|| Error::unavailable("it is gone"))
    }
}

struct Fixture {
    connection: ScriptedSupervisor,
    supervisor: mpsc::UnboundedSender<FromSupervisor>,
    files: HostFiles,
    cancel: CancellationToken,
    command: Command,
    _workspace: TempDir,
}

impl Fixture {
    async fn new() -> Self {
        let workspace = TempDir::new().unwrap();
        let (supervisor, messages) = mpsc::unbounded_channel();
        Self {
            connection: ScriptedSupervisor { messages, received: Arc::default(), ignores_messages: false },
            supervisor,
            files: HostFiles::open(workspace.path(), None).await.unwrap(),
            cancel: CancellationToken::new(),
            command: Command::shell("true", Duration::from_secs(60)),
            _workspace: workspace,
        }
    }

    fn supervisor_sends(&self, message: FromSupervisor) {
        self.supervisor.send(message).unwrap();
    }

    async fn run(&mut self) -> Result<ExecResult> {
        let grace = Duration::from_millis(500);
        let (command, files, cancel) = (&self.command, &self.files, &self.cancel);
        let job = Job { command, files, output: &NoOutput, cancel, grace, disk_reserve: 0 };
        let request = job.request(ExecutionSettings::default());
        run_command(&mut self.connection, request, &job).await
    }

    /// Received messages without the request.
    fn received(&self) -> Vec<ToSupervisor> {
        self.connection.received.lock().unwrap()[1..].to_vec()
    }
}

fn end(status: ExitStatus, out_of_memory: bool) -> FromSupervisor {
    FromSupervisor::Ended(End { status, cpu_ms: 12, max_rss_kib: 3, left_behind: 1, out_of_memory })
}

#[tokio::test(start_paused = true)]
async fn end_of_the_command_maps_to_status_and_usage() {
    for (status, out_of_memory, expected) in [
        (ExitStatus::Exited(3), false, ExecStatus::Exited(3)),
        (ExitStatus::Signalled(9), false, ExecStatus::Signalled(9)),
        (ExitStatus::Signalled(9), true, ExecStatus::OutOfMemory),
        // Another process of the container was killed.
        (ExitStatus::Exited(0), true, ExecStatus::Exited(0)),
    ] {
        let mut fixture = Fixture::new().await;
        fixture.supervisor_sends(FromSupervisor::Ready);
        fixture.supervisor_sends(FromSupervisor::Stdout(b"out".to_vec()));
        fixture.supervisor_sends(FromSupervisor::Stderr(b"err".to_vec()));
        fixture.supervisor_sends(end(status, out_of_memory));
        let result = fixture.run().await.unwrap();
        assert_eq!(result.status, expected);
        assert_eq!((result.stdout.text.as_str(), result.stderr.text.as_str()), ("out", "err"));
        let usage = Usage { cpu: Duration::from_millis(12), max_memory_bytes: 3072, left_behind: 1 };
        assert_eq!((result.usage, result.stdout.truncated), (usage, false));
        assert_eq!(fixture.received(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn refusals_map_to_error_codes_and_hide_details() {
    for (kind, code, field) in [
        (RefusalKind::ProgramNotFound, Code::FileNotFound, Some("command")),
        (RefusalKind::ProgramNotExecutable, Code::ToolFailed, Some("command")),
        (RefusalKind::DirectoryNotFound, Code::FileNotFound, Some("cwd")),
        (RefusalKind::ArgumentsTooLong, Code::TooLarge, Some("command")),
        (RefusalKind::NotConfined, Code::Unavailable, None),
        (RefusalKind::OutOfResources, Code::Unavailable, None),
        (RefusalKind::Other, Code::Unavailable, None),
    ] {
        let mut fixture = Fixture::new().await;
        fixture
            .supervisor_sends(FromSupervisor::Refused(Refusal { kind, detail: "/secret/path".to_owned() }));
        let error = fixture.run().await.unwrap_err();
        assert_eq!((error.code(), error.field()), (code, field));
        assert!(!error.message().contains("secret"));
    }
}

#[tokio::test(start_paused = true)]
async fn input_is_sent_in_chunks_and_closed() {
    let mut fixture = Fixture::new().await;
    fixture.command.stdin = Some(vec![b'x'; INPUT_CHUNK + 1]);
    fixture.supervisor_sends(end(ExitStatus::Exited(0), false));
    fixture.run().await.unwrap();
    let sizes: Vec<usize> = fixture
        .received()
        .iter()
        .map(|message| match message {
            ToSupervisor::Input(bytes) => bytes.len(),
            other => panic!("expected input, got {other:?}"),
        })
        .collect();
    assert_eq!(sizes, [INPUT_CHUNK, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn unresponsive_supervisor_is_stopped_then_killed_then_abandoned() {
    let mut fixture = Fixture::new().await;
    fixture.supervisor_sends(FromSupervisor::Stdout(b"some".to_vec()));
    let result = fixture.run().await.unwrap();
    assert_eq!(result.status, ExecStatus::TimedOut);
    assert_eq!(fixture.received(), [ToSupervisor::Stop, ToSupervisor::Kill]);
    assert_eq!((result.stdout.text.as_str(), result.stdout.truncated), ("some", true));
    assert!(result.duration >= fixture.command.timeout + RESPONSE_TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn supervisor_that_accepts_no_messages_is_abandoned() {
    let mut fixture = Fixture::new().await;
    fixture.connection.ignores_messages = true;
    assert_eq!(fixture.run().await.unwrap().status, ExecStatus::TimedOut);
    fixture.cancel.cancel();
    assert_eq!(fixture.run().await.unwrap().status, ExecStatus::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn lost_supervisor_is_an_error_unless_the_command_was_cancelled() {
    let Fixture { mut connection, files, cancel, command, supervisor, _workspace } = Fixture::new().await;
    drop(supervisor);
    let grace = Duration::ZERO;
    let job =
        Job { command: &command, files: &files, output: &NoOutput, cancel: &cancel, grace, disk_reserve: 0 };
    let request = job.request(ExecutionSettings::default());
    assert_eq!(
        run_command(&mut connection, request.clone(), &job).await.unwrap_err().code(),
        Code::Unavailable
    );
    cancel.cancel();
    assert_eq!(run_command(&mut connection, request, &job).await.unwrap().status, ExecStatus::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn maximum_timeout_does_not_overflow() {
    let mut fixture = Fixture::new().await;
    fixture.command.timeout = Duration::MAX;
    fixture.supervisor_sends(end(ExitStatus::Exited(0), false));
    assert_eq!(fixture.run().await.unwrap().status, ExecStatus::Exited(0));
}
