//! How a worker talks to the processes that run its commands.
//!
//! A command is not a child of the worker but of a *supervisor*: a small static program between the two. It adopts
//! whatever the command leaves behind (also what left its process group), kills it when the command ends, limits what
//! the command may use, and kills everything when the worker is gone or has not been heard of for too long. The same
//! program is the first process of a container, where it starts one supervisor per command.
//!
//! This library is the wire between them: [`Frame`]s of [`ToSupervisor`] one way and [`FromSupervisor`] the other, over
//! whatever byte stream there is (pipes, the attached streams of a container). It does no I/O.

mod frame;
mod message;
mod porter_wire;

pub use frame::{Decoder, Frame, HEADER_BYTES, MAX_PAYLOAD_BYTES, Malformed, Message};
pub use message::{
    Confinement, End, ExitStatus, FromSupervisor, Limits, Program, Refusal, RefusalKind, Request,
    ToSupervisor,
};
pub use porter_wire::{
    Entry, EntryKind, FromPorter, ToPorter, UNFINISHED_PREFIX, UNFINISHED_SUFFIX, is_inner_link,
    is_plain_path,
};
