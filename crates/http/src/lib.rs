//! Shared parts of all HTTP servers: listening and stopping, error bodies, and parsing of input.
//!
//! One port serves gRPC and HTTP; [`serve`] tells them apart. Handlers return [`ApiError`], and [`edge`] renders it
//! with the id by which the request is found in the log.

mod caller;
mod cors;
mod docs_page;
mod error;
mod etag;
mod extract;
mod request_layer;
mod serve;
mod write_timeout;

pub use remuda_grpc::RequestId;

pub use self::{
    caller::{Caller, MayApprove, MayRead, MayWrite, OperatorCaller},
    cors::cors,
    docs_page::docs,
    error::{ApiError, BodyErrors, CommonErrors, ErrorBody, ErrorDetails, ErrorInfo, Outcome, error_body},
    etag::{IfMatch, etag},
    extract::{Input, MaybeInput, Params, Segment, wait_time},
    request_layer::{Deadline, Timed, edge},
    serve::{ServeOptions, bind, serve},
};
