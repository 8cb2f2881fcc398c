//! What the load is put on: a server that runs already, or an embedded one of our own.

use anyhow::Context as _;
use remuda_client::{Client, ClientOptions};
use remuda_config::Config;
use remuda_node::{Mode, Node, Options, Roles};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::workload::Addresses;

/// A server under load.
pub(crate) struct Target {
    endpoint: String,
    api_key: Option<String>,
    embedded: Option<Embedded>,
}

struct Embedded {
    stop: CancellationToken,
    running: JoinHandle<()>,
    /// Removed when the server has stopped.
    _directory: TempDir,
}

impl Target {
    pub(crate) fn existing(endpoint: String, api_key: Option<String>) -> Self {
        Self { endpoint, api_key, embedded: None }
    }

    /// Starts the whole stack in this process.
    pub(crate) async fn embedded(slots: u32) -> anyhow::Result<Self> {
        let directory = TempDir::new()?;
        let mut config = Config { data_dir: directory.path().to_owned(), ..Config::default() };
        config.workspaces.root = directory.path().join("workspaces");
        config.server.listen = ([127, 0, 0, 1], 0).into();
        config.worker.slots = slots;
        let options = Options {
            config,
            mode: Mode::Embedded,
            roles: Roles::ALL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            guard: None,
        };
        let node = Node::start(options).await?;
        let address = node.address().context("the node does not listen")?;
        let stop = CancellationToken::new();
        let running = TaskTracker::new().spawn(node.run(stop.clone()));
        let embedded = Embedded { stop, running, _directory: directory };
        Ok(Self { endpoint: format!("http://{address}"), api_key: None, embedded: Some(embedded) })
    }

    /// A client with a connection of its own.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        let options = ClientOptions {
            endpoint: self.endpoint.clone(),
            api_key: self.api_key.clone().map(Into::into),
            ..ClientOptions::default()
        };
        Ok(Client::connect(options)?)
    }

    pub(crate) fn addresses(&self) -> Addresses {
        let endpoints = vec![self.endpoint.clone()];
        Addresses { control_planes: endpoints.clone(), streams: endpoints, api_key: self.api_key.clone() }
    }

    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        if let Some(embedded) = self.embedded {
            embedded.stop.cancel();
            embedded.running.await?;
        }
        Ok(())
    }
}
