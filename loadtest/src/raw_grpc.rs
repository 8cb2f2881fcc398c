//! gRPC with raw bytes as messages, for servers and calls without the cost of encoding.

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

/// A service that handles every method the same way.
pub(crate) trait RawHandler: Clone + Send + Sync + 'static {
    /// The full service name, with its package.
    const NAME: &'static str;

    fn handle(&self, message: Bytes) -> Bytes;
}

#[derive(Clone, Debug)]
pub(crate) struct RawService<A>(pub(crate) A);

impl<A: RawHandler> NamedService for RawService<A> {
    const NAME: &'static str = A::NAME;
}

impl<A: RawHandler> Service<http::Request<Body>> for RawService<A> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let method = Method(self.0.clone());
        Box::pin(async move {
            let mut grpc = Grpc::new(RawCodec).apply_max_message_size_config(Some(usize::MAX), None);
            Ok(grpc.unary(method, request).await)
        })
    }
}

struct Method<A>(A);

impl<A: RawHandler> UnaryService<Bytes> for Method<A> {
    type Response = Bytes;
    type Future = std::future::Ready<Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        std::future::ready(Ok(Response::new(self.0.handle(request.into_inner()))))
    }
}

/// Passes messages through as bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawCodec;

impl Codec for RawCodec {
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

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
