//! Metrics of calls, for every protocol.

use std::{collections::HashMap, sync::Arc, time::Duration};

use prost::Message as _;
use prost_types::FileDescriptorSet;
use remuda_domain::{Error, error::Result};
use remuda_telemetry::metrics::{
    self, Histogram, KeyValue, OTHER,
    registry::{REQUEST_DURATION, label},
};

/// Records the durations of calls of one protocol. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RequestMetrics {
    durations: Histogram<f64>,
    protocol: &'static str,
}

impl RequestMetrics {
    #[must_use]
    pub fn new(protocol: &'static str) -> Self {
        Self { durations: metrics::histogram(&REQUEST_DURATION), protocol }
    }

    /// `method` is a method of the API or [`OTHER`], never text of a caller. `code` is that of the error, or `ok`.
    pub fn record(&self, method: KeyValue, code: &'static str, took: Duration) {
        let labels =
            [KeyValue::new(label::PROTOCOL, self.protocol), method, KeyValue::new(label::CODE, code)];
        self.durations.record(took.as_secs_f64(), &labels);
    }
}

/// The methods of the API, by path.
#[derive(Debug)]
pub(crate) struct Methods {
    requests: RequestMetrics,
    known: HashMap<String, Arc<Method>>,
    /// Stands for all other paths.
    unknown: Arc<Method>,
}

#[derive(Debug)]
pub(crate) struct Method {
    full_name: String,
    label: KeyValue,
}

impl Method {
    /// The name in spans, with its package.
    pub(crate) fn full_name(&self) -> &str {
        &self.full_name
    }
}

impl Methods {
    /// Reads the methods from descriptor sets, the same that reflection serves.
    pub(crate) fn new(descriptions: &[&[u8]]) -> Result<Self> {
        let broken = |error| Error::internal("cannot decode the API's descriptor set").with_source(error);
        let mut known = HashMap::new();
        for description in descriptions {
            let files = FileDescriptorSet::decode(*description).map_err(broken)?.file;
            for (package, service) in
                files.iter().flat_map(|file| file.service.iter().map(|service| (file.package(), service)))
            {
                for method in &service.method {
                    let name = format!("{}/{}", service.name(), method.name());
                    let full_name = format!("{package}.{name}");
                    // Shared, so that measurements do not copy it.
                    let label = KeyValue::new(label::METHOD, Arc::<str>::from(name));
                    known.insert(format!("/{full_name}"), Arc::new(Method { full_name, label }));
                }
            }
        }
        let unknown =
            Method { full_name: "unknown method".to_owned(), label: KeyValue::new(label::METHOD, OTHER) };
        Ok(Self { requests: RequestMetrics::new("grpc"), known, unknown: Arc::new(unknown) })
    }

    /// The method that a path names.
    pub(crate) fn find(&self, path: &str) -> Arc<Method> {
        Arc::clone(self.known.get(path).unwrap_or(&self.unknown))
    }

    /// `code` is that of the error, or `ok`.
    pub(crate) fn record(&self, method: &Method, code: &'static str, took: Duration) {
        self.requests.record(method.label.clone(), code, took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_methods_of_the_api_get_a_label() {
        let methods = Methods::new(&[remuda_proto::FILE_DESCRIPTOR_SET]).unwrap();
        let label = KeyValue::new(label::METHOD, "RunService/SubmitRun");
        assert_eq!(methods.find("/remuda.v1.RunService/SubmitRun").label, label);
        assert_eq!(
            methods.find("/remuda.v1.RunService/SubmitRun").full_name(),
            "remuda.v1.RunService/SubmitRun"
        );
        for path in ["/remuda.v1.RunService/Guess", "/x", "", "/remuda.v1.RunService/SubmitRun/"] {
            assert_eq!(methods.find(path).label, KeyValue::new(label::METHOD, "other"), "{path}");
            assert_eq!(methods.find(path).full_name(), "unknown method", "{path}");
        }
    }
}
