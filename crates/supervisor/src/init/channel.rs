//! One supervisor process and its pipes.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    process::{ChildStdin, ChildStdout, Command, Stdio},
};

use nix::{errno::Errno, unistd::read};
use remuda_supervisor::{Decoder, Frame, FromSupervisor, ToSupervisor};

use crate::{
    supervise::CONTAINED,
    write_buffer::{WriteBuffer, set_nonblocking},
};

/// A supervisor always reads its input, unless it was stopped. More than this is not buffered for a stopped
/// one.
const MAX_PENDING: usize = 16 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct Channel {
    supervisor: i32,
    input: ChildStdin,
    output: ChildStdout,
    pending: WriteBuffer,
    decoder: Decoder,
}

impl Channel {
    pub(super) fn open() -> io::Result<Self> {
        let mut child = Command::new("/proc/self/exe")
            .args(["supervise", CONTAINED])
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("no pipes"));
        };
        set_nonblocking(&input)?;
        Ok(Self {
            supervisor: i32::try_from(child.id()).map_err(io::Error::other)?,
            input,
            output,
            pending: WriteBuffer::default(),
            decoder: Decoder::default(),
        })
    }

    pub(super) fn supervisor(&self) -> i32 {
        self.supervisor
    }

    pub(super) fn send(&mut self, message: ToSupervisor) -> io::Result<()> {
        if self.pending.len() > MAX_PENDING {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Frame { channel: 0, message }.encode(self.pending.tail());
        self.flush();
        Ok(())
    }

    pub(super) fn flush(&mut self) {
        if self.pending.flush(&self.input).is_err() {
            // The supervisor is gone; the end of its output reports that.
            self.pending = WriteBuffer::default();
        }
    }

    /// The supervisor's stdin, if there are bytes to write.
    pub(super) fn pending_write(&self) -> Option<BorrowedFd<'_>> {
        (!self.pending.is_empty()).then(|| self.input.as_fd())
    }

    pub(super) fn output(&self) -> BorrowedFd<'_> {
        self.output.as_fd()
    }

    /// Reads once. Returns the decoded messages and whether the stream has ended.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> (Vec<FromSupervisor>, bool) {
        let mut over = match read(&self.output, buffer) {
            Ok(count) => {
                self.decoder.push(&buffer[..count]);
                count == 0
            }
            Err(Errno::EINTR | Errno::EAGAIN) => false,
            Err(_) => true,
        };
        let mut messages = Vec::new();
        loop {
            match self.decoder.next() {
                Ok(Some(Frame { message, .. })) => messages.push(message),
                Ok(None) => return (messages, over),
                Err(_) => {
                    over = true;
                    return (messages, over);
                }
            }
        }
    }
}
