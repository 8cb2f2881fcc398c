use std::{
    net::SocketAddr,
    sync::mpsc::{self, Receiver, Sender},
    time::{Duration, Instant},
};

use opentelemetry::metrics::MeterProvider as _;
use opentelemetry_proto::tonic::{
    collector::metrics::v1::{
        ExportMetricsServiceRequest, ExportMetricsServiceResponse,
        metrics_service_server::{MetricsService, MetricsServiceServer},
    },
    metrics::v1::metric::Data,
};
use tokio::runtime::Runtime;

use super::*;
use crate::metrics::{MetricsGuard, SCOPE, Settings, provider, registry};

struct TestReceiver(Sender<ExportMetricsServiceRequest>);

#[tonic::async_trait]
impl MetricsService for TestReceiver {
    async fn export(
        &self,
        request: tonic::Request<ExportMetricsServiceRequest>,
    ) -> Result<tonic::Response<ExportMetricsServiceResponse>, tonic::Status> {
        self.0.send(request.into_inner()).map_err(|_| tonic::Status::internal("test ended"))?;
        Ok(tonic::Response::new(ExportMetricsServiceResponse::default()))
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// A real OTLP receiver.
fn receiver(runtime: &Runtime) -> (SocketAddr, Receiver<ExportMetricsServiceRequest>) {
    let (sender, received) = mpsc::channel();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(
        tonic::transport::Server::builder()
            .add_service(MetricsServiceServer::new(TestReceiver(sender)))
            .serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener)),
    );
    (address, received)
}

fn settings(address: SocketAddr, runtime: &Runtime, scraped: bool) -> Settings {
    let collector = Collector { endpoint: format!("http://{address}"), runtime: runtime.handle().clone() };
    Settings {
        service_name: "remuda-test".to_owned(),
        scraped,
        collector: Some(collector),
        ..Settings::default()
    }
}

#[test]
fn shutdown_delivers_the_last_metrics_with_and_without_scraping() {
    let (server, client) = (runtime(), runtime());
    for scraped in [false, true] {
        let (address, received) = receiver(&server);
        let (exporter, provider) = provider(settings(address, &client, scraped)).unwrap();
        let meter = provider.meter(SCOPE);
        registry::FENCED_WRITES.counter(&meter).add(7, &[]);
        registry::QUEUE_WAIT.histogram(&meter).record(0.5, &[]);
        assert_eq!(exporter.is_some(), scraped);
        if let Some(exporter) = exporter {
            let text = exporter.text().unwrap();
            assert!(text.contains("remuda_fenced_writes_total 7"), "{text}");
        }
        MetricsGuard(provider).shutdown();

        let request = received.recv_timeout(Duration::from_secs(10)).unwrap();
        let exported = &request.resource_metrics[0];
        let resource = format!("{:?}", exported.resource);
        for part in ["service.name", "remuda-test", "service.instance.id"] {
            assert!(resource.contains(part), "{part} in {resource}");
        }
        let metric = |name: &str| {
            let metrics = &exported.scope_metrics[0].metrics;
            metrics.iter().find(|metric| metric.name == name).unwrap().clone()
        };
        let fenced = metric("remuda.fenced_writes");
        assert_eq!(fenced.unit, "{write}");
        assert!(
            matches!(fenced.data, Some(Data::Sum(sum)) if sum.is_monotonic && sum.data_points.len() == 1)
        );
        let waited = metric("remuda.queue.wait");
        let Some(Data::Histogram(waited)) = waited.data else { panic!("{waited:?}") };
        assert_eq!((waited.data_points[0].count, waited.data_points[0].sum), (1, Some(0.5)));
    }
    server.shutdown_background();
    client.shutdown_background();
}

#[test]
fn unresponsive_collector_delays_neither_metrics_nor_shutdown() {
    // Accepts connections into its backlog and never reads.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let refused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let client = runtime();
    for address in [silent.local_addr().unwrap(), refused] {
        let begun = Instant::now();
        let (_, provider) = provider(settings(address, &client, false)).unwrap();
        let counter = registry::FENCED_WRITES.counter(&provider.meter(SCOPE));
        (0..10_000).for_each(|_| counter.add(1, &[]));
        assert!(begun.elapsed() < Duration::from_secs(2), "measuring took {:?}", begun.elapsed());
        let begun = Instant::now();
        MetricsGuard(provider).shutdown();
        let took = begun.elapsed();
        assert!(took < FLUSH_BOUND + Duration::from_secs(2), "the end took {took:?}");
    }
    client.shutdown_background();
}
