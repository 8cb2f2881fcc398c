//! Client of the file copier in an instance.

use std::{collections::VecDeque, fs::File, io::Read};

use nix::errno::Errno;
use remuda_domain::error::{Code, Error, Result};
use remuda_supervisor::{
    Decoder, Entry, Frame, FromCopier, FromSupervisor, Limits, Program, Request, ToCopier, ToSupervisor,
};

use super::WINDOW;
use crate::{
    files::blocking,
    path::display_safe,
    remote::connection::{Channel, InstanceConnection},
    supervised_command::SupervisorConnection,
};

const CHUNK: usize = 64 * 1024;
/// The most entries that are accepted from an instance.
const MAX_ENTRIES: usize = 200_000;

/// Connection to the file copier of one instance. Dropping it ends the copier.
#[derive(Debug)]
pub(super) struct CopierClient {
    channel: Channel,
    /// What users call an instance.
    noun: &'static str,
    decoder: Decoder,
    received: VecDeque<FromCopier>,
    /// Entries received while a large file was sent.
    early_entries: Vec<Entry>,
}

impl CopierClient {
    /// Starts the copier of a workspace, given by its path in the instance.
    pub(super) async fn start(connection: &InstanceConnection, workspace: &str) -> Result<Self> {
        let mut channel = connection.open().await?;
        let argv = [connection.supervisor(), "porter", workspace].map(str::to_owned).to_vec();
        let request = Request {
            program: Program::Argv(argv),
            cwd: None,
            env: Vec::new(),
            has_input: true,
            limits: Limits::default(),
            user: None,
            file_capabilities: false,
            confinement: None,
            grace_ms: 0,
        };
        channel.send(ToSupervisor::Start(Box::new(request))).await?;
        Ok(Self {
            channel,
            noun: connection.noun(),
            decoder: Decoder::default(),
            received: VecDeque::new(),
            early_entries: Vec::new(),
        })
    }

    /// Whether no end was received. A command may have killed it anyway.
    pub(super) fn alive(&self) -> bool {
        !self.channel.has_ended() && self.channel.is_quiet()
    }

    /// Whether its end was received.
    pub(super) fn was_killed(&self) -> bool {
        self.channel.has_ended()
    }

    pub(super) async fn send(&mut self, message: ToCopier) -> Result<()> {
        let bytes = Frame { channel: 0, message }.to_bytes();
        self.channel.send(ToSupervisor::Input(bytes)).await
    }

    /// Sends a file. Returns the number of bytes.
    pub(super) async fn put_file(&mut self, entry: &Entry, file: File) -> Result<u64> {
        self.send(ToCopier::Put(entry.clone())).await?;
        let (mut file, mut sent, mut unacknowledged) = (file.take(entry.size), 0, 0);
        loop {
            let mut buffer = vec![0; CHUNK];
            let (back, bytes) = blocking(move || {
                let count = file.read(&mut buffer).map_err(|error| {
                    Error::new(Code::ToolFailed, "a file of the workspace cannot be read").with_source(error)
                })?;
                buffer.truncate(count);
                Ok((file, buffer))
            })
            .await?;
            file = back;
            let last = bytes.is_empty();
            sent += bytes.len() as u64;
            self.send(ToCopier::Contents(bytes)).await?;
            if last {
                return Ok(sent);
            }
            unacknowledged += CHUNK;
            if unacknowledged as u64 >= WINDOW {
                // No buffer on the way holds more.
                unacknowledged = 0;
                self.send(ToCopier::Done).await?;
                self.early_entries = self.entries().await?;
            }
        }
    }

    /// Receives entries until all requests so far are answered.
    pub(super) async fn entries(&mut self) -> Result<Vec<Entry>> {
        let mut entries = std::mem::take(&mut self.early_entries);
        loop {
            match self.receive().await? {
                FromCopier::Entry(entry) => entries.push(entry),
                FromCopier::Failed { path, errno } => return Err(self.failed(&path, errno)),
                FromCopier::Done => return Ok(entries),
                FromCopier::Contents(_) => return Err(self.protocol_error()),
            }
            if entries.len() > MAX_ENTRIES {
                let message = format!("there are too many files in the {}", self.noun);
                return Err(Error::new(Code::TooLarge, message).at("workspace"));
            }
        }
    }

    /// Receives the entry of the next file; `None` if it is gone.
    pub(super) async fn file(&mut self, path: &[u8]) -> Result<Option<Entry>> {
        match self.receive().await? {
            FromCopier::Entry(entry) if entry.path == path => Ok(Some(entry)),
            FromCopier::Failed { path: of, .. } if of == path => Ok(None),
            _ => Err(self.protocol_error()),
        }
    }

    pub(super) async fn contents(&mut self) -> Result<Option<Vec<u8>>> {
        match self.receive().await? {
            FromCopier::Contents(bytes) => Ok((!bytes.is_empty()).then_some(bytes)),
            _ => Err(self.protocol_error()),
        }
    }

    pub(super) async fn expect_done(&mut self) -> Result<()> {
        match self.receive().await? {
            FromCopier::Done => Ok(()),
            _ => Err(self.protocol_error()),
        }
    }

    async fn receive(&mut self) -> Result<FromCopier> {
        loop {
            if let Some(message) = self.received.pop_front() {
                return Ok(message);
            }
            match self.channel.receive().await? {
                FromSupervisor::Stdout(bytes) => self.decoder.push(&bytes),
                FromSupervisor::Stderr(_) | FromSupervisor::Ready => {}
                FromSupervisor::Ended(_) | FromSupervisor::Refused(_) => {
                    let message = format!("the file copier in the {} was killed", self.noun);
                    return Err(Error::unavailable(message));
                }
            }
            while let Some(frame) = self.decoder.next::<FromCopier>().map_err(|_| self.protocol_error())? {
                self.received.push_back(frame.message);
            }
        }
    }

    fn failed(&self, path: &[u8], errno: i32) -> Error {
        let (path, errno) = (display_safe(&String::from_utf8_lossy(path)), Errno::from_raw(errno));
        match errno {
            Errno::ENOSPC | Errno::E2BIG => {
                Error::new(Code::TooLarge, format!("{path} does not fit into the {}", self.noun))
                    .at("workspace")
            }
            _ => Error::new(Code::ToolFailed, format!("{path} cannot be copied")).with_source(errno),
        }
    }

    pub(super) fn protocol_error(&self) -> Error {
        Error::unavailable(format!("the file copier in the {} violated its protocol", self.noun))
    }
}
