//! Distinguishes errors sent by a server from failed connections.

use std::error::Error as StdError;

use remuda_domain::{Code, Error};
use remuda_proto::status::from_status;
use tonic::{ConnectError, Status, TimeoutExpired};

/// The error behind a status, and whether the server itself sent it.
pub(crate) struct Failure {
    pub error: Error,
    pub responded: bool,
}

/// Converts the status of a call to `endpoint`.
pub(crate) fn failure(endpoint: &str, status: Status) -> Failure {
    // Statuses received over the wire have no source; those created by the library for a failed connection do.
    if status.source().is_none() {
        return Failure { error: from_status(&status), responded: true };
    }
    let error = if in_chain::<ConnectError>(&status) {
        Error::unavailable(format!("cannot reach the server at {endpoint}"))
    } else if in_chain::<TimeoutExpired>(&status) {
        Error::new(Code::DeadlineExceeded, format!("the server at {endpoint} did not respond in time"))
    } else {
        Error::unavailable(format!("lost the connection to the server at {endpoint}"))
    };
    Failure { error: error.with_source(status), responded: false }
}

fn in_chain<T: StdError + 'static>(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<T>() {
            return true;
        }
        cause = error.source();
    }
    false
}
