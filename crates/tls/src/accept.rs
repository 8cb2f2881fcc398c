//! A connection with or without TLS.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::{ServerTls, server_tls::HTTP_2};

/// What the client speaks, if TLS has agreed on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    Http2,
}

/// A connection with or without TLS.
#[derive(Debug)]
pub enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Completes the handshake, if there is TLS. The caller limits the time. Without TLS nothing is known about the protocol.
pub async fn accept(tls: Option<&ServerTls>, stream: TcpStream) -> io::Result<(Stream, Option<Protocol>)> {
    handshake(tls.map(ServerTls::acceptor), stream).await
}

/// Like [`accept`], for a port that does not speak HTTP/2.
pub async fn accept_http1(
    tls: Option<&ServerTls>,
    stream: TcpStream,
) -> io::Result<(Stream, Option<Protocol>)> {
    handshake(tls.map(ServerTls::http1_acceptor), stream).await
}

async fn handshake(tls: Option<TlsAcceptor>, stream: TcpStream) -> io::Result<(Stream, Option<Protocol>)> {
    let Some(tls) = tls else { return Ok((Stream::Plain(stream), None)) };
    let stream = tls.accept(stream).await?;
    let protocol = match stream.get_ref().1.alpn_protocol() {
        Some(HTTP_2) => Protocol::Http2,
        _ => Protocol::Http1,
    };
    Ok((Stream::Tls(Box::new(stream)), Some(protocol)))
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, pieces),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
