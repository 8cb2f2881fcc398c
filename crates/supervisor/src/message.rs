//! Messages between a worker and a supervisor.

use std::time::Duration;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::frame::{Malformed, Message};

/// From the worker. The end of the stream has the same effect as [`Kill`](Self::Kill).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToSupervisor {
    /// Starts a command. Must be the first message on its channel.
    Start(Box<Request>),
    /// A chunk of the command's stdin; an empty chunk closes it.
    Input(Vec<u8>),
    /// Feeds the watchdog: if no other such message arrives within this time, everything is killed.
    FeedWatchdog(Duration),
    /// Sends SIGTERM to the command, and kills it after the request's grace period.
    Stop,
    Kill,
}

/// From the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromSupervisor {
    /// The process leads its own session and waits for [`ToSupervisor::Start`]. Sent once per process.
    Ready,
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    /// The command never ran. Last message on this channel.
    Refused(Refusal),
    /// The command and every process it started have ended. Last message on this channel.
    Ended(End),
}

/// A command, its environment and its limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub program: Program,
    /// Working directory; defaults to the supervisor's own.
    pub cwd: Option<String>,
    /// The complete environment of the command; nothing is inherited.
    pub env: Vec<(String, String)>,
    /// Whether [`ToSupervisor::Input`] follows. Otherwise stdin is `/dev/null`.
    pub has_input: bool,
    pub limits: Limits,
    /// Defaults to the supervisor's own.
    pub user: Option<User>,
    /// Lets root's command change files of all users. It has no other capability in any case.
    pub file_capabilities: bool,
    pub confinement: Option<Confinement>,
    /// Time between SIGTERM and SIGKILL.
    pub grace_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Program {
    /// A script for the given shell, or for the first of `bash` and `sh` that exists.
    Shell { shell: Option<String>, script: String },
    /// A program (looked up in the environment's `PATH`) and its arguments.
    Argv(Vec<String>),
}

/// Limits for each process of the command (`setrlimit`). Core files are always disabled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Address space.
    pub memory_bytes: Option<u64>,
    pub file_bytes: Option<u64>,
    pub open_files: Option<u64>,
    /// Counted per user, not per command; root is not limited.
    pub processes: Option<u64>,
}

/// Another user and group for the command. Only root can switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

/// Rules for the command. If the kernel cannot enforce them, the command is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Confinement {
    /// Processes other than its own can be neither signalled nor traced (Landlock, Linux 6.12).
    Processes,
    /// For a command whose namespaces hide files and processes already: no system calls that attack the kernel
    /// (seccomp), and none of the host's abstract sockets if the network is the host's.
    Namespaced { host_network: bool },
    /// Landlock and seccomp for files, network and system calls, and for other processes where the kernel can.
    Files {
        /// Files, and directories beneath which everything is readable. Missing ones are skipped.
        readable: Vec<String>,
        /// Directories beneath which the command may read and write.
        writable: Vec<String>,
        network: bool,
    },
}

/// Exit status and resource usage of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub status: ExitStatus,
    /// User and system time of the command and of the children it waited for.
    pub cpu_ms: u64,
    pub max_rss_kib: u64,
    /// Number of processes that outlived the command and were killed.
    pub left_behind: u32,
    /// While the command ran, the kernel's OOM killer killed a process of the container.
    pub out_of_memory: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitStatus {
    Exited(i32),
    Signalled(i32),
}

/// Why a command never ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub kind: RefusalKind,
    /// For logs only: may contain paths of the host.
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusalKind {
    ProgramNotFound,
    ProgramNotExecutable,
    DirectoryNotFound,
    ArgumentsTooLong,
    /// The confinement cannot be enforced here.
    NotConfined,
    /// Too many processes or too little memory.
    OutOfResources,
    Other,
}

impl Message for ToSupervisor {
    fn kind(&self) -> u8 {
        match self {
            Self::Start(_) => b's',
            Self::Input(_) => b'i',
            Self::FeedWatchdog(_) => b'f',
            Self::Stop => b't',
            Self::Kill => b'k',
        }
    }

    fn write(&self, payload: &mut Vec<u8>) {
        match self {
            Self::Start(request) => write_json(request, payload),
            Self::Input(bytes) => payload.extend_from_slice(bytes),
            Self::FeedWatchdog(time) => {
                let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                payload.extend_from_slice(&millis.to_be_bytes());
            }
            Self::Stop | Self::Kill => {}
        }
    }

    fn read(kind: u8, payload: &[u8]) -> Result<Self, Malformed> {
        match kind {
            b's' => read_json(payload).map(Box::new).map(Self::Start),
            b'i' => Ok(Self::Input(payload.to_vec())),
            b'f' => {
                let millis = payload.try_into().map(u64::from_be_bytes).map_err(|_| Malformed)?;
                Ok(Self::FeedWatchdog(Duration::from_millis(millis)))
            }
            b't' => Ok(Self::Stop),
            b'k' => Ok(Self::Kill),
            _ => Err(Malformed),
        }
    }
}

impl Message for FromSupervisor {
    fn kind(&self) -> u8 {
        match self {
            Self::Ready => b'r',
            Self::Stdout(_) => b'o',
            Self::Stderr(_) => b'e',
            Self::Refused(_) => b'x',
            Self::Ended(_) => b'z',
        }
    }

    fn write(&self, payload: &mut Vec<u8>) {
        match self {
            Self::Ready => {}
            Self::Stdout(bytes) | Self::Stderr(bytes) => payload.extend_from_slice(bytes),
            Self::Refused(refusal) => write_json(refusal, payload),
            Self::Ended(end) => write_json(end, payload),
        }
    }

    fn read(kind: u8, payload: &[u8]) -> Result<Self, Malformed> {
        match kind {
            b'r' => Ok(Self::Ready),
            b'o' => Ok(Self::Stdout(payload.to_vec())),
            b'e' => Ok(Self::Stderr(payload.to_vec())),
            b'x' => read_json(payload).map(Self::Refused),
            b'z' => read_json(payload).map(Self::Ended),
            _ => Err(Malformed),
        }
    }
}

fn write_json(value: &impl Serialize, payload: &mut Vec<u8>) {
    // Plain data with string keys always serializes, and writing to a vector cannot fail.
    let _infallible = serde_json::to_writer(payload, value);
}

fn read_json<T: DeserializeOwned>(payload: &[u8]) -> Result<T, Malformed> {
    serde_json::from_slice(payload).map_err(|_| Malformed)
}
