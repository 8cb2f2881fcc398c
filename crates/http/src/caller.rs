//! Who is calling, before anything else of the request is read.

use std::marker::PhantomData;

use axum::extract::{FromRef, FromRequestParts};
use hyper::http::request::Parts;
use remuda_domain::identity::{Principal, Scope};
use remuda_grpc::{Gate, note_caller};

use crate::refusal::Refused;

/// A caller whose key covers what the operation needs.
#[derive(Debug)]
pub struct Caller<N>(pub Principal, pub PhantomData<N>);

/// The scope that an operation needs.
pub trait Needs {
    const SCOPE: Scope;
}

macro_rules! needs {
    ($($name:ident: $scope:ident;)*) => {$(
        #[derive(Debug)]
        pub struct $name;

        impl Needs for $name {
            const SCOPE: Scope = Scope::$scope;
        }
    )*};
}

needs! {
    MayRead: Read;
    MayWrite: Write;
    MayApprove: Approve;
    MayOperate: Admin;
}

impl<S, N> FromRequestParts<S> for Caller<N>
where
    S: Send + Sync,
    Gate: FromRef<S>,
    N: Needs,
{
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        let principal = Gate::from_ref(state).admit(&parts.headers, N::SCOPE).await?;
        note_caller(&parts.extensions, &principal);
        Ok(Self(principal, PhantomData))
    }
}
