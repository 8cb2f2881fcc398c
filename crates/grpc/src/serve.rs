//! Starting and stopping a server.

use std::{net::SocketAddr, time::Duration};

use remuda_domain::{Code, Error, error::Result};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::{
    Code as StatusCode,
    codegen::http::{HeaderValue, Response},
    service::RoutesBuilder,
    transport::{Server, server::TcpIncoming},
};
use tonic_health::server::HealthReporter;
use tower::util::MapResponseLayer;

/// How a server behaves on the wire.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// How often an idle connection is probed; a dead one is closed after a missed answer.
    pub keepalive: Duration,
    pub max_concurrent_streams: u32,
    /// How long open calls may go on after the stop signal.
    pub drain: Duration,
}

/// Binds a port. Done before any other work, so that a port in use is the first thing one hears of.
pub async fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let advice = match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                "is another remuda running? choose another address with --listen"
            }
            std::io::ErrorKind::PermissionDenied => "ports below 1024 need privileges: choose a higher one",
            _ => "check the address",
        };
        Error::new(Code::Unavailable, format!("cannot listen on {address}: {advice}"))
            .at("listen")
            .with_source(error)
    })
}

/// The services every server has: health, and reflection, by which a generic client needs nothing but the address.
/// Others are added to the builder; the reporter says how the server is.
pub fn basics() -> Result<(RoutesBuilder, HealthReporter)> {
    let (reporter, health) = tonic_health::server::health_reporter();
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(remuda_proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            // So that generic clients can show the details of our errors.
            .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
    };
    let broken = |error| Error::internal("the API's own description is broken").with_source(error);
    let mut routes = RoutesBuilder::default();
    routes.add_service(health);
    routes.add_service(reflection().build_v1().map_err(broken)?);
    // Many tools still speak the older dialect.
    routes.add_service(reflection().build_v1alpha().map_err(broken)?);
    Ok((routes, reporter))
}

/// Says `invalid_argument` of bytes that are no message, such as text that is not UTF-8. The library would say
/// `internal`, as if the fault were ours.
fn blame_the_sender<B>(mut response: Response<B>) -> Response<B> {
    const STATUS: &str = "grpc-status";
    let header = |name: &str| response.headers().get(name).map(HeaderValue::as_bytes).unwrap_or_default();
    let undecodable = header("grpc-message").starts_with(b"failed%20to%20decode%20Protobuf");
    if undecodable && header(STATUS) == b"13" {
        response.headers_mut().insert(STATUS, HeaderValue::from(StatusCode::InvalidArgument as u16));
    }
    response
}

/// Serves until `stop`, then lets open calls finish for a while.
pub async fn serve(
    listener: TcpListener,
    services: RoutesBuilder,
    options: ServeOptions,
    stop: CancellationToken,
) -> Result<()> {
    let incoming =
        TcpIncoming::from(listener).with_nodelay(Some(true)).with_keepalive(Some(options.keepalive));
    let server = Server::builder()
        .http2_keepalive_interval(Some(options.keepalive))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)))
        .max_concurrent_streams(Some(options.max_concurrent_streams))
        .http2_max_header_list_size(Some(16 * 1024))
        .layer(MapResponseLayer::new(blame_the_sender))
        .add_routes(services.routes())
        .serve_with_incoming_shutdown(incoming, stop.clone().cancelled_owned());
    let overdue = async {
        stop.cancelled().await;
        tokio::time::sleep(options.drain).await;
    };
    tokio::select! {
        served = server => served.map_err(|error| Error::internal("the server failed").with_source(error)),
        // A half-open connection can keep the graceful end waiting for ever.
        () = overdue => Ok(()),
    }
}
