//! Write buffer for a non-blocking pipe whose reader may be slow or gone.

use std::{io, os::fd::AsFd};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    unistd::write,
};

/// Bytes waiting to be written. The buffer is unbounded: callers check [`len`](Self::len) before they append.
#[derive(Debug, Default)]
pub(crate) struct WriteBuffer {
    bytes: Vec<u8>,
    /// Offset of the first unwritten byte.
    at: usize,
}

impl WriteBuffer {
    /// The buffer to append to.
    pub(crate) fn tail(&mut self) -> &mut Vec<u8> {
        if self.at == self.bytes.len() {
            self.bytes.clear();
            self.at = 0;
        } else if self.at > self.bytes.len() / 2 {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
        &mut self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes as much as the pipe accepts without blocking.
    pub(crate) fn flush(&mut self, pipe: impl AsFd) -> nix::Result<()> {
        while !self.is_empty() {
            match write(pipe.as_fd(), &self.bytes[self.at..]) {
                Ok(count) => self.at += count,
                Err(Errno::EAGAIN) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// Puts a pipe into non-blocking mode.
pub(crate) fn set_nonblocking(pipe: impl AsFd) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(pipe.as_fd(), FcntlArg::F_GETFL)?);
    fcntl(pipe.as_fd(), FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn flush_to_a_full_pipe_neither_blocks_nor_loses_bytes() {
        let (mut reader, writer) = io::pipe().unwrap();
        set_nonblocking(&writer).unwrap();
        let all: Vec<u8> = (0..300_000_u32).map(|number| number.to_be_bytes()[3]).collect();
        let mut write_buffer = WriteBuffer::default();
        let mut read = Vec::new();
        for part in all.chunks(70_000) {
            write_buffer.tail().extend_from_slice(part);
            write_buffer.flush(&writer).unwrap();
            assert!(!write_buffer.is_empty());
            let mut buffer = [0; 50_000];
            reader.read_exact(&mut buffer).unwrap();
            read.extend_from_slice(&buffer);
        }
        while !write_buffer.is_empty() {
            write_buffer.flush(&writer).unwrap();
            let mut buffer = [0; 4096];
            let count = reader.read(&mut buffer).unwrap();
            read.extend_from_slice(&buffer[..count]);
        }
        drop(writer);
        reader.read_to_end(&mut read).unwrap();
        assert!(read == all);
    }
}
