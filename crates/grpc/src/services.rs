//! What a server offers over gRPC.

use std::sync::Arc;

use axum::{Router, middleware};
use remuda_domain::{Error, error::Result};
use tonic::{
    Code as StatusCode,
    codegen::http::{HeaderValue, Response},
    service::RoutesBuilder,
};
use tonic_health::server::HealthReporter;
use tower::util::MapResponseLayer;

use crate::{
    requests::{Methods, measure},
    span::traced,
};

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

/// The services as something to serve.
pub fn router(services: RoutesBuilder) -> Result<Router> {
    let descriptions = [remuda_proto::FILE_DESCRIPTOR_SET, tonic_health::pb::FILE_DESCRIPTOR_SET];
    let methods = Arc::new(Methods::new(&descriptions)?);
    let router = services.routes().into_axum_router().layer(MapResponseLayer::new(blame_the_sender));
    let router = router.layer(middleware::from_fn_with_state(Arc::clone(&methods), traced));
    Ok(router.layer(middleware::from_fn_with_state(methods, measure)))
}
