//! Protocol between a worker and the supervisor processes that run its commands.
//!
//! A command is a child of a *supervisor*, not of the worker. The supervisor is a small static program. It
//! adopts every process the command leaves behind (including processes that left the command's process
//! group), kills them when the command ends, applies resource limits, and kills everything when the worker is
//! gone or stops feeding the watchdog. The same program runs as PID 1 of a container, where it starts one
//! supervisor per command.
//!
//! This library defines the wire format: [`Frame`]s of [`ToSupervisor`] in one direction and
//! [`FromSupervisor`] in the other, over any byte stream (pipes, the attached streams of a container). It
//! does no I/O.

mod copier_message;
mod frame;
mod message;

pub use copier_message::{
    Entry, EntryKind, FromCopier, TEMP_FILE_PREFIX, TEMP_FILE_SUFFIX, ToCopier, is_inner_link, is_plain_path,
};
pub use frame::{Decoder, Frame, HEADER_BYTES, MAX_PAYLOAD_BYTES, Malformed, Message};
pub use message::{
    Confinement, End, ExitStatus, FromSupervisor, Limits, Program, Refusal, RefusalKind, Request,
    ToSupervisor, User,
};
