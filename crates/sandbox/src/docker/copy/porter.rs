//! Speaking with the porter.

use std::{collections::VecDeque, fs::File, io::Read};

use nix::errno::Errno;
use remuda_domain::error::{Code, Error, Result};
use remuda_supervisor::{
    Decoder, Entry, Frame, FromPorter, FromSupervisor, Limits, Program, Request, ToPorter, ToSupervisor,
};

use super::WINDOW;
use crate::{
    docker::{
        create::{SUPERVISOR, WORKSPACE},
        link::{Channel, Link},
    },
    files::blocking,
    path::shown,
    supervised::Wire,
};

const CHUNK: usize = 64 * 1024;
/// More entries are not taken from a container.
const MAX_ENTRIES: usize = 200_000;

/// The porter of one container. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Porter {
    channel: Channel,
    decoder: Decoder,
    heard: VecDeque<FromPorter>,
    /// Answers that came while a large file was sent.
    early: Vec<Entry>,
}

impl Porter {
    pub(super) async fn start(link: &Link) -> Result<Self> {
        let mut channel = link.open().await?;
        let argv = [SUPERVISOR, "porter", WORKSPACE].map(str::to_owned).to_vec();
        let request = Request {
            program: Program::Argv(argv),
            cwd: None,
            env: Vec::new(),
            has_input: true,
            limits: Limits::default(),
            confinement: None,
            grace_ms: 0,
        };
        channel.send(ToSupervisor::Start(Box::new(request))).await?;
        Ok(Self { channel, decoder: Decoder::default(), heard: VecDeque::new(), early: Vec::new() })
    }

    /// Whether it was not heard to have ended. A command may have killed it all the same.
    pub(super) fn alive(&self) -> bool {
        !self.channel.has_ended() && self.channel.is_quiet()
    }

    /// Whether it was heard to have ended.
    pub(super) fn was_killed(&self) -> bool {
        self.channel.has_ended()
    }

    pub(super) async fn send(&mut self, message: ToPorter) -> Result<()> {
        let bytes = Frame { channel: 0, message }.to_bytes();
        self.channel.send(ToSupervisor::Input(bytes)).await
    }

    /// Sends a file. Says how much that was.
    pub(super) async fn put_file(&mut self, entry: &Entry, file: File) -> Result<u64> {
        self.send(ToPorter::Put(entry.clone())).await?;
        let (mut file, mut sent, mut unanswered) = (file.take(entry.size), 0, 0);
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
            self.send(ToPorter::Contents(bytes)).await?;
            if last {
                return Ok(sent);
            }
            unanswered += CHUNK;
            if unanswered as u64 >= WINDOW {
                // Nothing on the way holds more than that.
                unanswered = 0;
                self.send(ToPorter::Done).await?;
                self.early = self.entries().await?;
            }
        }
    }

    /// The entries that come until everything asked for was answered.
    pub(super) async fn entries(&mut self) -> Result<Vec<Entry>> {
        let mut entries = std::mem::take(&mut self.early);
        loop {
            match self.hear().await? {
                FromPorter::Entry(entry) => entries.push(entry),
                FromPorter::Failed { path, errno } => return Err(failed(&path, errno)),
                FromPorter::Done => return Ok(entries),
                FromPorter::Contents(_) => return Err(confused()),
            }
            if entries.len() > MAX_ENTRIES {
                return Err(
                    Error::new(Code::TooLarge, "there are too many files in the container").at("workspace")
                );
            }
        }
    }

    /// The file that comes next, unless it is gone.
    pub(super) async fn file(&mut self, path: &[u8]) -> Result<Option<Entry>> {
        match self.hear().await? {
            FromPorter::Entry(entry) if entry.path == path => Ok(Some(entry)),
            FromPorter::Failed { path: of, .. } if of == path => Ok(None),
            _ => Err(confused()),
        }
    }

    pub(super) async fn contents(&mut self) -> Result<Option<Vec<u8>>> {
        match self.hear().await? {
            FromPorter::Contents(bytes) => Ok((!bytes.is_empty()).then_some(bytes)),
            _ => Err(confused()),
        }
    }

    pub(super) async fn done(&mut self) -> Result<()> {
        match self.hear().await? {
            FromPorter::Done => Ok(()),
            _ => Err(confused()),
        }
    }

    async fn hear(&mut self) -> Result<FromPorter> {
        loop {
            if let Some(message) = self.heard.pop_front() {
                return Ok(message);
            }
            match self.channel.receive().await? {
                FromSupervisor::Stdout(bytes) => self.decoder.push(&bytes),
                FromSupervisor::Stderr(_) | FromSupervisor::Ready => {}
                FromSupervisor::Ended(_) | FromSupervisor::Refused(_) => {
                    return Err(Error::unavailable("what copies the workspace was killed in its container"));
                }
            }
            while let Some(frame) = self.decoder.next::<FromPorter>().map_err(|_| confused())? {
                self.heard.push_back(frame.message);
            }
        }
    }
}

fn failed(path: &[u8], errno: i32) -> Error {
    let (path, errno) = (shown(&String::from_utf8_lossy(path)), Errno::from_raw(errno));
    match errno {
        Errno::ENOSPC | Errno::E2BIG => {
            Error::new(Code::TooLarge, format!("{path} does not fit into the container")).at("workspace")
        }
        _ => Error::new(Code::ToolFailed, format!("{path} cannot be copied")).with_source(errno),
    }
}

pub(super) fn confused() -> Error {
    Error::unavailable("what copies the workspace in its container does not make sense")
}
