//! gRPC without messages: bytes in, bytes out. For servers and calls that shall cost no more than the protocol itself.

use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use bytes::{Buf as _, BufMut as _, Bytes};
use tonic::{
    Request, Response, Status,
    body::Body,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::{BoxFuture, Service, http},
    server::{Grpc, NamedService, UnaryService},
};

/// A service that answers every method alike.
pub(crate) trait Answers: Clone + Send + Sync + 'static {
    /// With its package.
    const NAME: &'static str;

    fn answer(&self, message: Bytes) -> Bytes;
}

#[derive(Clone, Debug)]
pub(crate) struct RawService<A>(pub(crate) A);

impl<A: Answers> NamedService for RawService<A> {
    const NAME: &'static str = A::NAME;
}

impl<A: Answers> Service<http::Request<Body>> for RawService<A> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let method = Method(self.0.clone());
        Box::pin(async move {
            let mut grpc = Grpc::new(Raw).apply_max_message_size_config(Some(usize::MAX), None);
            Ok(grpc.unary(method, request).await)
        })
    }
}

struct Method<A>(A);

impl<A: Answers> UnaryService<Bytes> for Method<A> {
    type Response = Bytes;
    type Future = std::future::Ready<Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        std::future::ready(Ok(Response::new(self.0.answer(request.into_inner()))))
    }
}

/// Messages as their bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
