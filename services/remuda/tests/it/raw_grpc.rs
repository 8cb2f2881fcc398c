//! A gRPC client without generated types: messages are raw bytes.

use bytes::{Buf as _, BufMut as _, Bytes};
use remuda_domain::Error;
use remuda_proto::status::from_status;
use tonic::{
    Request, Response, Status, Streaming,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint},
};

/// Passes messages through unchanged.
#[derive(Clone, Copy, Debug, Default)]
struct RawCodec;

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

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = buffer.remaining();
        Ok(Some(buffer.copy_to_bytes(length)))
    }
}

/// A connection on which any bytes can be sent.
#[derive(Clone, Debug)]
pub(crate) struct RawGrpc {
    pub(crate) channel: Channel,
}

impl RawGrpc {
    pub(crate) async fn connect(endpoint: &str) -> Self {
        let channel = Endpoint::from_shared(endpoint.to_owned()).unwrap().connect().await.unwrap();
        Self { channel }
    }

    fn grpc(&self) -> Grpc<Channel> {
        Grpc::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    /// Calls `method` (`package.Service/Method`) with one message and returns one.
    pub(crate) async fn unary(
        &self,
        method: &str,
        request: Request<Bytes>,
    ) -> Result<Response<Bytes>, Status> {
        let mut grpc = self.grpc();
        grpc.ready().await.unwrap();
        grpc.unary(request, path(method), RawCodec).await
    }

    /// Calls `method` with one message and returns its answer as soon as it begins, whether it has one message or many.
    pub(crate) async fn open(&self, method: &str, request: Request<Bytes>) -> Result<(), Status> {
        let mut grpc = self.grpc();
        grpc.ready().await.unwrap();
        grpc.server_streaming(request, path(method), RawCodec).await.map(drop)
    }

    /// Calls `method` with one message and returns a stream.
    pub(crate) async fn stream(&self, method: &str, message: Bytes) -> Result<Streaming<Bytes>, Status> {
        let mut grpc = self.grpc();
        grpc.ready().await.unwrap();
        grpc.server_streaming(Request::new(message), path(method), RawCodec).await.map(Response::into_inner)
    }

    /// Calls `method`, which must fail, and returns the error.
    pub(crate) async fn expect_error(&self, method: &str, request: Request<Bytes>) -> Error {
        from_status(&self.unary(method, request).await.unwrap_err())
    }
}

fn path(method: &str) -> PathAndQuery {
    format!("/{method}").parse().unwrap()
}
