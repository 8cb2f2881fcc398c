//! Every run is one connected trace across all processes, also when workers die. A real OTLP collector receives it.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{AnyValue, KeyValue, any_value::Value},
    trace::v1::{Span, span::SpanKind, status::StatusCode},
};
use remuda_testkit::{nats_binaries, wait_for};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::{
    cluster::Cluster,
    harness::{Cli, Dev, TIMEOUT, temporary_directory},
};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CLIENT_SPAN: &str = "b7ad6b7169203331";

fn traceparent() -> String {
    format!("00-{TRACE}-{CLIENT_SPAN}-01")
}

#[derive(Clone, Debug)]
struct ReceivedSpan {
    service: String,
    span: Span,
}

impl ReceivedSpan {
    fn id(&self) -> String {
        hex(&self.span.span_id)
    }

    fn parent(&self) -> String {
        hex(&self.span.parent_span_id)
    }

    fn attribute(&self, name: &str) -> Option<String> {
        attribute(&self.span.attributes, name)
    }

    fn has_failed(&self) -> bool {
        self.span.status.as_ref().is_some_and(|status| status.code == StatusCode::Error as i32)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attribute(attributes: &[KeyValue], name: &str) -> Option<String> {
    let found = attributes.iter().find(|it| it.key == name)?;
    match &found.value {
        Some(AnyValue { value: Some(Value::StringValue(text)) }) => Some(text.clone()),
        Some(AnyValue { value: Some(Value::IntValue(number)) }) => Some(number.to_string()),
        Some(AnyValue { value: Some(Value::DoubleValue(number)) }) => Some(number.to_string()),
        other => Some(format!("{other:?}")),
    }
}

/// An OTLP trace service that stores every span.
#[derive(Clone, Debug, Default)]
struct SpanStore(Arc<Mutex<Vec<ReceivedSpan>>>);

#[tonic::async_trait]
impl TraceService for SpanStore {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        for resource in request.into_inner().resource_spans {
            let of = resource.resource.unwrap_or_default().attributes;
            let service = attribute(&of, "service.name").unwrap_or_default();
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            let received = spans.map(|span| ReceivedSpan { service: service.clone(), span });
            self.0.lock().unwrap().extend(received);
        }
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

struct Collector {
    store: SpanStore,
    endpoint: String,
    _server: AbortOnDropHandle<Result<(), tonic::transport::Error>>,
}

impl Collector {
    async fn start() -> Self {
        let store = SpanStore::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let service = TraceServiceServer::new(store.clone()).max_decoding_message_size(64 << 20);
        let server = tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming(TcpListenerStream::new(listener));
        let server = AbortOnDropHandle::new(TaskTracker::new().spawn(server));
        Self { store, endpoint, _server: server }
    }

    fn received(&self) -> Vec<ReceivedSpan> {
        self.store.0.lock().unwrap().clone()
    }

    /// The spans of the client's trace, deduplicated: a span that may be lost with its worker is exported again.
    fn trace(&self) -> Trace {
        let mut spans: BTreeMap<String, ReceivedSpan> = BTreeMap::new();
        for received in self.received().into_iter().filter(|it| hex(&it.span.trace_id) == TRACE) {
            if let Some(first) = spans.get(&received.id()) {
                let same =
                    |it: &ReceivedSpan| (it.parent(), it.span.name.clone(), it.span.start_time_unix_nano);
                assert_eq!(same(first), same(&received), "two spans with one id");
            }
            spans.insert(received.id(), received);
        }
        Trace { spans }
    }

    /// Waits until the trace is complete and connected: every process exports its spans at its own times.
    async fn wait_for_trace(&self) -> Trace {
        wait_for("a complete trace", TIMEOUT, || async {
            let trace = self.trace();
            let ended = trace.named("run message");
            let delivered = trace.named("deliver events");
            let run_delivered =
                ended.first().is_some_and(|run| delivered.iter().any(|it| it.parent() == run.id()));
            let complete = EXPECTED_SPANS.iter().all(|(name, count)| trace.named(name).len() >= *count);
            let complete = complete && trace.starting_with("chat ").len() >= MODEL_CALLS;
            (ended.len() >= 2 && run_delivered && complete && trace.is_connected()).then_some(trace)
        })
        .await
    }
}

/// Spans that every trace of this workspace has, and the least number of each. Processes export at different times, so a
/// connected trace may still lack some.
const EXPECTED_SPANS: [(&str, usize); 10] = [
    ("remuda.v1.RunService/SubmitRun", 1),
    ("commit run", 1),
    ("wait in queue", 1),
    ("publish token", 1),
    ("receive token", 1),
    ("claim", 1),
    ("commit", 1),
    ("execute_tool Bash", 2),
    ("execute_tool SubAgent", 1),
    ("wait for children", 1),
];
/// Four model calls of the lead and one of the helper.
const MODEL_CALLS: usize = 5;

struct Trace {
    spans: BTreeMap<String, ReceivedSpan>,
}

impl Trace {
    fn named(&self, name: &str) -> Vec<&ReceivedSpan> {
        let mut found: Vec<&ReceivedSpan> = self.spans.values().filter(|it| it.span.name == name).collect();
        found.sort_by_key(|it| it.span.start_time_unix_nano);
        found
    }

    fn starting_with(&self, beginning: &str) -> Vec<&ReceivedSpan> {
        self.spans.values().filter(|it| it.span.name.starts_with(beginning)).collect()
    }

    /// The only span of this name.
    fn one(&self, name: &str) -> &ReceivedSpan {
        let found = self.named(name);
        assert_eq!(found.len(), 1, "{name} in {:#?}", self.outline());
        found[0]
    }

    fn parent_of(&self, of: &ReceivedSpan) -> Option<&ReceivedSpan> {
        self.spans.get(&of.parent())
    }

    /// Whether every span is a descendant of the client's span.
    fn is_connected(&self) -> bool {
        self.spans.values().all(|span| self.reaches_the_client(span))
    }

    fn reaches_the_client(&self, span: &ReceivedSpan) -> bool {
        let (mut at, mut seen) = (span, HashSet::new());
        loop {
            if at.parent() == CLIENT_SPAN {
                return true;
            }
            match self.parent_of(at) {
                Some(parent) if seen.insert(parent.id()) => at = parent,
                _ => return false,
            }
        }
    }

    fn outline(&self) -> Vec<String> {
        let name = |it: Option<&ReceivedSpan>| it.map_or("?", |it| it.span.name.as_str()).to_owned();
        let line =
            |it: &ReceivedSpan| format!("{}: {} < {}", it.service, it.span.name, name(self.parent_of(it)));
        self.spans.values().map(line).collect()
    }
}

/// A workspace whose lead runs two commands, delegates to a helper, and finishes; `second` is the second command.
fn workspace(directory: &Path, second: &str) -> PathBuf {
    let root = directory.join("team");
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write(
        ".openharness/agents/lead.md",
        "---\nmodel: workspace/lead\ntools: { native: ['*'] }\nsubagents: [helper]\n---\nYou lead.\n",
    );
    write(
        ".openharness/agents/helper.md",
        "---\nmode: subagent\nmodel: workspace/helper\ntools: { native: ['*'] }\n---\nYou help.\n",
    );
    write(".openharness/settings.yaml", "default_agent: lead\n");
    for name in ["lead", "helper"] {
        let model = format!("{name}: {{ provider: scripted, name: ../{name}.yaml }}\n");
        write(&format!(".openharness/models/{name}.yaml"), &model);
    }
    let bash = |command: &str| format!("{{ tool: Bash, arguments: {{ command: \"{command}\" }} }}");
    let first = bash("echo $TRACEPARENT > traceparent");
    let delegate = "{ tool: SubAgent, arguments: { subagent_type: helper, prompt: help } }";
    let turns = format!(
        "turns:\n  - {{ when: {{ turn: 1 }}, call: [{first}] }}\n  - {{ when: {{ turn: 2 }}, call: [{}] }}\n  \
         - {{ when: {{ turn: 3 }}, call: [{delegate}] }}\notherwise: {{ say: done }}\n",
        bash(second)
    );
    write(".openharness/lead.yaml", &turns);
    write(".openharness/helper.yaml", "otherwise: { say: helped }\n");
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    root
}

/// Submits with an idempotency key: such a run is not granted with its submit, so a token wakes its worker.
async fn submit(cli: &Cli, root: &Path) -> String {
    let directory = root.to_str().unwrap();
    let arguments =
        ["run", "go", "--session", "team", "--dir", directory, "--detach", "--idempotency-key", "go"];
    let submitted = cli.with_traceparent(&traceparent()).run(&arguments).await;
    assert_eq!(submitted.code, 0, "{}", submitted.stderr);
    submitted.stdout.trim().to_owned()
}

/// Watches the run to its completion. Creates the file `watched` once the reader is subscribed: only then are later events
/// delivered live, so a command may wait for the file.
async fn watch_to_completion(cli: &Cli, run: &str, root: &Path) {
    let mut watch = cli.start(&["watch", run, "--json"]);
    wait_for("a reader", TIMEOUT, || std::future::ready(!watch.documents().is_empty())).await;
    fs::write(root.join("watched"), "").unwrap();
    assert_eq!(watch.exit_code().await, 0, "{}", watch.stderr());
    let done = cli.one(&["runs", "show", run]).await;
    assert_eq!(done["state"], "completed", "{done}");
}

/// Checks that hold for every trace of this workspace, whether or not a worker died.
fn check_trace(trace: &Trace, root: &Path) {
    let submit = trace.one("remuda.v1.RunService/SubmitRun");
    assert_eq!((submit.parent().as_str(), submit.span.kind), (CLIENT_SPAN, SpanKind::Server as i32));
    let runs = trace.named("run message");
    assert_eq!(runs.len(), 2, "{:#?}", trace.outline());
    let (parent, child) = (runs[0], runs[1]);
    assert_eq!(parent.parent(), submit.id());
    assert_eq!(trace.one("commit run").parent(), submit.id());
    for name in ["remuda.run.id", "remuda.session.id", "remuda.tenant.id"] {
        assert!(parent.attribute(name).is_some(), "{name} of {parent:?}");
    }
    assert_eq!(parent.attribute("remuda.run.state").as_deref(), Some("completed"));

    let delegation = trace.one("execute_tool SubAgent");
    assert_eq!(child.parent(), delegation.id());
    assert_eq!(delegation.attribute("remuda.child.run_id"), child.attribute("remuda.run.id"));
    // The delegation lasts as long as the child.
    assert!(delegation.span.start_time_unix_nano <= child.span.start_time_unix_nano);
    assert!(delegation.span.end_time_unix_nano >= child.span.end_time_unix_nano);

    for attempt in trace.named("attempt") {
        let above = trace.parent_of(attempt).unwrap();
        assert_eq!(above.span.name, "run message");
        assert_eq!(attempt.span.kind, SpanKind::Consumer as i32);
    }
    let model_calls = trace.starting_with("chat ");
    assert_eq!(model_calls.len(), MODEL_CALLS, "{:#?}", trace.outline());
    for call in model_calls {
        assert_eq!(trace.parent_of(call).unwrap().span.name, "attempt");
        assert_eq!(call.span.kind, SpanKind::Client as i32);
        assert_eq!(call.attribute("gen_ai.operation.name").as_deref(), Some("chat"));
        assert_eq!(call.attribute("gen_ai.provider.name").as_deref(), Some("scripted"));
        for name in ["gen_ai.request.model", "gen_ai.usage.input_tokens", "gen_ai.response.finish_reasons"] {
            assert!(call.attribute(name).is_some(), "{name} of {call:?}");
        }
    }
    assert!(
        trace.named("execute_tool Bash").iter().all(|it| trace.parent_of(it).unwrap().span.name == "attempt")
    );
    let first = trace.named("execute_tool Bash")[0];
    assert_eq!(first.attribute("process.exit.code").as_deref(), Some("0"));
    assert_eq!(first.attribute("remuda.sandbox.backend"), None);
    // The command got the trace context of its own span.
    let written = fs::read_to_string(root.join("traceparent")).unwrap();
    assert_eq!(written.trim(), format!("00-{TRACE}-{}-01", first.id()));

    let published = trace.named("publish token");
    assert!(published.iter().any(|it| it.parent() == parent.id()), "{:#?}", trace.outline());
    let receipt = trace.named("receive token")[0];
    assert_eq!(trace.parent_of(receipt).unwrap().span.name, "publish token");
    assert!(trace.named("wait in queue").iter().any(|it| it.parent() == parent.id()));
    assert_eq!(trace.one("wait for children").parent(), parent.id());
    assert!(!trace.named("claim").is_empty() && !trace.named("commit").is_empty());
    assert!(
        trace.named("deliver events").iter().any(|it| it.parent() == parent.id()),
        "{:#?}",
        trace.outline()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn delegated_run_is_one_trace_across_processes() {
    let temp = temporary_directory();
    let collector = Collector::start().await;
    let otlp = [("REMUDA_TELEMETRY__OTLP_ENDPOINT", collector.endpoint.as_str())];
    let cluster = Cluster::start_with(&nats_binaries().remove(0), 2, &otlp).await;
    let root = workspace(temp.path(), "until [ -e watched ]; do sleep 0.02; done");
    cluster.register(&root).await;
    let run = submit(&cluster.cli, &root).await;
    watch_to_completion(&cluster.cli, &run, &root).await;
    let trace = collector.wait_for_trace().await;
    check_trace(&trace, &root);
    let services: HashSet<&str> = trace.spans.values().map(|it| it.service.as_str()).collect();
    assert_eq!(services, HashSet::from(["remuda-control-plane", "remuda-worker", "remuda-stream"]));
    assert!(trace.spans.values().all(|it| !it.has_failed()), "{:#?}", trace.outline());
    // The wait lasts from the submission to the first attempt.
    let parent = trace.named("run message")[0];
    let first = |name: &str| trace.named(name).into_iter().find(|it| it.parent() == parent.id()).unwrap();
    let (wait, attempt) = (first("wait in queue"), first("attempt"));
    assert_eq!(wait.span.start_time_unix_nano, parent.span.start_time_unix_nano);
    assert_eq!(wait.span.end_time_unix_nano, attempt.span.start_time_unix_nano);
    // No part of the run started a separate trace.
    let mut by_trace: HashMap<String, Vec<String>> = HashMap::new();
    for received in collector.received() {
        by_trace.entry(hex(&received.span.trace_id)).or_default().push(received.span.name);
    }
    let strays =
        by_trace.iter().filter(|(id, names)| *id != TRACE && names.iter().any(|name| name == "attempt"));
    assert_eq!(strays.count(), 0, "{by_trace:?}");
}

/// If a worker has offered a slot, the submit grants the run and publishes no token.
#[tokio::test(flavor = "multi_thread")]
async fn grant_sent_with_a_submit_is_traced() {
    let collector = Collector::start().await;
    let otlp = [("REMUDA_TELEMETRY__OTLP_ENDPOINT", collector.endpoint.as_str())];
    let cluster = Cluster::start_with(&nats_binaries().remove(0), 1, &otlp).await;
    let cli = cluster.cli.with_traceparent(&traceparent());
    // The first runs may come before the slot offer, and runs of an active session go to its owner.
    let granted = || async {
        let ran = cli.run(&["run", "--tool", "noop"]).await;
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        collector.received().into_iter().find(|it| it.span.name == "send grant")
    };
    let sent = wait_for("a grant", TIMEOUT, granted).await;
    let run = || {
        let all = collector.received();
        let above = all.into_iter().find(|it| it.id() == sent.parent());
        std::future::ready(above)
    };
    let run = wait_for("its run", TIMEOUT, run).await;
    assert_eq!((run.span.name.as_str(), sent.span.kind), ("run tools", SpanKind::Producer as i32));
    assert_eq!(sent.service, "remuda-control-plane");
}

#[tokio::test(flavor = "multi_thread")]
async fn trace_stays_connected_when_a_worker_is_killed() {
    let temp = temporary_directory();
    let collector = Collector::start().await;
    let otlp = [("REMUDA_TELEMETRY__OTLP_ENDPOINT", collector.endpoint.as_str())];
    let mut cluster = Cluster::start_with(&nats_binaries().remove(0), 1, &otlp).await;
    let root = workspace(temp.path(), "touch begun; sleep 600");
    cluster.register(&root).await;
    let run = submit(&cluster.cli, &root).await;
    let begun = root.join("begun");
    wait_for("the command", TIMEOUT, || std::future::ready(begun.try_exists().unwrap())).await;
    cluster.workers[0].process.kill();
    cluster.workers.push(cluster.services.worker().await);
    watch_to_completion(&cluster.cli, &run, &root).await;
    let trace = collector.wait_for_trace().await;
    check_trace(&trace, &root);

    let lost: Vec<&ReceivedSpan> = trace.named("attempt").into_iter().filter(|it| it.has_failed()).collect();
    assert_eq!(lost.len(), 1, "{:#?}", trace.outline());
    assert_eq!(lost[0].attribute("remuda.run.outcome").as_deref(), Some("lost"));
    assert_eq!(
        lost[0].service, "remuda-control-plane",
        "the process that reclaimed the session must export it"
    );
    // The next attempt links to the lost one.
    let links = |it: &&&ReceivedSpan| it.span.links.iter().any(|link| link.span_id == lost[0].span.span_id);
    assert!(trace.named("attempt").iter().any(|it| links(&it)), "{:#?}", trace.outline());
    let interrupted = trace.named("execute_tool Bash")[1];
    assert_eq!(interrupted.attribute("remuda.call.status").as_deref(), Some("interrupted"));
    assert_eq!(interrupted.parent(), lost[0].id());
}

#[tokio::test]
async fn trace_command_needs_no_collector() {
    let temp = temporary_directory();
    let dev = Dev::start().await;
    let root = workspace(temp.path(), "exit 3");
    let run = submit(&dev.cli, &root).await;
    watch_to_completion(&dev.cli, &run, &root).await;

    let trace = dev.cli.one(&["trace", &run]).await;
    assert_eq!((trace["trace_id"].as_str(), trace["sampled"].as_bool()), (Some(TRACE), Some(true)));
    let spans = trace["spans"].as_array().unwrap();
    let named = |name: &str| spans.iter().filter(|span| span["name"] == name).collect::<Vec<_>>();
    assert_eq!((named("run message").len(), named("execute_tool Bash").len()), (2, 2), "{trace}");
    assert_eq!(named("execute_tool Bash")[1]["attributes"]["process.exit.code"], "3");
    assert_eq!(named("wait for children").len(), 1, "{trace}");
    let ids: HashSet<&str> = spans.iter().filter_map(|span| span["span_id"].as_str()).collect();
    assert_eq!(ids.len(), spans.len(), "every span once");
    let strays = spans.iter().filter(|span| !ids.contains(span["parent_span_id"].as_str().unwrap()));
    assert_eq!(
        strays.map(|span| span["parent_span_id"].as_str().unwrap()).collect::<Vec<_>>(),
        [CLIENT_SPAN]
    );
    assert!(spans.iter().all(|span| span["ended_at"].is_string()), "{trace}");

    let drawn = dev.cli.run(&["trace", &run]).await;
    assert_eq!(drawn.code, 0, "{}", drawn.stderr);
    for part in ["run message", "├ wait in queue", "execute_tool SubAgent", "exit 3", "█"] {
        assert!(drawn.stdout.contains(part), "{part} in {}", drawn.stdout);
    }
    let alone = dev.cli.one(&["trace", &run, "--no-children"]).await;
    assert_eq!(
        alone["spans"].as_array().unwrap().iter().filter(|span| span["name"] == "run message").count(),
        1
    );
    assert_eq!(dev.cli.run(&["trace", "run_00000000000000000000000000"]).await.code, 4);
}
