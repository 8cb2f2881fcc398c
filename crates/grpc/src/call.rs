//! The path of every call: authentication, scope, deadline, and errors without internal details.

use std::{future::Future, net::IpAddr, sync::Arc, time::Duration};

use remuda_domain::{
    Code, Error,
    error::Result,
    identity::{Operator, Principal, Scope},
};
use remuda_proto::status::to_status;
use tonic::{
    Request, Response, Status,
    codegen::http::{HeaderMap, Method, Uri},
};

use crate::{
    auth::Authenticator,
    browser_rules::BrowserRules,
    key_validity::KeyValidity,
    metered_body::{BodyTimes, MeteredBody},
    request_context::record_caller,
    request_state::{RequestState, within_limits},
};

/// Checks and limits that apply to every call. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Gate {
    auth: Authenticator,
    deadline: Duration,
    browsers: Arc<BrowserRules>,
}

impl Gate {
    #[must_use]
    pub fn new(auth: Authenticator, deadline: Duration, browsers: BrowserRules) -> Self {
        Self { auth, deadline, browsers: Arc::new(browsers) }
    }

    /// The state of a request on a connection from this address. Handle the request within it.
    #[must_use]
    pub fn begin(&self, peer: IpAddr) -> RequestState {
        RequestState::new(peer, self.auth.budget())
    }

    /// Limits the body of the current request.
    #[must_use]
    pub fn meter<B>(&self, body: B) -> MeteredBody<B> {
        MeteredBody::new(body, BodyTimes { idle: self.auth.limits().body_timeout, whole: self.deadline })
    }

    /// Fails for a request that a web page of another site sends through its visitor's browser.
    pub fn check_browser(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<()> {
        self.browsers.check(method, uri, headers)
    }

    /// Authenticates the caller of the current request. A later [`Gate::admit`] uses the same caller.
    pub async fn identify(&self, headers: &HeaderMap) -> Result<()> {
        self.auth.identify(headers).await.map(drop)
    }

    /// Runs `handle` for a caller whose key has `scope` in its tenant, within the server's deadline. A call that takes long
    /// ends when the caller's key is revoked or expires.
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

    /// The same with another deadline, for calls that wait.
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
        within(deadline, async {
            let principal = self.admit(request.metadata().as_ref(), scope).await?;
            record_caller(request.extensions(), &principal);
            handle(principal, request.into_inner()).await
        })
        .await
    }

    /// Runs `handle` for an operator, within the server's deadline.
    pub async fn answer_operator<Req, Resp, Handle, Answer>(
        &self,
        request: Request<Req>,
        handle: Handle,
    ) -> Result<Response<Resp>, Status>
    where
        Handle: FnOnce(Operator, Req) -> Answer,
        Answer: Future<Output = Result<Resp>>,
    {
        within(self.deadline, async {
            let operator = self.admit_operator(request.metadata().as_ref()).await?;
            handle(operator, request.into_inner()).await
        })
        .await
    }

    /// Authenticates the caller of a call about one tenant's data, and checks its scope.
    pub async fn admit(&self, headers: &HeaderMap, scope: Scope) -> Result<Principal> {
        self.auth.authenticate(headers).await?.in_tenant(scope)
    }

    /// Authenticates the caller of a call about the whole installation: it needs the scope `operator`.
    pub async fn admit_operator(&self, headers: &HeaderMap) -> Result<Operator> {
        self.auth.authenticate(headers).await?.into_operator()
    }

    /// The default deadline of a call.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Like [`Gate::admit`], for streams: the [`KeyValidity`] ends when the caller's key is revoked or expires.
    pub async fn admit_stream(&self, headers: &HeaderMap, scope: Scope) -> Result<(Principal, KeyValidity)> {
        let (actor, validity) = self.auth.authenticate_stream(headers).await?;
        Ok((actor.in_tenant(scope)?, validity))
    }

    /// Rechecks the keys of open streams and of waiting calls periodically. Never ends.
    pub async fn watch_keys(&self) {
        self.auth.watch().await;
    }

    #[must_use]
    pub fn keys_required(&self) -> bool {
        self.auth.keys_required()
    }
}

/// Waits for an answer until the deadline or until the caller's key ends, and converts an error.
async fn within<Resp>(
    deadline: Duration,
    answer: impl Future<Output = Result<Resp>>,
) -> Result<Response<Resp>, Status> {
    let outcome = within_limits(deadline, answer).await.and_then(|outcome| outcome);
    outcome.map(Response::new).map_err(|error| log_and_convert(&error))
}

/// Logs an error and converts it to a status.
#[must_use]
pub fn log_and_convert(error: &Error) -> Status {
    log(error);
    to_status(error)
}

/// Logs an error with its causes, which callers never see.
pub fn log(error: &Error) {
    match error.code() {
        Code::Internal | Code::SchemaMismatch | Code::StorageCorrupt => {
            tracing::error!(error = error.chain(), "call failed")
        }
        Code::Unavailable | Code::StorageFull => {
            tracing::warn!(error = error.chain(), "call could not be served")
        }
        code => tracing::debug!(%code, error = error.chain(), "call refused"),
    }
}
