//! The private server of the demo: an embedded node in this process with two tenants and an API key for each.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use remuda_client::{Client, ClientOptions};
use remuda_config::{Config, RequireKeys};
use remuda_domain::{Error, error::Result, identity::Scope};
use remuda_grpc::keys;
use remuda_node::{Mode, Node, Options, Roles, workspace_root};
use remuda_store::NewKey;
use remuda_telemetry::Levels;

use super::scenario::TENANTS;
use crate::serve::VERSION;

/// Short, because the results of an interrupted demo are not needed.
const DRAIN_DEADLINE: Duration = Duration::from_millis(100);

/// The address of the server and the API keys of the tenants.
#[derive(Debug)]
pub(super) struct DemoServer {
    pub address: SocketAddr,
    config: Config,
    /// The secret of each tenant's key, in the order of [`TENANTS`].
    secrets: Vec<String>,
}

impl DemoServer {
    /// Starts the server in `directory`. The caller runs and stops the returned node.
    pub(super) async fn start(directory: &Path) -> Result<(Node, Self)> {
        let mut config = Config { data_dir: directory.join("data"), ..Config::default() };
        config.workspaces.root = directory.join("workspaces");
        config.server.listen = SocketAddr::from(([127, 0, 0, 1], 0));
        config.server.require_keys = RequireKeys::Always;
        config.worker.drain_deadline = DRAIN_DEADLINE;
        let guard = std::env::current_exe()
            .map_err(|error| Error::internal("the path of this program is unknown").with_source(error))?;
        let node = Node::start(Options {
            config: config.clone(),
            mode: Mode::Embedded,
            roles: Roles::ALL,
            version: VERSION.to_owned(),
            levels: Levels::new("info").map_err(|error| {
                Error::internal("the log filter of the demo is invalid").with_source(error)
            })?,
            tls: None,
            guard: Some((guard, vec!["guard".to_owned()])),
        })
        .await?;
        let address = node.address().ok_or_else(|| Error::internal("the node has no address"))?;
        let store = &node.connections().store;
        let mut secrets = Vec::new();
        for tenant in TENANTS {
            let root = workspace_root(&config, tenant)?;
            let tenant = store.ensure_tenant(tenant, &root.to_string_lossy()).await?.id;
            let secret = keys::generate();
            let key = NewKey {
                tenant: Some(tenant),
                name: "demo".to_owned(),
                secret_hash: keys::hash(&secret),
                scopes: vec![Scope::Write],
                expires_at: None,
            };
            store.create_key(&key).await?;
            secrets.push(secret);
        }
        Ok((node, Self { address, config, secrets }))
    }

    /// A new client with the key of a tenant.
    pub(super) fn client(&self, tenant: &str) -> Result<Client> {
        let index = TENANTS.iter().position(|name| *name == tenant);
        let secret = index.and_then(|index| self.secrets.get(index));
        self.connect(secret.map(String::as_str))
    }

    /// A new client without a key.
    pub(super) fn client_without_key(&self) -> Result<Client> {
        self.connect(None)
    }

    fn connect(&self, secret: Option<&str>) -> Result<Client> {
        Client::connect(ClientOptions {
            endpoint: format!("http://{}", self.address),
            api_key: secret.map(Into::into),
            ..ClientOptions::default()
        })
    }

    /// A file in a tenant's workspace.
    pub(super) fn workspace_file(&self, tenant: &str, name: &str) -> Result<PathBuf> {
        Ok(workspace_root(&self.config, tenant)?.join(name))
    }
}
