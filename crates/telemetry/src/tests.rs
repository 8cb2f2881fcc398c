use std::{
    io,
    sync::{Arc, Mutex, mpsc},
    time::Instant,
};

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
    trace_service_server::{TraceService, TraceServiceServer},
};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
use tracing::subscriber::{DefaultGuard, set_default};

use super::*;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// A writer that captures log output.
#[derive(Clone, Default)]
struct CapturedOutput(Arc<Mutex<Vec<u8>>>);

impl CapturedOutput {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for CapturedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn start(options: &Options) -> (CapturedOutput, DefaultGuard, Guard) {
    let lines = CapturedOutput::default();
    let writer = lines.clone();
    let (subscriber, guard) = subscriber(options, move || writer.clone()).unwrap();
    (lines, set_default(subscriber), guard)
}

/// Exports traces to memory.
fn collect(ratio: f64) -> (InMemorySpanExporter, SdkTracerProvider, DefaultGuard) {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(exporter.clone())
        .with_sampler(traces::sampler(ratio))
        .build();
    let default = set_default(tracing_subscriber::registry().with(traces::layer(&provider)));
    (exporter, provider, default)
}

#[test]
fn json_lines_have_fields_of_event_and_span() {
    let options = Options { format: Format::Json, ansi: true, ..Options::default() };
    let (lines, _default, guard) = start(&options);
    tracing::error_span!("run", run = "run_1").in_scope(|| tracing::info!(slots = 16, "started"));
    tracing::debug!("not shown");
    let text = lines.text();
    assert_eq!(text.lines().count(), 1, "{text}");
    for part in [r#""message":"started""#, r#""slots":16"#, r#""level":"INFO""#, r#""run":"run_1""#] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(!text.contains('\u{1b}'));
    guard.shutdown();
}

#[test]
fn pretty_lines_have_colours_only_if_enabled() {
    for ansi in [false, true] {
        let options = Options {
            format: Format::Pretty,
            log: "warn,remuda_telemetry=debug".into(),
            ansi,
            ..Options::default()
        };
        let (lines, _default, _guard) = start(&options);
        tracing::debug!("shown");
        let text = lines.text();
        assert!(text.contains("shown"), "{text}");
        assert_eq!(text.contains('\u{1b}'), ansi, "{text:?}");
    }
}

#[test]
fn invalid_filters_and_endpoints_are_rejected() {
    for bad in ["info,=", "remuda=loud", "a=b=c"] {
        assert!(matches!(check_filter(bad), Err(Error::Filter(_))), "{bad}");
    }
    for good in ["", "off", "info", "info,remuda_worker=debug", "[run{id=1}]=trace"] {
        check_filter(good).unwrap();
    }
    let options = Options { otlp_endpoint: Some("http://a b".into()), ..Options::default() };
    assert!(matches!(subscriber(&options, io::stderr), Err(Error::Exporter(_))));
}

#[test]
fn trace_continues_in_the_next_process() {
    let (exporter, provider, _default) = collect(1.0);
    let submit = tracing::info_span!(target: TRACE_TARGET, "submit");
    let carried = submit.in_scope(current).unwrap();
    drop(submit);
    let execute = tracing::info_span!(target: TRACE_TARGET, "execute");
    set_parent(&execute, carried);
    let next = execute.in_scope(current).unwrap();
    drop(execute);
    provider.force_flush().unwrap();

    let spans = exporter.get_finished_spans().unwrap();
    let span = |name| spans.iter().find(|span| span.name == name).unwrap();
    assert_eq!(span("execute").parent_span_id, span("submit").span_context.span_id());
    assert_eq!(span("execute").span_context.trace_id(), span("submit").span_context.trace_id());
    assert_eq!(carried.trace, next.trace);
    assert_ne!(carried.span, next.span);
}

/// Spans that only serve logs must not be exported.
#[test]
fn log_spans_are_not_part_of_traces() {
    let (exporter, provider, _default) = collect(1.0);
    let request = tracing::info_span!(target: TRACE_TARGET, "request");
    request.in_scope(|| {
        tracing::info_span!("run", run = "run_1")
            .in_scope(|| assert_eq!(current(), request.in_scope(current)));
    });
    drop(request);
    provider.force_flush().unwrap();
    let names: Vec<_> = exporter.get_finished_spans().unwrap().into_iter().map(|span| span.name).collect();
    assert_eq!(names, ["request"]);
}

#[test]
fn sampling_decision_of_the_parent_overrides_the_ratio() {
    let (exporter, provider, _default) = collect(0.0);
    let dropped = tracing::info_span!(target: TRACE_TARGET, "dropped");
    // The decision is propagated: the next process does not sample either.
    assert!(!dropped.in_scope(current).unwrap().sampled);
    drop(dropped);
    let kept = tracing::info_span!(target: TRACE_TARGET, "kept");
    set_parent(&kept, PARENT.parse().unwrap());
    kept.in_scope(|| ());
    drop(kept);
    provider.force_flush().unwrap();
    let names: Vec<_> = exporter.get_finished_spans().unwrap().into_iter().map(|span| span.name).collect();
    assert_eq!(names, ["kept"]);
}

#[test]
fn there_is_no_trace_context_without_traces() {
    let (_lines, _default, _guard) = start(&Options::default());
    assert_eq!(current(), None);
    let span = tracing::info_span!(target: TRACE_TARGET, "run");
    set_parent(&span, PARENT.parse().unwrap());
    assert_eq!(span.in_scope(current), None);
}

#[test]
fn unreachable_collector_delays_neither_start_nor_exit() {
    // The listener accepts connections into its backlog and never reads.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let refused = {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        closed.local_addr().unwrap()
    };
    for address in [silent.local_addr().unwrap(), refused] {
        let begin = Instant::now();
        let options = Options { otlp_endpoint: Some(format!("http://{address}")), ..Options::default() };
        let (_lines, _default, guard) = start(&options);
        tracing::info_span!(target: TRACE_TARGET, "lost").in_scope(|| assert!(current().is_some()));
        assert!(begin.elapsed() < Duration::from_secs(2), "start took {:?}", begin.elapsed());
        let begin = Instant::now();
        guard.shutdown();
        assert!(begin.elapsed() < FLUSH_BOUND + Duration::from_secs(2), "exit took {:?}", begin.elapsed());
    }
}

struct Collector(mpsc::Sender<ExportTraceServiceRequest>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        self.0.send(request.into_inner()).map_err(|_| tonic::Status::internal("test ended"))?;
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

#[test]
fn shutdown_delivers_the_last_spans_to_the_collector() {
    let (sender, receiver) = mpsc::channel();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(
        tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(Collector(sender)))
            .serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener)),
    );

    let options = Options {
        log: "off".into(),
        otlp_endpoint: Some(format!("http://{address}")),
        service_name: "remuda-test".into(),
        ..Options::default()
    };
    let (lines, _default, guard) = start(&options);
    tracing::info_span!(target: TRACE_TARGET, "last").in_scope(|| ());
    guard.shutdown();

    let request = receiver.recv_timeout(Duration::from_secs(10)).unwrap();
    let spans = &request.resource_spans[0];
    assert_eq!(spans.scope_spans[0].spans[0].name, "last");
    let resource = format!("{:?}", spans.resource);
    for part in ["service.name", "remuda-test", "service.version", "service.instance.id"] {
        assert!(resource.contains(part), "{part} in {resource}");
    }
    assert_eq!(lines.text(), "");
    runtime.shutdown_background();
}
