//! One output stream of a command: forwarded live, captured in part, and spilled to a file if it is long.

use std::io::Write;

use remuda_domain::error::Result;

use super::Job;
use crate::{
    command::Spill,
    files::{HostFiles, blocking},
    output_capture::{CapturedOutput, OutputCapture},
    output_sink::{OutputSink, OutputStream},
};

pub(super) struct StreamCapture<'a> {
    stream: OutputStream,
    output: &'a dyn OutputSink,
    capture: OutputCapture,
    overflow: Overflow<'a>,
}

/// Handling of output beyond the limit.
enum Overflow<'a> {
    /// Only counted.
    Counted,
    /// Spilled to a file that does not exist yet.
    NotStarted {
        spill: &'a Spill,
        files: &'a HostFiles,
    },
    SpillFile(SpillFile),
}

struct SpillFile {
    path: String,
    /// `None` once the file is full or a write failed.
    file: Option<std::fs::File>,
    remaining_bytes: u64,
}

impl<'a> StreamCapture<'a> {
    pub(super) fn new(stream: OutputStream, job: &Job<'a>) -> Self {
        let overflow = match &job.command.spill {
            Some(spill) => Overflow::NotStarted { spill, files: job.files },
            None => Overflow::Counted,
        };
        Self { stream, output: job.output, capture: OutputCapture::new(job.command.output_limit), overflow }
    }

    pub(super) async fn push(&mut self, chunk: &[u8]) {
        self.output.write(self.stream, chunk);
        self.spill(chunk).await;
        self.capture.push(chunk);
    }

    /// `complete` is false if the stream was abandoned before its end.
    pub(super) fn finish(self, complete: bool) -> CapturedOutput {
        let mut captured = self.capture.finish(complete);
        if let Overflow::SpillFile(spill_file) = self.overflow {
            captured.artifact = Some(spill_file.path);
        }
        captured
    }

    async fn spill(&mut self, chunk: &[u8]) {
        match &mut self.overflow {
            Overflow::Counted => {}
            Overflow::NotStarted { .. } if self.capture.fits(chunk) => {}
            Overflow::NotStarted { spill, files } => {
                let (spill, files) = (*spill, *files);
                match SpillFile::begin(self.stream, spill, files).await {
                    Ok(mut spill_file) => {
                        // So far nothing was omitted, so the capture holds everything.
                        let mut all = self.capture.bytes_so_far();
                        all.extend_from_slice(chunk);
                        spill_file.write(all).await;
                        self.overflow = Overflow::SpillFile(spill_file);
                    }
                    Err(error) => {
                        tracing::warn!(error = %error.chain(), "cannot create the spill file of a command's output");
                        self.overflow = Overflow::Counted;
                    }
                }
            }
            Overflow::SpillFile(spill_file) => spill_file.write(chunk.to_vec()).await,
        }
    }
}

impl SpillFile {
    async fn begin(stream: OutputStream, spill: &Spill, files: &HostFiles) -> Result<Self> {
        let name = match stream {
            OutputStream::Stdout => "stdout",
            OutputStream::Stderr => "stderr",
        };
        let path = format!("{}/{name}", spill.directory.trim_end_matches('/'));
        let file = files.create_file(&path).await?;
        Ok(Self { path, file: Some(file), remaining_bytes: spill.max_bytes })
    }

    async fn write(&mut self, mut bytes: Vec<u8>) {
        bytes.truncate(usize::try_from(self.remaining_bytes).unwrap_or(usize::MAX));
        self.remaining_bytes -= bytes.len() as u64;
        let Some(mut file) = self.file.take().filter(|_| !bytes.is_empty()) else { return };
        // The disk may be slow or full.
        let written = blocking(move || Ok(file.write_all(&bytes).map(|()| file))).await;
        match written {
            Ok(Ok(file)) => self.file = Some(file),
            Ok(Err(error)) => tracing::warn!(%error, "cannot write a command's output to its spill file"),
            Err(error) => tracing::warn!(error = %error.chain(), "spilled output of a command was lost"),
        }
    }
}
