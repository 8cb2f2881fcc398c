//! Every run is one connected trace, over all processes and also when workers die. A real collector receives it.

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
    harness::{Cli, Dev, PATIENCE, temporary_directory},
};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CLIENT_SPAN: &str = "b7ad6b7169203331";

fn traceparent() -> String {
    format!("00-{TRACE}-{CLIENT_SPAN}-01")
}

#[derive(Clone, Debug)]
struct Received {
    service: String,
    span: Span,
}

impl Received {
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

/// A collector that remembers.
#[derive(Clone, Debug, Default)]
struct Memory(Arc<Mutex<Vec<Received>>>);

#[tonic::async_trait]
impl TraceService for Memory {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        for resource in request.into_inner().resource_spans {
            let of = resource.resource.unwrap_or_default().attributes;
            let service = attribute(&of, "service.name").unwrap_or_default();
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            let received = spans.map(|span| Received { service: service.clone(), span });
            self.0.lock().unwrap().extend(received);
        }
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

struct Collector {
    memory: Memory,
    endpoint: String,
    _server: AbortOnDropHandle<Result<(), tonic::transport::Error>>,
}

impl Collector {
    async fn start() -> Self {
        let memory = Memory::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let service = TraceServiceServer::new(memory.clone()).max_decoding_message_size(64 << 20);
        let server = tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming(TcpListenerStream::new(listener));
        let server = AbortOnDropHandle::new(TaskTracker::new().spawn(server));
        Self { memory, endpoint, _server: server }
    }

    fn received(&self) -> Vec<Received> {
        self.memory.0.lock().unwrap().clone()
    }

    /// The spans of the client's trace, each once: a span that may be lost with its worker is told again.
    fn trace(&self) -> Trace {
        let mut spans: BTreeMap<String, Received> = BTreeMap::new();
        for received in self.received().into_iter().filter(|it| hex(&it.span.trace_id) == TRACE) {
            if let Some(first) = spans.get(&received.id()) {
                let same = |it: &Received| (it.parent(), it.span.name.clone(), it.span.start_time_unix_nano);
                assert_eq!(same(first), same(&received), "two spans with one id");
            }
            spans.insert(received.id(), received);
        }
        Trace { spans }
    }

    /// Waits until whatever was to come has come: every process sends its spans at times of its own.
    async fn whole_trace(&self) -> Trace {
        wait_for("a whole trace", PATIENCE, || async {
            let trace = self.trace();
            let ended = trace.named("run message");
            let delivered = trace.named("deliver events");
            let told = ended.first().is_some_and(|run| delivered.iter().any(|it| it.parent() == run.id()));
            (ended.len() >= 2 && told && trace.is_connected()).then_some(trace)
        })
        .await
    }
}

struct Trace {
    spans: BTreeMap<String, Received>,
}

impl Trace {
    fn named(&self, name: &str) -> Vec<&Received> {
        let mut found: Vec<&Received> = self.spans.values().filter(|it| it.span.name == name).collect();
        found.sort_by_key(|it| it.span.start_time_unix_nano);
        found
    }

    /// The only one of its name.
    fn one(&self, name: &str) -> &Received {
        let found = self.named(name);
        assert_eq!(found.len(), 1, "{name} in {:#?}", self.outline());
        found[0]
    }

    fn parent_of(&self, of: &Received) -> Option<&Received> {
        self.spans.get(&of.parent())
    }

    /// Every span hangs, over its parents, on what the client does.
    fn is_connected(&self) -> bool {
        self.spans.values().all(|span| self.reaches_the_client(span))
    }

    fn reaches_the_client(&self, span: &Received) -> bool {
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
        let name = |it: Option<&Received>| it.map_or("?", |it| it.span.name.as_str()).to_owned();
        let line = |it: &Received| format!("{}: {} < {}", it.service, it.span.name, name(self.parent_of(it)));
        self.spans.values().map(line).collect()
    }
}

/// A lead that works, has a helper work for it, and finishes; `second` is its second command.
fn workspace(directory: &Path, second: &str) -> PathBuf {
    let root = directory.join("team");
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write(".openharness/agents/lead.md", "---\nmodel: workspace/lead\nsubagents: [helper]\n---\nYou lead.\n");
    write(".openharness/agents/helper.md", "---\nmode: subagent\nmodel: workspace/helper\n---\nYou help.\n");
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

/// With a key, which has to be remembered: such a run is not granted with its submit, and a token wakes its worker.
async fn ask(cli: &Cli, root: &Path) -> String {
    let directory = root.to_str().unwrap();
    let arguments =
        ["run", "go", "--session", "team", "--dir", directory, "--detach", "--idempotency-key", "go"];
    let submitted = cli.traced(&traceparent()).run(&arguments).await;
    assert_eq!(submitted.code, 0, "{}", submitted.stderr);
    submitted.stdout.trim().to_owned()
}

/// Something is delivered only to those who are there: the reader's place is taken before it gets the first events. Until then a
/// command may wait for the file `watched`.
async fn complete(cli: &Cli, run: &str, root: &Path) {
    let mut watch = cli.start(&["watch", run, "--json"]);
    wait_for("a reader", PATIENCE, || std::future::ready(!watch.documents().is_empty())).await;
    fs::write(root.join("watched"), "").unwrap();
    assert_eq!(watch.exit_code().await, 0, "{}", watch.stderr());
    let done = cli.one(&["runs", "show", run]).await;
    assert_eq!(done["state"], "completed", "{done}");
}

/// What holds for every trace of this workspace, whatever happened to its workers.
fn check(trace: &Trace, root: &Path) {
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
    // It lasts for as long as the child does.
    assert!(delegation.span.start_time_unix_nano <= child.span.start_time_unix_nano);
    assert!(delegation.span.end_time_unix_nano >= child.span.end_time_unix_nano);

    for attempt in trace.named("attempt") {
        let above = trace.parent_of(attempt).unwrap();
        assert_eq!(above.span.name, "run message");
        assert_eq!(attempt.span.kind, SpanKind::Consumer as i32);
    }
    let questions: Vec<&Received> =
        trace.spans.values().filter(|it| it.span.name.starts_with("chat ")).collect();
    assert_eq!(questions.len(), 5, "{:#?}", trace.outline());
    for question in questions {
        assert_eq!(trace.parent_of(question).unwrap().span.name, "attempt");
        assert_eq!(question.span.kind, SpanKind::Client as i32);
        assert_eq!(question.attribute("gen_ai.operation.name").as_deref(), Some("chat"));
        assert_eq!(question.attribute("gen_ai.provider.name").as_deref(), Some("scripted"));
        for name in ["gen_ai.request.model", "gen_ai.usage.input_tokens", "gen_ai.response.finish_reasons"] {
            assert!(question.attribute(name).is_some(), "{name} of {question:?}");
        }
    }
    assert!(
        trace.named("execute_tool Bash").iter().all(|it| trace.parent_of(it).unwrap().span.name == "attempt")
    );
    let first = trace.named("execute_tool Bash")[0];
    assert_eq!(first.attribute("process.exit.code").as_deref(), Some("0"));
    assert_eq!(first.attribute("remuda.sandbox.backend"), None);
    // The command knew where it stood.
    let told = fs::read_to_string(root.join("traceparent")).unwrap();
    assert_eq!(told.trim(), format!("00-{TRACE}-{}-01", first.id()));

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
async fn a_run_of_two_agents_is_one_trace_over_all_processes() {
    let place = temporary_directory();
    let collector = Collector::start().await;
    let otlp = [("REMUDA_TELEMETRY__OTLP_ENDPOINT", collector.endpoint.as_str())];
    let cluster = Cluster::start_with(&nats_binaries().remove(0), 2, &otlp).await;
    let root = workspace(place.path(), "until [ -e watched ]; do sleep 0.02; done");
    let run = ask(&cluster.cli, &root).await;
    complete(&cluster.cli, &run, &root).await;
    let trace = collector.whole_trace().await;
    check(&trace, &root);
    let services: HashSet<&str> = trace.spans.values().map(|it| it.service.as_str()).collect();
    assert_eq!(services, HashSet::from(["remuda-control-plane", "remuda-worker", "remuda-stream"]));
    assert!(trace.spans.values().all(|it| !it.has_failed()), "{:#?}", trace.outline());
    // From its submission on it waits, until somebody works on it.
    let parent = trace.named("run message")[0];
    let first = |name: &str| trace.named(name).into_iter().find(|it| it.parent() == parent.id()).unwrap();
    let (wait, attempt) = (first("wait in queue"), first("attempt"));
    assert_eq!(wait.span.start_time_unix_nano, parent.span.start_time_unix_nano);
    assert_eq!(wait.span.end_time_unix_nano, attempt.span.start_time_unix_nano);
    // Nothing of the run is in a trace of its own.
    let mut by_trace: HashMap<String, Vec<String>> = HashMap::new();
    for received in collector.received() {
        by_trace.entry(hex(&received.span.trace_id)).or_default().push(received.span.name);
    }
    let strays =
        by_trace.iter().filter(|(id, names)| *id != TRACE && names.iter().any(|name| name == "attempt"));
    assert_eq!(strays.count(), 0, "{by_trace:?}");
}

/// Where a worker has offered room, no token is needed.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_with_a_submit_is_in_the_trace() {
    let collector = Collector::start().await;
    let otlp = [("REMUDA_TELEMETRY__OTLP_ENDPOINT", collector.endpoint.as_str())];
    let cluster = Cluster::start_with(&nats_binaries().remove(0), 1, &otlp).await;
    let cli = cluster.cli.traced(&traceparent());
    // The first ones may come before the offer does, and those of a session that is in hand are its owner's.
    let granted = || async {
        let ran = cli.run(&["run", "--tool", "noop"]).await;
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        collector.received().into_iter().find(|it| it.span.name == "send grant")
    };
    let sent = wait_for("a grant", PATIENCE, granted).await;
    let run = || {
        let all = collector.received();
        let above = all.into_iter().find(|it| it.id() == sent.parent());
        std::future::ready(above)
    };
    let run = wait_for("its run", PATIENCE, run).await;
    assert_eq!((run.span.name.as_str(), sent.span.kind), ("run tools", SpanKind::Producer as i32));
    assert_eq!(sent.service, "remuda-control-plane");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_stays_whole_when_a_worker_is_killed() {
    let place = temporary_directory();
    let collector = Collector::start().await;
    let otlp = [("REMUDA_TELEMETRY__OTLP_ENDPOINT", collector.endpoint.as_str())];
    let mut cluster = Cluster::start_with(&nats_binaries().remove(0), 1, &otlp).await;
    let root = workspace(place.path(), "touch begun; sleep 600");
    let run = ask(&cluster.cli, &root).await;
    let begun = root.join("begun");
    wait_for("the command", PATIENCE, || std::future::ready(begun.try_exists().unwrap())).await;
    cluster.workers[0].process.kill();
    cluster.workers.push(cluster.services.worker().await);
    complete(&cluster.cli, &run, &root).await;
    let trace = collector.whole_trace().await;
    check(&trace, &root);

    let lost: Vec<&Received> = trace.named("attempt").into_iter().filter(|it| it.has_failed()).collect();
    assert_eq!(lost.len(), 1, "{:#?}", trace.outline());
    assert_eq!(lost[0].attribute("remuda.run.outcome").as_deref(), Some("lost"));
    assert_eq!(lost[0].service, "remuda-control-plane", "told by whoever took the session back");
    // Who went on points at what was lost.
    let links = |it: &&&Received| it.span.links.iter().any(|link| link.span_id == lost[0].span.span_id);
    assert!(trace.named("attempt").iter().any(|it| links(&it)), "{:#?}", trace.outline());
    let interrupted = trace.named("execute_tool Bash")[1];
    assert_eq!(interrupted.attribute("remuda.call.status").as_deref(), Some("interrupted"));
    assert_eq!(interrupted.parent(), lost[0].id());
}

#[tokio::test]
async fn a_waterfall_needs_no_collector() {
    let place = temporary_directory();
    let dev = Dev::start().await;
    let root = workspace(place.path(), "exit 3");
    let run = ask(&dev.cli, &root).await;
    complete(&dev.cli, &run, &root).await;

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
