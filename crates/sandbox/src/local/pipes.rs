//! Connection to a local supervisor over pipes.

use nix::sys::signal::Signal;
use remuda_domain::error::{Error, Result};
use remuda_supervisor::{Decoder, End, ExitStatus, Frame, FromSupervisor, ToSupervisor};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{ChildStdin, ChildStdout},
};

use super::process_group::ProcessGroup;
use crate::supervised_command::SupervisorConnection;

const CHUNK: usize = 32 * 1024;

#[derive(Debug)]
pub(super) struct SupervisorPipes {
    /// Declared first: on drop the supervisor is woken before its stdin closes.
    pub(super) group: ProcessGroup,
    input: ChildStdin,
    output: ChildStdout,
    decoder: Decoder,
    buffer: Vec<u8>,
    started: bool,
}

impl SupervisorPipes {
    pub(super) fn new(group: ProcessGroup, input: ChildStdin, output: ChildStdout) -> Self {
        Self { group, input, output, decoder: Decoder::default(), buffer: vec![0; CHUNK], started: false }
    }

    /// Ends the supervisor and waits until it has exited.
    pub(super) async fn close(self) {
        let Self { group, input, output, .. } = self;
        drop((input, output));
        group.end().await;
    }
}

impl SupervisorConnection for SupervisorPipes {
    async fn send(&mut self, message: ToSupervisor) -> Result<()> {
        match message {
            ToSupervisor::Start(_) => self.started = true,
            ToSupervisor::Stop | ToSupervisor::Kill => self.group.send_sigcont(),
            ToSupervisor::Input(_) | ToSupervisor::FeedWatchdog(_) => {}
        }
        let bytes = Frame { channel: 0, message }.to_bytes();
        self.input.write_all(&bytes).await.map_err(|error| gone().with_source(error))
    }

    async fn receive(&mut self) -> Result<FromSupervisor> {
        loop {
            match self.decoder.next() {
                Ok(Some(Frame { message, .. })) => return Ok(message),
                Ok(None) => {}
                Err(error) => return Err(gone().with_source(error)),
            }
            match self.output.read(&mut self.buffer).await {
                Ok(count @ 1..) => self.decoder.push(&self.buffer[..count]),
                // Only the command or the OOM killer kills a supervisor.
                Ok(0) if self.started => return Ok(FromSupervisor::Ended(killed())),
                Ok(_) => return Err(gone()),
                Err(error) => return Err(gone().with_source(error)),
            }
        }
    }
}

fn killed() -> End {
    End {
        status: ExitStatus::Signalled(Signal::SIGKILL as i32),
        cpu_ms: 0,
        max_rss_kib: 0,
        left_behind: 0,
        out_of_memory: false,
    }
}

fn gone() -> Error {
    Error::unavailable("the supervisor process has ended")
}
