//! Split mode: a control plane, workers and a stream service as separate processes on PostgreSQL and NATS.

use std::{fs, path::Path};

use async_nats::ConnectOptions;
use remuda_client::Client;
use remuda_testkit::{NatsServer, TestDatabase};
use remuda_transport::{BusRole, NatsAuth};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Cli, CommandOutput, Server, temporary_directory, variables};

const CREDENTIALS: &str = "REMUDA_NATS__CREDENTIALS_FILE";

/// A database, a nats-server with credentials for each role, and the settings that point to them.
#[derive(Debug)]
pub(crate) struct Services {
    pub(crate) variables: Vec<(String, String)>,
    pub(crate) nats: NatsServer,
    pub(crate) database: TestDatabase,
    /// A file for each role.
    credentials: TempDir,
    // Dropped last: tools may write into it until the processes are gone.
    _workspaces: TempDir,
}

impl Services {
    pub(crate) fn start(nats: &Path) -> Self {
        let auth = NatsAuth::with_keys("remuda").unwrap();
        let nats = NatsServer::start_with(nats, &auth.server_config()).unwrap();
        let credentials = temporary_directory();
        for role in BusRole::ALL {
            let key = auth.credentials_file(role).unwrap();
            fs::write(credentials.path().join(role.as_str()), key).unwrap();
        }
        let database = TestDatabase::create().unwrap();
        let workspaces = temporary_directory();
        let variables = variables(&[
            ("REMUDA_STORE__URL", &database.url()),
            ("REMUDA_NATS__SERVERS", &nats.url()),
            (CREDENTIALS, credentials.path().join("admin").to_str().unwrap()),
            ("REMUDA_WORKSPACES__ROOT", workspaces.path().to_str().unwrap()),
            ("REMUDA_WORKSPACES__ALLOWED", std::env::temp_dir().to_str().unwrap()),
            // Short, so that dead workers are detected and missed wake-ups are repaired within seconds.
            ("REMUDA_WORKER__LEASE", "3s"),
            ("REMUDA_WORKER__HEARTBEAT", "500ms"),
            ("REMUDA_RECONCILER__INTERVAL", "500ms"),
            ("REMUDA_RECONCILER__LEASE", "2s"),
        ]);
        Self { variables, nats, database, credentials, _workspaces: workspaces }
    }

    /// A client of NATS with the credentials of a role.
    pub(crate) async fn nats_client(&self, role: BusRole) -> async_nats::Client {
        let key = fs::read_to_string(self.credentials.path().join(role.as_str())).unwrap();
        let seed = key.lines().last().unwrap().to_owned();
        ConnectOptions::with_nkey(seed).connect(self.nats.url()).await.unwrap()
    }

    /// Runs `remuda` with these settings.
    pub(crate) async fn run(&self, arguments: &[&str]) -> CommandOutput {
        CommandOutput::run(arguments, &self.variables).await
    }

    pub(crate) async fn migrate(&self) {
        let done = self.run(&["migrate", "--json"]).await;
        assert_eq!(done.code, 0, "{}", done.stderr);
    }

    /// Creates a key and returns its id and its secret.
    pub(crate) async fn create_key(&self, tenant: &str, scopes: &[&str]) -> (String, String) {
        let mut arguments = vec!["keys", "create", "--tenant", tenant, "--json"];
        scopes.iter().for_each(|scope| arguments.extend(["--scope", scope]));
        let done = self.run(&arguments).await;
        assert_eq!(done.code, 0, "{}", done.stderr);
        let key: &Value = &done.documents()[0];
        (key["id"].as_str().unwrap().to_owned(), key["secret"].as_str().unwrap().to_owned())
    }

    /// Creates a key with the scope `operator` and returns its secret.
    pub(crate) async fn create_operator_key(&self) -> String {
        let done = self.run(&["keys", "create", "--scope", "operator", "--json"]).await;
        assert_eq!(done.code, 0, "{}", done.stderr);
        done.documents()[0]["secret"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn control_plane(&self, more: &[(&str, &str)]) -> Server {
        self.serve(&["control-plane", "--listen", "127.0.0.1:0"], more).await
    }

    pub(crate) async fn stream(&self) -> Server {
        self.serve(&["stream", "--listen", "127.0.0.1:0"], &[]).await
    }

    pub(crate) async fn worker(&self) -> Server {
        self.serve(&["worker"], &[]).await
    }

    pub(crate) async fn serve(&self, arguments: &[&str], more: &[(&str, &str)]) -> Server {
        // A process with all roles has the administrator's credentials.
        let role = BusRole::ALL.into_iter().find(|role| role.as_str() == arguments[0]);
        let file = self.credentials.path().join(role.unwrap_or(BusRole::Admin).as_str());
        let own = variables(&[(CREDENTIALS, file.to_str().unwrap())]);
        let all = [self.variables.clone(), own, variables(more)].concat();
        Server::start(arguments, &all).await
    }
}

/// A whole split deployment on one machine. Processes are dropped before the services they use.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) workers: Vec<Server>,
    pub(crate) control_plane: Server,
    pub(crate) stream: Server,
    /// Uses a key of the tenant `acme` with the scope `write`.
    pub(crate) cli: Cli,
    /// Uses a key of the operator.
    pub(crate) operator: Cli,
    pub(crate) services: Services,
}

impl Cluster {
    pub(crate) async fn start(nats: &Path, workers: usize) -> Self {
        Self::start_with(nats, workers, &[]).await
    }

    /// Like [`Cluster::start`], with more settings for all processes.
    pub(crate) async fn start_with(nats: &Path, workers: usize, more: &[(&str, &str)]) -> Self {
        let mut services = Services::start(nats);
        services.variables.extend(variables(more));
        services.migrate().await;
        let (_, secret) = services.create_key("acme", &["write"]).await;
        let operator = services.create_operator_key().await;
        let stream = services.stream().await;
        let control_plane =
            services.control_plane(&[("REMUDA_SERVER__STREAM_ENDPOINT", stream.endpoint())]).await;
        let workers = futures::future::join_all((0..workers).map(|_| services.worker())).await;
        let cli = Cli::new(control_plane.endpoint()).with_key(&secret);
        let operator = Cli::new(control_plane.endpoint()).with_key(&operator);
        Self { workers, control_plane, stream, cli, operator, services }
    }

    /// Registers a directory for acme with the command that the refusal of `run --dir` names.
    pub(crate) async fn register(&self, root: &Path) {
        let refused = self.cli.run(&["run", "x", "--dir", root.to_str().unwrap(), "--json"]).await;
        assert_eq!(refused.error(), ("permission_denied".to_owned(), "dir".to_owned()), "{refused:?}");
        let (_, command) = refused.stderr.split_once(": remuda workspace add ").unwrap();
        let name = command.split_whitespace().next().unwrap();
        let add = ["workspace", "add", name, root.to_str().unwrap(), "--tenant", "acme"];
        self.operator.one(&add).await;
    }

    pub(crate) fn client(&self) -> Client {
        self.cli.client()
    }
}
