use std::{collections::BTreeSet, fs, time::Duration};

use toml::Table;

use super::*;
use crate::{
    secret_url::SecretUrl,
    source_parser::{known_keys, variable_of},
    tree::{LogFormat, RequireKeys},
};

/// Options that ignore the machine the test runs on.
fn options() -> LoadOptions {
    LoadOptions { search: Vec::new(), ..LoadOptions::default() }
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn with_env(variables: &[(&str, &str)]) -> LoadOptions {
    LoadOptions { env: pairs(variables), ..options() }
}

struct TempFile {
    dir: tempfile::TempDir,
}

impl TempFile {
    fn new(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("remuda.toml"), text).unwrap();
        Self { dir }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("remuda.toml")
    }

    fn options(&self) -> LoadOptions {
        LoadOptions { file: Some(self.path()), ..options() }
    }
}

fn messages(options: &LoadOptions) -> Vec<String> {
    match Config::load(options) {
        Ok(_) => Vec::new(),
        Err(error) => error.problems().iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn default_file_contains_every_key_with_its_default() {
    let parsed: Config = toml::from_str(Config::default_file()).unwrap();
    assert_eq!(parsed, Config::default());

    let table: Table = Config::default_file().parse().unwrap();
    let mut written = BTreeSet::new();
    for (name, value) in table {
        match value {
            toml::Value::Table(section) => written.extend(section.keys().map(|key| format!("{name}.{key}"))),
            _ => drop(written.insert(name)),
        }
    }
    let expected: BTreeSet<String> = known_keys().into_iter().map(|(key, _)| key).collect();
    assert_eq!(written, expected);
}

#[test]
fn defaults_apply_without_sources() {
    let config = Config::load(&options()).unwrap();
    assert_eq!(config, Config::default());
    config.validate().unwrap();
}

#[test]
fn later_sources_override_earlier_ones() {
    let file =
        TempFile::new("[worker]\nslots = 2\nturn = 3\npool = \"file\"\n[telemetry]\nsample_ratio = 1\n");
    let loaded = Config::load_with_origins(&LoadOptions {
        env: pairs(&[("REMUDA_WORKER__SLOTS", "4"), ("REMUDA_WORKER__TURN", "5"), ("PATH", "/bin")]),
        overrides: pairs(&[("worker.slots", "6")]),
        ..file.options()
    })
    .unwrap();
    let worker = &loaded.config.worker;
    assert_eq!((worker.slots, worker.turn, worker.pool.as_str()), (6, 5, "file"));
    assert_eq!(loaded.file, Some(file.path()));
    assert_eq!(loaded.variables().collect::<Vec<_>>(), ["REMUDA_WORKER__TURN"]);
    assert_eq!(loaded.origins["worker.slots"], Origin::CommandLine);
    assert_eq!(loaded.origins["worker.pool"], Origin::File(file.path()));
}

#[test]
fn list_replaces_the_list_of_an_earlier_source() {
    let file = TempFile::new("[nats]\nservers = [\"nats://a:1\", \"nats://b:2\"]\n");
    let variable = LoadOptions { env: pairs(&[("REMUDA_NATS__SERVERS", "nats://c:3")]), ..file.options() };
    assert_eq!(Config::load(&file.options()).unwrap().nats.servers.len(), 2);
    assert_eq!(Config::load(&variable).unwrap().nats.servers, [SecretUrl::new("nats://c:3")]);
}

#[test]
fn every_key_can_be_set_by_its_variable() {
    for (key, default) in known_keys() {
        let text = match &default {
            toml::Value::String(text) => text.clone(),
            toml::Value::Array(items) => {
                items.iter().filter_map(|item| item.as_str()).collect::<Vec<_>>().join(",")
            }
            other => other.to_string(),
        };
        let config = Config::load(&with_env(&[(&variable_of(&key), &text)])).unwrap();
        assert_eq!(config, Config::default(), "{key}");
    }
}

#[test]
fn variable_text_is_converted_to_the_type_of_its_key() {
    let config = Config::load(&with_env(&[
        ("REMUDA_NATS__SERVERS", "nats://a:1, nats://b:2,"),
        ("REMUDA_NATS__REPLICAS", "3"),
        ("REMUDA_TELEMETRY__SAMPLE_RATIO", "0.25"),
        ("REMUDA_TELEMETRY__FORMAT", "json"),
        ("REMUDA_TELEMETRY__TENANT_LABEL", "true"),
        ("REMUDA_SERVER__REQUIRE_KEYS", "always"),
        ("REMUDA_SERVER__LISTEN", "[::1]:0"),
        ("REMUDA_WORKER__KILL_GRACE", "2s 500ms"),
        ("REMUDA_TELEMETRY__METRICS_LISTEN", "127.0.0.1:9464"),
        ("REMUDA_STORE__URL", "postgres://u:p@h/d"),
    ]))
    .unwrap();
    assert_eq!(config.nats.servers, [SecretUrl::new("nats://a:1"), SecretUrl::new("nats://b:2")]);
    assert_eq!(config.nats.replicas, 3);
    assert!((config.telemetry.sample_ratio - 0.25).abs() < f64::EPSILON);
    assert_eq!(config.telemetry.format, LogFormat::Json);
    assert!(config.telemetry.tenant_label);
    assert_eq!(config.server.require_keys, RequireKeys::Always);
    assert_eq!(config.server.listen, "[::1]:0".parse().unwrap());
    assert_eq!(config.store.url.expose(), "postgres://u:p@h/d");
    assert_eq!(config.worker.kill_grace, Duration::from_millis(2_500));
    assert_eq!(config.telemetry.metrics_listen, Some("127.0.0.1:9464".parse().unwrap()));
}

#[test]
fn variables_that_are_not_settings_are_ignored() {
    let config = Config::load(&with_env(&[
        ("REMUDA_ENDPOINT", "http://127.0.0.1:1"),
        ("REMUDA_STREAM_ENDPOINT", "x"),
        ("REMUDA_API_KEY", "x"),
        ("REMUDA_CONFIG", ""),
        ("REMUDA_TEST_NATS", "x"),
        // Set by Kubernetes for the services remuda and remuda-stream.
        ("REMUDA_SERVICE_HOST", "10.0.0.1"),
        ("REMUDA_SERVICE_PORT", "7777"),
        ("REMUDA_SERVICE_PORT_GRPC", "7777"),
        ("REMUDA_PORT", "tcp://10.0.0.1:7777"),
        ("REMUDA_PORT_7777_TCP_ADDR", "10.0.0.1"),
        ("REMUDA_STREAM_SERVICE_HOST", "10.0.0.2"),
        ("REMUDA_STREAM_PORT_7778_TCP", "tcp://10.0.0.2:7778"),
    ]));
    assert_eq!(config.unwrap(), Config::default());
}

#[test]
fn error_names_key_file_and_expectation_of_an_invalid_value() {
    for (text, key, expected) in [
        ("worker = 3", "worker", "expected a section [worker], found integer"),
        ("[worker]\nslot = 3", "worker.slot", "unknown key; did you mean worker.slots?"),
        ("[wroker]\nslots = 3", "wroker", "unknown key; did you mean worker?"),
        ("slots = 3", "slots", "unknown key; did you mean worker.slots?"),
        ("[server]\nslots = 3", "server.slots", "unknown key; did you mean worker.slots?"),
        ("[worker]\ncolour = 3", "worker.colour", "unknown key"),
        ("[worker.slots]\nx = 3", "worker.slots", "expected a whole number, found table"),
        ("[worker]\nslots = \"16\"", "worker.slots", "expected a whole number, found string"),
        ("[worker]\nslots = 1.5", "worker.slots", "expected a whole number, found float"),
        ("[worker]\nslots = true", "worker.slots", "expected a whole number, found boolean"),
        ("[worker]\nslots = -1", "worker.slots", "expected a whole number from 0 to 4294967295, found -1"),
        ("[worker]\nslots = 99999999999", "worker.slots", "expected a whole number from 0 to 4294967295"),
        ("[worker]\nslots = 0", "worker.slots", "expected 1 to 4096, found 0"),
        ("[worker]\nslots = 4097", "worker.slots", "expected 1 to 4096, found 4097"),
        ("[worker]\nturn = 0", "worker.turn", "expected 1 to 1000000, found 0"),
        ("[worker]\npool = \"a.b\"", "worker.pool", "expected 1 to 32 characters of a-z, 0-9, - and _"),
        ("[worker]\npool = 7", "worker.pool", "expected a string in quotes, found integer"),
        ("[worker]\nlease = 15", "worker.lease", "expected a string in quotes, found integer"),
        ("[worker]\nlease = \"15 parsecs\"", "worker.lease", "expected a duration such as 500ms, 15s or 24h"),
        ("[worker]\nlease = \"-1s\"", "worker.lease", "expected a duration"),
        ("[worker]\nlease = \"8s\"", "worker.lease", "expected at least three times worker.heartbeat (9s)"),
        (
            "[server]\nbody_memory_per_tenant = \"1MiB\"",
            "server.body_memory_per_tenant",
            "expected at least 16MiB",
        ),
        ("[server]\nbody_memory = \"32MiB\"", "server.body_memory", "server.body_memory_per_tenant (64MiB)"),
        ("[server]\nbody_memory = \"much\"", "server.body_memory", "512MiB"),
        ("[server]\nallowed_hosts = [\"http://x\"]", "server.allowed_hosts", "expected names such as"),
        ("[sandbox]\nreadable = [\"tools\"]", "sandbox.readable", "expected absolute paths, found tools"),
        ("[worker]\nheartbeat = \"0s\"", "worker.heartbeat", "expected 10ms to 1h, found 0s"),
        ("[reconciler]\nlease = \"9s\"", "reconciler.lease", "at least twice reconciler.interval (10s)"),
        ("[server]\nlisten = \"localhost\"", "server.listen", "expected an IP address with a port"),
        ("[server]\nlisten = \"127.0.0.1:99999\"", "server.listen", "expected an IP address with a port"),
        ("[server]\nlisten = \"0.0.0.0:7778\"", "stream.listen", "expected another port than server.listen"),
        (
            "[server]\nrequire_keys = \"no\"",
            "server.require_keys",
            "expected one of `auto`, `always`, `never`",
        ),
        (
            "[server]\nrequire_keys = false",
            "server.require_keys",
            "expected a string in quotes, found boolean",
        ),
        ("[server]\nstream_endpoint = \"a:1\"", "server.stream_endpoint", "expected http://host:port"),
        ("[store]\nurl = \"mysql://x\"", "store.url", "expected postgres://"),
        ("[nats]\nservers = \"nats://a\"", "nats.servers", "expected a list of strings, found string"),
        ("[nats]\nservers = [1]", "nats.servers", "expected a list of strings, found a list of other values"),
        ("[nats]\nservers = []", "nats.servers", "expected at least one server"),
        ("[nats]\nservers = [\"nats://a,nats://b\"]", "nats.servers", "entry 1 holds a comma"),
        ("[nats]\nservers = [\"a:4222\"]", "nats.servers", "expected nats://host:port"),
        ("[nats]\nreplicas = 2", "nats.replicas", "expected 1, 3 or 5, found 2"),
        ("[nats]\nprefix = \"a.>\"", "nats.prefix", "expected 1 to 32 characters"),
        ("[telemetry]\nsample_ratio = 1.5", "telemetry.sample_ratio", "expected 0 to 1, found 1.5"),
        ("[telemetry]\nsample_ratio = nan", "telemetry.sample_ratio", "expected 0 to 1, found NaN"),
        ("[telemetry]\ntenant_label = 1", "telemetry.tenant_label", "expected true or false, found integer"),
        ("[telemetry]\nmax_label_values = 0", "telemetry.max_label_values", "expected 1 to 1000, found 0"),
        (
            "[telemetry]\nmetrics_listen = \"9464\"",
            "telemetry.metrics_listen",
            "expected an IP address with a port",
        ),
        (
            "[telemetry]\nmetrics_listen = \"0.0.0.0:7778\"",
            "telemetry.metrics_listen",
            "expected another port than stream.listen",
        ),
        ("[webhooks]\ntimeout = \"2m\"", "webhooks.timeout", "expected 100ms to 1m, found 2m"),
        ("[webhooks]\nmax_attempts = 0", "webhooks.max_attempts", "expected 1 to 100, found 0"),
        ("[webhooks]\nretry_delay = \"0s\"", "webhooks.retry_delay", "expected 1ms to 1h, found 0s"),
        ("[webhooks]\nallowed = \"x\"", "webhooks.allowed", "expected a list of strings, found string"),
        (
            "[limits]\nruns_kept = \"30s\"",
            "limits.runs_kept",
            "expected 0s, which is for ever, or at least 1m, found 30s",
        ),
        ("[limits]\nsessions_kept = \"4000days\"", "limits.sessions_kept", "expected 0s to 9years 11months"),
        ("[limits]\nmax_lost_attempts = 0", "limits.max_lost_attempts", "expected 1 to 1000, found 0"),
        ("[telemetry]\nformat = \"xml\"", "telemetry.format", "expected one of `auto`, `pretty`, `json`"),
        ("data_dir = 3", "data_dir", "expected a string in quotes, found integer"),
    ] {
        let file = TempFile::new(text);
        let found = messages(&file.options());
        assert_eq!(found.len(), 1, "{text}: {found:?}");
        assert!(found[0].starts_with(&format!("{key} (")), "{text}: {found:?}");
        assert!(found[0].contains(expected), "{text}: {found:?}");
        // The problem is reported for the port that is at its default.
        let origin =
            if key == "stream.listen" { "default".to_owned() } else { file.path().display().to_string() };
        assert!(found[0].contains(&origin), "{text}: {found:?}");
    }
}

#[test]
fn retention_is_unlimited_by_default() {
    let limits = Config::default().limits;
    for kept in [limits.events_kept, limits.runs_kept, limits.sessions_kept] {
        assert_eq!(kept, Duration::ZERO);
    }
    let file = TempFile::new("[limits]\nruns_kept = \"30days\"\nsessions_kept = \"0s\"");
    let limits = Config::load(&file.options()).unwrap().limits;
    assert_eq!(limits.runs_kept, Duration::from_secs(30 * 24 * 60 * 60));
    assert_eq!(limits.sessions_kept, Duration::ZERO);
}

#[test]
fn error_names_the_invalid_variable_or_flag() {
    for (variable, text, expected) in [
        (
            "REMUDA_WORKER__SLOTS",
            "many",
            "worker.slots (REMUDA_WORKER__SLOTS): expected a whole number, found \"many\"",
        ),
        (
            "REMUDA_WORKER__SLOTS",
            "",
            "worker.slots (REMUDA_WORKER__SLOTS): expected a whole number, found \"\"",
        ),
        ("REMUDA_TELEMETRY__SAMPLE_RATIO", "x", "expected a number, found \"x\""),
        (
            "REMUDA_WORKER__SLOT",
            "1",
            "REMUDA_WORKER__SLOT: unknown variable, expected REMUDA_<SECTION>__<KEY>; did you mean REMUDA_WORKER__SLOTS?",
        ),
        ("REMUDA_WORKER_SLOTS", "1", "did you mean REMUDA_WORKER__SLOTS?"),
        ("REMUDA_COLOUR", "1", "REMUDA_COLOUR: unknown variable, expected REMUDA_<SECTION>__<KEY>"),
        ("REMUDA_WORKER__PORT", "tcp://x", "unknown variable"),
        ("REMUDA_DATA_DIR", "a\u{fffd}b", "data_dir (REMUDA_DATA_DIR): expected UTF-8 text"),
        ("REMUDA_WORKER__LEASE", "1s", "worker.lease (REMUDA_WORKER__LEASE): expected at least three times"),
    ] {
        let found = messages(&with_env(&[(variable, text)]));
        assert_eq!(found.len(), 1, "{variable}: {found:?}");
        assert!(found[0].contains(expected), "{variable}: {found:?}");
    }
    let flags =
        LoadOptions { overrides: pairs(&[("server.listne", "x"), ("server.listen", "x")]), ..options() };
    let found = messages(&flags);
    assert_eq!(found[0], "server.listne (command line): unknown key; did you mean server.listen?");
    assert!(found[1].starts_with("server.listen (command line): "), "{found:?}");
}

#[test]
fn all_problems_are_reported_at_once() {
    let file = TempFile::new("[worker]\nslots = \"x\"\nturns = 1\n");
    let options = LoadOptions { env: pairs(&[("REMUDA_X", "1")]), ..file.options() };
    let error = Config::load(&options).unwrap_err();
    assert_eq!(error.problems().len(), 3);
    assert_eq!(error.to_string().lines().count(), 4);
}

#[test]
fn error_names_the_file_that_cannot_be_read() {
    let missing = LoadOptions { file: Some("/nonexistent/remuda.toml".into()), ..options() };
    assert_eq!(messages(&missing), ["/nonexistent/remuda.toml: the file does not exist"]);
    let named = with_env(&[("REMUDA_CONFIG", "/nonexistent/remuda.toml")]);
    assert_eq!(messages(&named), ["/nonexistent/remuda.toml: the file does not exist"]);

    let directory = tempfile::tempdir().unwrap();
    let found = messages(&LoadOptions { file: Some(directory.path().to_owned()), ..options() });
    assert!(found[0].contains("expected a readable file"), "{found:?}");

    let file = TempFile::new("");
    fs::write(file.path(), [0xff, 0xfe]).unwrap();
    assert!(messages(&file.options())[0].ends_with("expected UTF-8 text"));
}

#[test]
fn syntax_error_names_the_line_without_its_secret() {
    let file = TempFile::new("[store]\nurl = \"postgres://u:hunter2@h/d\n");
    let found = messages(&file.options());
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("line 2: expected valid TOML"), "{found:?}");
    assert!(!found[0].contains("hunter2"), "{found:?}");
    let duplicate = TempFile::new("[worker]\nslots = 1\nslots = 2\n");
    assert!(messages(&duplicate.options())[0].contains("line 3: expected valid TOML: duplicate key"));
}

#[test]
fn first_existing_file_is_read() {
    let (first, second) = (TempFile::new("[worker]\nslots = 1"), TempFile::new("[worker]\nslots = 2"));
    let search = vec!["/nonexistent/remuda.toml".into(), first.path(), second.path()];
    let found = LoadOptions { search, ..options() };
    assert_eq!(Config::load(&found).unwrap().worker.slots, 1);
    let named = LoadOptions { env: pairs(&[("REMUDA_CONFIG", second.path().to_str().unwrap())]), ..found };
    assert_eq!(Config::load(&named).unwrap().worker.slots, 2);
    let flag = LoadOptions { file: Some(first.path()), ..named };
    assert_eq!(Config::load(&flag).unwrap().worker.slots, 1);
}

#[test]
fn directories_follow_the_environment_and_become_absolute() {
    let dirs = |env: &[(&str, &str)]| {
        let config = Config::load(&with_env(env)).unwrap();
        (config.data_dir.display().to_string(), config.workspaces.root.display().to_string())
    };
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(dirs(&[]), pair("", ""));
    assert_eq!(dirs(&[("HOME", "/h")]), pair("/h/.local/share/remuda", "/h/.local/share/remuda/workspaces"));
    assert_eq!(dirs(&[("HOME", "/h"), ("XDG_DATA_HOME", "/x")]).0, "/x/remuda");
    assert_eq!(dirs(&[("HOME", "/h"), ("XDG_DATA_HOME", "x")]).0, "/h/.local/share/remuda");
    assert_eq!(dirs(&[("HOME", "/h"), ("REMUDA_DATA_DIR", "~/d")]), pair("/h/d", "/h/d/workspaces"));
    assert_eq!(dirs(&[("REMUDA_DATA_DIR", "/d"), ("REMUDA_WORKSPACES__ROOT", "/w")]), pair("/d", "/w"));
    let here = std::env::current_dir().unwrap().join("d");
    assert_eq!(dirs(&[("REMUDA_DATA_DIR", "d")]).0, here.display().to_string());
}

#[test]
fn printed_configuration_masks_secrets() {
    let config = Config::load(&with_env(&[
        ("REMUDA_STORE__URL", "postgres://user:hunter2@db/remuda"),
        ("REMUDA_NATS__SERVERS", "nats://hunter2@n:4222"),
    ]))
    .unwrap();
    for shown in [config.to_toml(), format!("{config:?}")] {
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("postgres://user:***@db/remuda"), "{shown}");
    }
    let again: Config = toml::from_str(&Config::default().to_toml()).unwrap();
    assert_eq!(again, Config::default());
}

#[test]
fn api_keys_are_required_except_embedded_on_loopback() {
    let (loopback, open) = ("127.0.0.1:1".parse().unwrap(), "0.0.0.0:1".parse().unwrap());
    assert!(!RequireKeys::Auto.resolve(true, loopback));
    assert!(RequireKeys::Auto.resolve(true, open));
    assert!(RequireKeys::Auto.resolve(false, loopback));
    assert!(RequireKeys::Always.resolve(true, loopback));
    assert!(!RequireKeys::Never.resolve(false, open));
}
