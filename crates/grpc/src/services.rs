//! What a server offers over gRPC.

use remuda_domain::{Error, error::Result};
use tonic::service::RoutesBuilder;
use tonic_health::server::HealthReporter;

use crate::{front::Front, requests::Methods};

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

/// The services as something to serve.
pub fn router(services: RoutesBuilder) -> Result<Front> {
    let descriptions = [remuda_proto::FILE_DESCRIPTOR_SET, tonic_health::pb::FILE_DESCRIPTOR_SET];
    Ok(Front::new(services.routes().prepare().into_axum_router(), Methods::new(&descriptions)?))
}
