//! What is measured of calls, whatever protocol they come in.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use prost::Message as _;
use prost_types::FileDescriptorSet;
use remuda_domain::{Error, error::Result};
use remuda_proto::status::from_status;
use remuda_telemetry::metrics::{
    self, Histogram, KeyValue, OTHER,
    registry::{REQUEST_DURATION, label},
};
use tonic::Status;

/// Tells how long calls of one protocol took. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Requests {
    durations: Histogram<f64>,
    protocol: &'static str,
}

impl Requests {
    #[must_use]
    pub fn new(protocol: &'static str) -> Self {
        Self { durations: metrics::histogram(&REQUEST_DURATION), protocol }
    }

    /// `method` is one of those that the API has, or [`OTHER`]; never what a caller wrote. `code` is that of the error, or `ok`.
    pub fn answered(&self, method: KeyValue, code: &'static str, took: Duration) {
        let labels =
            [KeyValue::new(label::PROTOCOL, self.protocol), method, KeyValue::new(label::CODE, code)];
        self.durations.record(took.as_secs_f64(), &labels);
    }
}

/// The methods of our services, by their paths.
#[derive(Debug)]
pub(crate) struct Methods {
    requests: Requests,
    known: HashMap<String, Arc<str>>,
}

impl Methods {
    /// Reads them from the descriptions that clients can get too.
    pub(crate) fn new(descriptions: &[&[u8]]) -> Result<Self> {
        let broken = |error| Error::internal("the API's own description is broken").with_source(error);
        let mut known = HashMap::new();
        for description in descriptions {
            let files = FileDescriptorSet::decode(*description).map_err(broken)?.file;
            for (package, service) in
                files.iter().flat_map(|file| file.service.iter().map(|service| (file.package(), service)))
            {
                for method in &service.method {
                    let name = format!("{}/{}", service.name(), method.name());
                    known.insert(format!("/{package}.{name}"), name.into());
                }
            }
        }
        Ok(Self { requests: Requests::new("grpc"), known })
    }

    /// What spans call it: with its package.
    pub(crate) fn full_name(&self, path: &str) -> &str {
        self.known.get_key_value(path).map_or("unknown method", |(path, _)| path.trim_start_matches('/'))
    }

    fn label(&self, path: &str) -> KeyValue {
        match self.known.get(path) {
            Some(name) => KeyValue::new(label::METHOD, Arc::clone(name)),
            None => KeyValue::new(label::METHOD, OTHER),
        }
    }
}

/// A layer around all services. An error is in the head of its answer, as no answer of ours fails after its first part with
/// anything that could not be told by the stream itself.
pub(crate) async fn measure(State(methods): State<Arc<Methods>>, request: Request, next: Next) -> Response {
    let (method, begun) = (methods.label(request.uri().path()), Instant::now());
    let response = next.run(request).await;
    let status = Status::from_header_map(response.headers()).filter(|it| it.code() != tonic::Code::Ok);
    let code = status.map_or("ok", |status| from_status(&status).code().as_str());
    methods.requests.answered(method, code, begun.elapsed());
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_methods_have_a_name() {
        let methods = Methods::new(&[remuda_proto::FILE_DESCRIPTOR_SET]).unwrap();
        let named = KeyValue::new(label::METHOD, "RunService/SubmitRun");
        assert_eq!(methods.label("/remuda.v1.RunService/SubmitRun"), named);
        assert_eq!(methods.full_name("/remuda.v1.RunService/SubmitRun"), "remuda.v1.RunService/SubmitRun");
        for path in ["/remuda.v1.RunService/Guess", "/x", "", "/remuda.v1.RunService/SubmitRun/"] {
            assert_eq!(methods.label(path), KeyValue::new(label::METHOD, "other"), "{path}");
            assert_eq!(methods.full_name(path), "unknown method", "{path}");
        }
    }
}
