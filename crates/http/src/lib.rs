//! What every HTTP server of ours shares: how it listens and stops, what errors look like, how input is read.
//!
//! One port speaks gRPC and HTTP; [`serve`] tells them apart. Handlers give [`Refused`] for what they refuse, and
//! [`edge`] words it, with the id by which the request is found in the log.

mod caller;
mod cors;
mod docs;
mod edge;
mod etag;
mod extract;
mod refusal;
mod serve;
mod stall;

pub use remuda_grpc::RequestId;

pub use self::{
    caller::{Caller, MayApprove, MayOperate, MayRead, MayWrite},
    cors::cors,
    docs::docs,
    edge::{Deadline, Timed, edge},
    etag::{IfMatch, etag},
    extract::{Input, MaybeInput, Params, Segment, wait_time},
    refusal::{ErrorBody, ErrorDetails, ErrorInfo, Outcome, Refusals, Refused, Unreadable, error_body},
    serve::{ServeOptions, bind, serve},
};
