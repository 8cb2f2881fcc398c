//! The gRPC services that every server has.

use remuda_domain::{Error, error::Result};
use tonic::service::RoutesBuilder;
use tonic_health::server::HealthReporter;

use crate::{call::Gate, request_metrics::Methods, router::GrpcRouter};

/// The services that every server has: health, and reflection, with which a generic client needs only the address. Add
/// further services to the builder; report the server's health with the reporter.
pub fn base_services() -> Result<(RoutesBuilder, HealthReporter)> {
    let (reporter, health) = tonic_health::server::health_reporter();
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(remuda_proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            // Lets generic clients decode error details.
            .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
    };
    let broken = |error| Error::internal("cannot decode the API's descriptor set").with_source(error);
    let mut routes = RoutesBuilder::default();
    routes.add_service(health);
    routes.add_service(reflection().build_v1().map_err(broken)?);
    // Many tools still use the older version.
    routes.add_service(reflection().build_v1alpha().map_err(broken)?);
    Ok((routes, reporter))
}

/// Builds the router for these services.
pub fn router(services: RoutesBuilder, gate: Gate) -> Result<GrpcRouter> {
    let descriptions = [remuda_proto::FILE_DESCRIPTOR_SET, tonic_health::pb::FILE_DESCRIPTOR_SET];
    Ok(GrpcRouter::new(services.routes().prepare().into_axum_router(), Methods::new(&descriptions)?, gate))
}
