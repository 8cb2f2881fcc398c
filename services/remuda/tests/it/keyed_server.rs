//! An embedded server that requires keys, with keys of several tenants.

use crate::{
    harness::{Cli, CommandOutput, Dev, variables},
    http_client::HttpClient,
};

pub(crate) struct KeyedServer {
    pub(crate) dev: Dev,
}

/// A key with what uses it.
pub(crate) struct Key {
    id: String,
    pub(crate) secret: String,
    pub(crate) web: HttpClient,
    pub(crate) cli: Cli,
}

impl KeyedServer {
    pub(crate) async fn start(settings: &[&str]) -> Self {
        let metrics = ["--require-keys", "--set", "telemetry.metrics_listen=127.0.0.1:0"];
        let settings = settings.iter().flat_map(|setting| ["--set", setting]);
        let flags: Vec<&str> = metrics.into_iter().chain(settings).collect();
        Self { dev: Dev::start_with(&flags).await }
    }

    pub(crate) fn endpoint(&self) -> &str {
        self.dev.server.endpoint()
    }

    /// The URL of the metrics.
    pub(crate) fn metrics(&self) -> &str {
        self.dev.server.metrics().unwrap()
    }

    pub(crate) async fn create_key(&self, tenant: &str) -> Key {
        let created = self.keys(&["create", "--tenant", tenant, "--scope", "write"]).await;
        let document = &created.documents()[0];
        let text = |name: &str| document[name].as_str().unwrap().to_owned();
        let (id, secret) = (text("id"), text("secret"));
        let web = HttpClient::new(self.endpoint()).with_key(&secret);
        let cli = self.dev.cli.with_key(&secret);
        Key { id, secret, web, cli }
    }

    pub(crate) async fn revoke(&self, tenant: &str, key: &Key) {
        self.keys(&["revoke", &key.id, "--tenant", tenant]).await;
    }

    async fn keys(&self, arguments: &[&str]) -> CommandOutput {
        let settings = variables(&[("REMUDA_DATA_DIR", &self.dev.path("data"))]);
        let done = CommandOutput::run(&[&["keys"], arguments, &["--json"]].concat(), &settings).await;
        assert_eq!(done.code, 0, "{}", done.stderr);
        done
    }
}
