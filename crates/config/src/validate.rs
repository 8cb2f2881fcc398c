//! Checks ranges and constraints between keys.

use std::{net::SocketAddr, ops::RangeInclusive, time::Duration};

use humantime::format_duration;

use remuda_domain::limits::MAX_MESSAGE_BYTES;

use crate::bytes::ByteSize;
use crate::tree::{
    Budget, Config, Context, Docker, Limits, Nats, Permissions, Rule, Server, Stream, Tls, Worker,
};

/// An invalid key and what was expected.
pub(crate) type Violation = (&'static str, String);

const LARGEST_BODY: u64 = MAX_MESSAGE_BYTES as u64;
const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// All violations.
pub(crate) fn violations(config: &Config) -> Vec<Violation> {
    let mut violations = Violations(Vec::new());
    violations.server(&config.server);
    violations.stream(&config.stream, &config.server);
    violations.tls(&config.tls);
    violations.store(&config.store);
    violations.nats(&config.nats);
    violations.worker(&config.worker);
    let reconciler = &config.reconciler;
    violations.duration("reconciler.interval", reconciler.interval, 10 * MILLISECOND..=HOUR);
    violations.duration("reconciler.lease", reconciler.lease, 100 * MILLISECOND..=HOUR);
    if reconciler.lease < reconciler.interval.saturating_mul(2) {
        let least = format_duration(reconciler.interval.saturating_mul(2));
        violations.add("reconciler.lease", format!("expected at least twice reconciler.interval ({least})"));
    }
    violations.limits(&config.limits);
    violations.docker(&config.docker);
    for path in config.sandbox.readable.iter().filter(|path| !path.is_absolute()) {
        violations.add("sandbox.readable", format!("expected absolute paths, found {}", path.display()));
    }
    let problems = config.workspaces.allowed.iter().map(|path| remuda_roots::check_allowed(path));
    if let Some(problem) = problems.filter_map(Result::err).next() {
        violations.add("workspaces.allowed", problem);
    }
    let root = &config.workspaces.root;
    if let Some(directory) = remuda_roots::system_directory(root) {
        let found = root.display();
        violations.add(
            "workspaces.root",
            format!("expected a directory outside of the system's ({directory}), found {found}"),
        );
    }
    violations.endpoint("tools.search_url", &config.tools.search_url);
    let webhooks = &config.webhooks;
    violations.duration("webhooks.timeout", webhooks.timeout, 100 * MILLISECOND..=60 * SECOND);
    violations.number("webhooks.max_attempts", webhooks.max_attempts, 1..=100);
    violations.duration("webhooks.retry_delay", webhooks.retry_delay, MILLISECOND..=HOUR);
    let models = &config.models;
    violations.duration("models.connect_timeout", models.connect_timeout, 100 * MILLISECOND..=HOUR);
    violations.duration("models.first_byte_timeout", models.first_byte_timeout, 100 * MILLISECOND..=HOUR);
    violations.duration("models.idle_timeout", models.idle_timeout, 100 * MILLISECOND..=HOUR);
    violations.duration("models.retry_delay", models.retry_delay, MILLISECOND..=HOUR);
    violations.number("models.max_attempts", models.max_attempts, 1..=20);
    violations.permissions(&config.permissions);
    violations.number("delegation.max_depth", config.delegation.max_depth, 1..=20);
    violations.context(&config.context);
    let cost = config.budget.run_cost;
    if !(0.0..=Budget::MAX_COST).contains(&cost) {
        violations
            .add("budget.run_cost", format!("expected 0 to {} dollars, found {cost}", Budget::MAX_COST));
    }
    violations.telemetry(config);
    violations.0
}

struct Violations(Vec<Violation>);

impl Violations {
    fn add(&mut self, key: &'static str, message: String) {
        self.0.push((key, message));
    }

    fn number(&mut self, key: &'static str, value: u32, range: RangeInclusive<u32>) {
        if !range.contains(&value) {
            self.add(key, format!("expected {} to {}, found {value}", range.start(), range.end()));
        }
    }

    fn duration(&mut self, key: &'static str, value: Duration, range: RangeInclusive<Duration>) {
        if !range.contains(&value) {
            let [start, end, value] = [*range.start(), *range.end(), value].map(format_duration);
            self.add(key, format!("expected {start} to {end}, found {value}"));
        }
    }

    /// An HTTP address, or empty.
    fn endpoint(&mut self, key: &'static str, value: &str) {
        let host = value.strip_prefix("http://").or_else(|| value.strip_prefix("https://"));
        if !value.is_empty() && host.is_none_or(|host| host.is_empty() || host.contains(char::is_whitespace))
        {
            self.add(key, "expected http://host:port or https://host:port".to_owned());
        }
    }

    /// A name that becomes part of NATS subjects.
    fn subject_token(&mut self, key: &'static str, value: &str) {
        let allowed =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_');
        if value.is_empty() || value.len() > 32 || !value.bytes().all(allowed) {
            self.add(key, "expected 1 to 32 characters of a-z, 0-9, - and _".to_owned());
        }
    }

    fn limits(&mut self, limits: &Limits) {
        let pending = limits.max_pending_runs_per_session;
        self.number("limits.max_pending_runs_per_session", pending, 1..=1_000_000);
        self.duration("limits.idempotency_ttl", limits.idempotency_ttl, SECOND..=365 * DAY);
        self.number("limits.max_lost_attempts", limits.max_lost_attempts, 1..=1000);
        self.duration("limits.events_kept", limits.events_kept, Duration::ZERO..=3650 * DAY);
        self.duration("limits.runs_kept", limits.runs_kept, Duration::ZERO..=3650 * DAY);
        self.duration("limits.sessions_kept", limits.sessions_kept, Duration::ZERO..=3650 * DAY);
        for (key, kept) in
            [("limits.runs_kept", limits.runs_kept), ("limits.sessions_kept", limits.sessions_kept)]
        {
            // A shorter time is probably a mistaken unit, and deletion cannot be undone.
            if !kept.is_zero() && kept < MINUTE {
                let found = format_duration(kept);
                self.add(key, format!("expected 0s, which is for ever, or at least 1m, found {found}"));
            }
        }
    }

    fn server(&mut self, server: &Server) {
        self.endpoint("server.stream_endpoint", &server.stream_endpoint);
        self.number("server.max_concurrent_streams", server.max_concurrent_streams, 1..=1_000_000);
        self.number("server.max_connections", server.max_connections, 1..=1_000_000);
        self.duration("server.request_deadline", server.request_deadline, 100 * MILLISECOND..=DAY);
        self.duration("server.keepalive", server.keepalive, SECOND..=HOUR);
        self.number("server.trusted_proxies", server.trusted_proxies, 0..=20);
        self.duration("server.body_timeout", server.body_timeout, 100 * MILLISECOND..=HOUR);
        for host in &server.allowed_hosts {
            let bare = !host.is_empty() && !host.contains(['/', '@']) && !host.contains(char::is_whitespace);
            if !bare || !host.is_ascii() {
                let message =
                    format!("expected names such as remuda.example.com or host:port, or *, found {host:?}");
                self.add("server.allowed_hosts", message);
            }
        }
        let (all, each) = (server.body_memory, server.body_memory_per_tenant);
        if each < LARGEST_BODY {
            let message = format!("expected at least {}, the largest body", ByteSize(LARGEST_BODY));
            self.add("server.body_memory_per_tenant", format!("{message}, found {}", ByteSize(each)));
        }
        if all < each {
            let message = format!("expected at least server.body_memory_per_tenant ({})", ByteSize(each));
            self.add("server.body_memory", format!("{message}, found {}", ByteSize(all)));
        }
    }

    fn stream(&mut self, stream: &Stream, server: &Server) {
        if overlap(stream.listen, server.listen) {
            self.add(
                "stream.listen",
                format!(
                    "expected another port than server.listen ({}), found {}",
                    server.listen, stream.listen
                ),
            );
        }
        self.number("stream.max_readers", stream.max_readers, 1..=1_000_000);
        self.number("stream.replay_batch", stream.replay_batch, 1..=10_000);
        self.duration("stream.catch_up", stream.catch_up, 10 * MILLISECOND..=HOUR);
    }

    fn tls(&mut self, tls: &Tls) {
        match (tls.is_enabled(), tls.key.as_os_str().is_empty()) {
            (true, true) => self.add("tls.key", "expected the private key of tls.certificate".to_owned()),
            (false, false) => self.add("tls.certificate", "expected the certificate of tls.key".to_owned()),
            _ => {}
        }
        self.duration("tls.reload", tls.reload, 10 * MILLISECOND..=DAY);
    }

    fn store(&mut self, store: &crate::tree::Store) {
        let known = ["postgres://", "postgresql://", "sqlite:"]
            .iter()
            .any(|scheme| store.url.expose().starts_with(scheme));
        if !store.url.is_empty() && !known {
            // The value is not shown: it may be a misplaced password.
            self.add(
                "store.url",
                "expected postgres://user:password@host/database or sqlite:path".to_owned(),
            );
        }
        self.number("store.max_connections", store.max_connections, 1..=1000);
        self.duration("store.connect_timeout", store.connect_timeout, MILLISECOND..=DAY);
    }

    fn nats(&mut self, nats: &Nats) {
        if nats.servers.is_empty() {
            self.add("nats.servers", "expected at least one server such as nats://127.0.0.1:4222".to_owned());
        }
        for (index, server) in nats.servers.iter().enumerate() {
            let number = index + 1;
            let url = server.expose();
            if url.contains(',') {
                self.add(
                    "nats.servers",
                    format!("expected one server per entry, entry {number} holds a comma"),
                );
                continue;
            }
            let known = ["nats://", "tls://", "ws://", "wss://"].iter().any(|scheme| url.starts_with(scheme));
            if !known || url.contains(char::is_whitespace) {
                self.add(
                    "nats.servers",
                    format!("expected nats://host:port, tls://…, ws://… or wss://… in entry {number}"),
                );
            }
        }
        if !nats.key.is_empty() && !nats.credentials_file.as_os_str().is_empty() {
            self.add("nats.key", "expected either nats.key or nats.credentials_file".to_owned());
        }
        self.subject_token("nats.prefix", &nats.prefix);
        if !matches!(nats.replicas, 1 | 3 | 5) {
            self.add("nats.replicas", format!("expected 1, 3 or 5, found {}", nats.replicas));
        }
        self.duration("nats.connect_timeout", nats.connect_timeout, MILLISECOND..=DAY);
    }

    fn worker(&mut self, worker: &Worker) {
        self.number("worker.slots", worker.slots, 1..=4096);
        self.subject_token("worker.pool", &worker.pool);
        self.duration("worker.lease", worker.lease, 100 * MILLISECOND..=HOUR);
        self.duration("worker.heartbeat", worker.heartbeat, 10 * MILLISECOND..=HOUR);
        // Two consecutive lost heartbeats must not lose the lease.
        if worker.lease < worker.heartbeat.saturating_mul(3) {
            let least = format_duration(worker.heartbeat.saturating_mul(3));
            self.add("worker.lease", format!("expected at least three times worker.heartbeat ({least})"));
        }
        self.duration("worker.drain_deadline", worker.drain_deadline, Duration::ZERO..=DAY);
        self.number("worker.turn", worker.turn, 1..=1_000_000);
        self.duration("worker.kill_grace", worker.kill_grace, Duration::ZERO..=60 * SECOND);
    }

    fn docker(&mut self, docker: &Docker) {
        let host = docker.host.as_str();
        let known = ["unix://", "tcp://", "http://"].iter().any(|scheme| host.starts_with(scheme));
        if !host.is_empty() && !known {
            self.add("docker.host", "expected unix:///path/to/socket or tcp://host:port".to_owned());
        }
        let numeric = |text: &str| text.parse::<u32>().is_ok_and(|id| id > 0);
        let user = docker.user.split_once(':');
        if !docker.user.is_empty() && !user.is_some_and(|(user, group)| numeric(user) && numeric(group)) {
            self.add("docker.user", "expected uid:gid, both above 0".to_owned());
        }
        if docker.spares().len() != docker.spare.len() {
            self.add("docker.spare", "expected entries like python:3.12=2".to_owned());
        }
        self.duration("docker.pause_after", docker.pause_after, Duration::ZERO..=DAY);
        self.duration("docker.remove_after", docker.remove_after, Duration::ZERO..=7 * DAY);
        self.number("docker.max_containers", docker.max_containers, 1..=4096);
    }

    fn permissions(&mut self, permissions: &Permissions) {
        if let Some(problem) = Rule::problem(&permissions.rules) {
            self.add("permissions.rules", problem);
        }
        if permissions.approvers.len() > 100
            || permissions.approvers.iter().any(|name| name.trim().is_empty())
        {
            self.add("permissions.approvers", "expected names of API keys, at most 100".to_owned());
        }
        if !permissions.expire_after.is_zero() {
            self.duration("permissions.expire_after", permissions.expire_after, SECOND..=365 * DAY);
        }
    }

    fn context(&mut self, context: &Context) {
        const MOST: f64 = 0.95;
        self.number("context.window", context.window, 1000..=100_000_000);
        let (clear, summarize) = (context.clear_at, context.summarize_at);
        // Negated comparisons, so that NaN is rejected.
        if !(summarize > 0.0 && summarize <= MOST) {
            self.add(
                "context.summarize_at",
                format!("expected more than 0 and at most {MOST}, found {summarize}"),
            );
        } else if !(clear > 0.0 && clear < summarize) {
            let message = format!("expected more than 0 and less than context.summarize_at ({summarize})");
            self.add("context.clear_at", format!("{message}, found {clear}"));
        }
        self.number("context.keep_results", context.keep_results, 0..=1000);
        self.number("context.max_failures", context.max_failures, 1..=100);
    }

    fn telemetry(&mut self, config: &Config) {
        let telemetry = &config.telemetry;
        for (key, other) in [("server.listen", config.server.listen), ("stream.listen", config.stream.listen)]
        {
            if let Some(found) = telemetry.metrics_listen.filter(|address| overlap(*address, other)) {
                let message = format!("expected another port than {key} ({other}), found {found}");
                self.add("telemetry.metrics_listen", message);
            }
        }
        self.endpoint("telemetry.otlp_endpoint", &telemetry.otlp_endpoint);
        if telemetry.service_name.is_empty() {
            self.add("telemetry.service_name", "expected a name".to_owned());
        }
        if !(0.0..=1.0).contains(&telemetry.sample_ratio) {
            self.add("telemetry.sample_ratio", format!("expected 0 to 1, found {}", telemetry.sample_ratio));
        }
        self.number("telemetry.max_label_values", telemetry.max_label_values, 1..=1000);
    }
}

/// Whether two listeners would use the same port. Port 0 stands for a free one.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let same_host = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() != 0 && a.port() == b.port() && same_host
}
