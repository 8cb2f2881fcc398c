//! One stream of a command's output: seen, kept in part, and put into a file if it is long.

use std::io::Write;

use remuda_domain::error::Result;

use super::Job;
use crate::{
    capture::{Capture, Captured},
    command::Spill,
    files::{HostFiles, blocking},
    output::{OutputSink, OutputStream},
};

pub(super) struct Stream<'a> {
    stream: OutputStream,
    output: &'a dyn OutputSink,
    capture: Capture,
    overflow: Overflow<'a>,
}

/// What becomes of output beyond the limit.
enum Overflow<'a> {
    /// It is only counted.
    Counted,
    /// It would go into a file, but there is none so far.
    Possible {
        spill: &'a Spill,
        files: &'a HostFiles,
    },
    Spilled(Spilled),
}

struct Spilled {
    path: String,
    /// Missing once it is full, or could not be written.
    file: Option<std::fs::File>,
    left: u64,
}

impl<'a> Stream<'a> {
    pub(super) fn new(stream: OutputStream, job: &Job<'a>) -> Self {
        let overflow = match &job.command.spill {
            Some(spill) => Overflow::Possible { spill, files: job.files },
            None => Overflow::Counted,
        };
        Self { stream, output: job.output, capture: Capture::new(job.command.output_limit), overflow }
    }

    pub(super) async fn push(&mut self, chunk: &[u8]) {
        self.output.write(self.stream, chunk);
        self.spill(chunk).await;
        self.capture.push(chunk);
    }

    /// `complete` is false when the stream was given up before its end.
    pub(super) fn finish(self, complete: bool) -> Captured {
        let mut captured = self.capture.finish(complete);
        if let Overflow::Spilled(spilled) = self.overflow {
            captured.artifact = Some(spilled.path);
        }
        captured
    }

    async fn spill(&mut self, chunk: &[u8]) {
        match &mut self.overflow {
            Overflow::Counted => {}
            Overflow::Possible { .. } if self.capture.has_room_for(chunk) => {}
            Overflow::Possible { spill, files } => {
                let (spill, files) = (*spill, *files);
                match Spilled::begin(self.stream, spill, files).await {
                    Ok(mut spilled) => {
                        // Nothing was left out so far.
                        let mut all = self.capture.kept();
                        all.extend_from_slice(chunk);
                        spilled.write(all).await;
                        self.overflow = Overflow::Spilled(spilled);
                    }
                    Err(error) => {
                        tracing::warn!(error = %error.chain(), "a command's output cannot be kept in a file");
                        self.overflow = Overflow::Counted;
                    }
                }
            }
            Overflow::Spilled(spilled) => spilled.write(chunk.to_vec()).await,
        }
    }
}

impl Spilled {
    async fn begin(stream: OutputStream, spill: &Spill, files: &HostFiles) -> Result<Self> {
        let name = match stream {
            OutputStream::Stdout => "stdout",
            OutputStream::Stderr => "stderr",
        };
        let path = format!("{}/{name}", spill.directory.trim_end_matches('/'));
        let file = files.create_file(&path).await?;
        Ok(Self { path, file: Some(file), left: spill.max_bytes })
    }

    async fn write(&mut self, mut bytes: Vec<u8>) {
        bytes.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= bytes.len() as u64;
        let Some(mut file) = self.file.take().filter(|_| !bytes.is_empty()) else { return };
        // A disk may be slow, or full.
        let written = blocking(move || Ok(file.write_all(&bytes).map(|()| file))).await;
        match written {
            Ok(Ok(file)) => self.file = Some(file),
            Ok(Err(error)) => tracing::warn!(%error, "a command's output cannot be written to its file"),
            Err(error) => tracing::warn!(error = %error.chain(), "a command's output is lost"),
        }
    }
}
