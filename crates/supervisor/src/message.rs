//! What is said.

use std::time::Duration;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::frame::{Malformed, Message};

/// From the worker. The end of the stream means the same as [`Kill`](Self::Kill).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToSupervisor {
    /// Runs a command; the first message on its channel.
    Start(Box<Request>),
    /// More of the command's input; empty means its end.
    Input(Vec<u8>),
    /// Promises another one within this time. If none comes, everything is killed.
    Feed(Duration),
    /// Asks the command to end, and kills it after the request's grace.
    Stop,
    Kill,
}

/// From the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromSupervisor {
    /// It leads a session of its own and waits for [`ToSupervisor::Start`]. Not repeated for further commands.
    Ready,
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    /// The command never ran; nothing more comes on this channel.
    Refused(Refusal),
    /// The command is over and so is everything it started; nothing more comes on this channel.
    Ended(End),
}

/// A command and its conditions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub program: Program,
    /// Where to run; the supervisor's own directory if missing.
    pub cwd: Option<String>,
    /// The whole environment of the command.
    pub env: Vec<(String, String)>,
    /// Whether [`ToSupervisor::Input`] follows. Without, the command reads nothing.
    pub has_input: bool,
    pub limits: Limits,
    pub confinement: Option<Confinement>,
    /// Between asking to end and killing.
    pub grace_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Program {
    /// A script, for the named shell, or for `bash` or `sh`, whichever is found first.
    Shell { shell: Option<String>, script: String },
    /// A program, looked up in the environment's `PATH`, and its arguments.
    Argv(Vec<String>),
}

/// What each process of the command may use (`setrlimit`). A core file is never written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Address space.
    pub memory_bytes: Option<u64>,
    pub file_bytes: Option<u64>,
    pub open_files: Option<u64>,
    /// Of the user, not of the command alone; root is not limited.
    pub processes: Option<u64>,
}

/// What the command may touch, enforced by Landlock and seccomp. A kernel that cannot refuses the command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// Directories beneath which it may write. Everything else that the user may read can be read.
    pub writable: Vec<String>,
    pub network: bool,
}

/// How a command ended and what it used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub status: ExitStatus,
    /// User and system time of the command and of everything it waited for.
    pub cpu_ms: u64,
    pub max_rss_kib: u64,
    /// Processes that it left behind and that were killed.
    pub left_behind: u32,
    /// The kernel killed a process of the container for want of memory meanwhile.
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
    /// For the log: may name paths of the machine.
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
    /// Too many processes, too little memory.
    OutOfResources,
    Other,
}

impl Message for ToSupervisor {
    fn kind(&self) -> u8 {
        match self {
            Self::Start(_) => b's',
            Self::Input(_) => b'i',
            Self::Feed(_) => b'f',
            Self::Stop => b't',
            Self::Kill => b'k',
        }
    }

    fn write(&self, payload: &mut Vec<u8>) {
        match self {
            Self::Start(request) => write_json(request, payload),
            Self::Input(bytes) => payload.extend_from_slice(bytes),
            Self::Feed(time) => {
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
                Ok(Self::Feed(Duration::from_millis(millis)))
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
    // Plain data with string keys always has a JSON form, and a vector takes everything.
    let _infallible = serde_json::to_writer(payload, value);
}

fn read_json<T: DeserializeOwned>(payload: &[u8]) -> Result<T, Malformed> {
    serde_json::from_slice(payload).map_err(|_| Malformed)
}
