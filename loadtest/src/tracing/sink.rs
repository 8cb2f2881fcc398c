//! A collector that takes every trace and looks at none, so that nothing but the sending is measured.

use std::{
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;

use crate::raw_grpc::Answers;

#[derive(Clone, Debug, Default)]
pub(super) struct Sink {
    requests: Arc<AtomicU64>,
}

impl Sink {
    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Answers for Sink {
    const NAME: &'static str = "opentelemetry.proto.collector.trace.v1.TraceService";

    /// An answer without fields has no bytes.
    fn answer(&self, _: Bytes) -> Bytes {
        self.requests.fetch_add(1, Ordering::Relaxed);
        Bytes::new()
    }
}

/// An address where nobody listens.
pub(super) fn nobody() -> anyhow::Result<String> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    Ok(format!("http://{address}"))
}
