//! A collector that discards every trace, so that only the export is measured.

use std::{
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;

use crate::raw_grpc::RawHandler;

#[derive(Clone, Debug, Default)]
pub(super) struct Sink {
    requests: Arc<AtomicU64>,
}

impl Sink {
    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

impl RawHandler for Sink {
    const NAME: &'static str = "opentelemetry.proto.collector.trace.v1.TraceService";

    /// Returns an empty response message.
    fn handle(&self, _: Bytes) -> Bytes {
        self.requests.fetch_add(1, Ordering::Relaxed);
        Bytes::new()
    }
}

/// An endpoint on which nothing listens.
pub(super) fn unused_endpoint() -> anyhow::Result<String> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    Ok(format!("http://{address}"))
}
