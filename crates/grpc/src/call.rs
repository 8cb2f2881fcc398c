//! One call: identity, scope, deadline, and errors that say no more than they should.

use std::{future::Future, time::Duration};

use remuda_domain::{
    Code, Error,
    error::Result,
    identity::{Principal, Scope},
};
use remuda_proto::status::to_status;
use tonic::{Request, Response, Status, codegen::http::HeaderMap};

use crate::{auth::Authenticator, context::note_caller, standing::Standing};

/// What every handler goes through.
#[derive(Clone, Debug)]
pub struct Gate {
    auth: Authenticator,
    deadline: Duration,
}

impl Gate {
    #[must_use]
    pub fn new(auth: Authenticator, deadline: Duration) -> Self {
        Self { auth, deadline }
    }

    /// Answers a request: the caller must have `scope`, and `handle` must be done within the server's deadline.
    pub async fn answer<Req, Resp, Handle, Answer>(
        &self,
        request: Request<Req>,
        scope: Scope,
        handle: Handle,
    ) -> Result<Response<Resp>, Status>
    where
        Handle: FnOnce(Principal, Req) -> Answer,
        Answer: Future<Output = Result<Resp>>,
    {
        self.answer_within(self.deadline, request, scope, handle).await
    }

    /// The same with a deadline of its own, for calls whose nature is to wait.
    pub async fn answer_within<Req, Resp, Handle, Answer>(
        &self,
        deadline: Duration,
        request: Request<Req>,
        scope: Scope,
        handle: Handle,
    ) -> Result<Response<Resp>, Status>
    where
        Handle: FnOnce(Principal, Req) -> Answer,
        Answer: Future<Output = Result<Resp>>,
    {
        let work = async {
            let principal = self.admit(request.metadata().as_ref(), scope).await?;
            note_caller(request.extensions(), &principal);
            handle(principal, request.into_inner()).await
        };
        let late = || Error::new(Code::DeadlineExceeded, format!("no answer within {deadline:?}"));
        let outcome = tokio::time::timeout(deadline, work).await.unwrap_or_else(|_| Err(late()));
        outcome.map(Response::new).map_err(|error| log_and_convert(&error))
    }

    /// Who is calling, if they may.
    pub async fn admit(&self, headers: &HeaderMap, scope: Scope) -> Result<Principal> {
        let principal = self.auth.authenticate(headers).await?;
        principal.require(scope)?;
        Ok(principal)
    }

    /// How long a call may take.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Who is calling, if they may, and whether that stays so: for calls that last.
    pub async fn admit_for_long(&self, headers: &HeaderMap, scope: Scope) -> Result<(Principal, Standing)> {
        let (principal, standing) = self.auth.authenticate_for_long(headers).await?;
        principal.require(scope)?;
        Ok((principal, standing))
    }

    /// Looks again and again at the keys of callers that were admitted for long. Never ends.
    pub async fn watch_callers(&self) {
        self.auth.watch().await;
    }

    #[must_use]
    pub fn keys_required(&self) -> bool {
        self.auth.keys_required()
    }
}

/// Turns an error into a status.
#[must_use]
pub fn log_and_convert(error: &Error) -> Status {
    log(error);
    to_status(error)
}

/// What is our fault goes to the log with its causes, which callers never see.
pub fn log(error: &Error) {
    match error.code() {
        Code::Internal | Code::SchemaMismatch => tracing::error!(error = error.chain(), "a call failed"),
        Code::Unavailable => tracing::warn!(error = error.chain(), "a call could not be served"),
        code => tracing::debug!(%code, error = error.chain(), "a call was refused"),
    }
}
