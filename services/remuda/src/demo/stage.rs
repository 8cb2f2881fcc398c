//! The stack the demo plays on: a node of its own in this process, two tenants, a key for each.

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

use super::script::TENANTS;
use crate::serve::VERSION;

/// How long an interrupted demo waits for the next step boundary before it kills: nobody needs the rest.
const DRAIN: Duration = Duration::from_millis(100);

/// Where clients find the stack, and as whom.
#[derive(Debug)]
pub(super) struct Stage {
    pub address: SocketAddr,
    config: Config,
    /// The secret of each tenant's key, in the order of [`TENANTS`].
    secrets: Vec<String>,
}

impl Stage {
    /// Starts the stack in `directory`. The node is the caller's, to run and to stop.
    pub(super) async fn set(directory: &Path) -> Result<(Node, Self)> {
        let mut config = Config { data_dir: directory.join("data"), ..Config::default() };
        config.workspaces.root = directory.join("workspaces");
        config.server.listen = SocketAddr::from(([127, 0, 0, 1], 0));
        config.server.require_keys = RequireKeys::Always;
        config.worker.drain_deadline = DRAIN;
        let guard = std::env::current_exe()
            .map_err(|error| Error::internal("this program's own path is unknown").with_source(error))?;
        let node = Node::start(Options {
            config: config.clone(),
            mode: Mode::Embedded,
            roles: Roles::ALL,
            version: VERSION.to_owned(),
            levels: Levels::new("info")
                .map_err(|error| Error::internal("the demo has no filter").with_source(error))?,
            guard: Some((guard, vec!["guard".to_owned()])),
        })
        .await?;
        let address = node.address().ok_or_else(|| Error::internal("the node has no address"))?;
        let store = &node.parts().store;
        let mut secrets = Vec::new();
        for tenant in TENANTS {
            let root = workspace_root(&config, tenant)?;
            let tenant = store.ensure_tenant(tenant, &root.to_string_lossy()).await?.id;
            let secret = keys::generate();
            let key = NewKey {
                tenant,
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

    /// A new connection with the key of a tenant.
    pub(super) fn client(&self, tenant: &str) -> Result<Client> {
        let index = TENANTS.iter().position(|name| *name == tenant);
        let secret = index.and_then(|index| self.secrets.get(index));
        self.connect(secret.map(String::as_str))
    }

    /// A new connection without a key.
    pub(super) fn stranger(&self) -> Result<Client> {
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
