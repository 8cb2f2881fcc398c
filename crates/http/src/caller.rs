//! An extractor that authenticates the caller before the rest of the request is read.

use std::marker::PhantomData;

use axum::extract::{FromRef, FromRequestParts};
use hyper::http::request::Parts;
use remuda_domain::identity::{Operator, Principal, Scope};
use remuda_grpc::{Gate, record_caller};

use crate::error::ApiError;

/// A caller whose key has the scope that the operation requires.
#[derive(Debug)]
pub struct Caller<N>(pub Principal, pub PhantomData<N>);

/// The scope that an operation requires.
pub trait RequiredScope {
    const SCOPE: Scope;
}

macro_rules! required_scopes {
    ($($name:ident: $scope:ident;)*) => {$(
        #[derive(Debug)]
        pub struct $name;

        impl RequiredScope for $name {
            const SCOPE: Scope = Scope::$scope;
        }
    )*};
}

required_scopes! {
    MayRead: Read;
    MayWrite: Write;
    MayApprove: Approve;
}

impl<S, N> FromRequestParts<S> for Caller<N>
where
    S: Send + Sync,
    Gate: FromRef<S>,
    N: RequiredScope,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let principal = Gate::from_ref(state).admit(&parts.headers, N::SCOPE).await?;
        record_caller(&parts.extensions, &principal);
        Ok(Self(principal, PhantomData))
    }
}

/// The caller of an operation on the whole installation: its key has the scope `operator`.
#[derive(Debug)]
pub struct OperatorCaller(pub Operator);

impl<S> FromRequestParts<S> for OperatorCaller
where
    S: Send + Sync,
    Gate: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        Ok(Self(Gate::from_ref(state).admit_operator(&parts.headers).await?))
    }
}
