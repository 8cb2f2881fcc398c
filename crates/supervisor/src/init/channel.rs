//! One supervisor and the pipes to it.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    process::{ChildStdin, ChildStdout, Command, Stdio},
};

use nix::{errno::Errno, unistd::read};
use remuda_supervisor::{Decoder, Frame, FromSupervisor, ToSupervisor};

use crate::{
    outbox::{Outbox, set_nonblocking},
    supervise::CONTAINED,
};

/// A supervisor reads whatever it is sent, unless it is stopped. One that is need not be sent more.
const MAX_UNWRITTEN: usize = 16 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct Channel {
    supervisor: i32,
    input: ChildStdin,
    output: ChildStdout,
    unwritten: Outbox,
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
            unwritten: Outbox::default(),
            decoder: Decoder::default(),
        })
    }

    pub(super) fn supervisor(&self) -> i32 {
        self.supervisor
    }

    pub(super) fn send(&mut self, message: ToSupervisor) -> io::Result<()> {
        if self.unwritten.len() > MAX_UNWRITTEN {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Frame { channel: 0, message }.encode(self.unwritten.tail());
        self.flush();
        Ok(())
    }

    pub(super) fn flush(&mut self) {
        if self.unwritten.flush(&self.input).is_err() {
            // It is gone, which the end of its output says.
            self.unwritten = Outbox::default();
        }
    }

    /// The pipe to the supervisor, if there is something for it.
    pub(super) fn wants_to_write(&self) -> Option<BorrowedFd<'_>> {
        (!self.unwritten.is_empty()).then(|| self.input.as_fd())
    }

    pub(super) fn output(&self) -> BorrowedFd<'_> {
        self.output.as_fd()
    }

    /// Reads once what the supervisor says, and whether that was the last.
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
