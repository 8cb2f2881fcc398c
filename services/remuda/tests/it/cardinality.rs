//! The number of metric series stays bounded however many tenants and sessions there are.

use std::path::Path;

use futures::{StreamExt as _, stream};
use remuda_domain::{ApiKeyId, TenantId, WorkspaceId};
use remuda_testkit::wait_for;
use reqwest::Method;
use serde_json::json;
use sqlx::{Connection as _, SqliteConnection, query};
use tempfile::TempDir;

use crate::{
    harness::{Dev, TIMEOUT, temporary_directory},
    http_client::HttpClient,
    scrape::Scrape,
};

const TENANTS: usize = 10_000;
/// Tenants that get a label of their own by default.
const NAMED: usize = 100;

fn secret(number: usize) -> String {
    format!("rmd_{number}")
}

/// A data directory with this many tenants, each with a key. Written in one transaction: creating them by command takes minutes.
async fn seed_data_directory(tenants: usize) -> TempDir {
    let directory = temporary_directory();
    let data = directory.path().join("data");
    std::fs::create_dir_all(&data).unwrap();
    let url = format!("sqlite:{}", data.join("remuda.db").display());
    remuda_store::migrate(&remuda_store::Options::new(url.clone())).await.unwrap();
    let mut connection = SqliteConnection::connect(&url).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    for number in 0..tenants {
        let tenant = TenantId::new().as_uuid();
        query("INSERT INTO tenants (id, name, created_at) VALUES ($1, $2, 0)")
            .bind(tenant)
            .bind(format!("tenant-{number}"))
            .execute(&mut *transaction)
            .await
            .unwrap();
        query("INSERT INTO workspaces (id, tenant_id, name, root, created_at) VALUES ($1, $2, 'default', $3, 0)")
            .bind(WorkspaceId::new().as_uuid())
            .bind(tenant)
            .bind(workspaces(directory.path()))
            .execute(&mut *transaction)
            .await
            .unwrap();
        query(
            "INSERT INTO api_keys (id, tenant_id, name, secret_hash, scopes, created_at) \
             VALUES ($1, $2, 'key', $3, 'read write', 0)",
        )
        .bind(ApiKeyId::new().as_uuid())
        .bind(tenant)
        .bind(remuda_grpc::keys::hash(&secret(number)).as_slice())
        .execute(&mut *transaction)
        .await
        .unwrap();
    }
    transaction.commit().await.unwrap();
    connection.close().await.unwrap();
    directory
}

fn workspaces(directory: &Path) -> String {
    directory.join("workspaces").to_str().unwrap().to_owned()
}

struct ManyTenants {
    dev: Dev,
    web: HttpClient,
}

impl ManyTenants {
    async fn start(tenants: usize, label: bool) -> Self {
        let label = format!("telemetry.tenant_label={label}");
        let more = ["--set", &label, "--set", "telemetry.metrics_listen=127.0.0.1:0"];
        let dev = Dev::start_in(seed_data_directory(tenants).await, &more).await;
        let web = HttpClient::new(dev.server.endpoint());
        Self { dev, web }
    }

    async fn send(&self, method: Method, path: &str, number: usize) -> u16 {
        let request = self.web.with_key(&secret(number)).request(method, path);
        request.send().await.unwrap().status().as_u16()
    }

    /// Submits one run for each of these tenants, each in its own session.
    async fn submit_for(&self, tenants: std::ops::Range<usize>) {
        let calls = json!([{ "tool": "noop" }]);
        let requests = tenants.map(|number| {
            let (web, calls) = (self.web.with_key(&secret(number)), &calls);
            async move { drop(web.submit(&format!("session-{number}"), calls).await) }
        });
        stream::iter(requests).buffer_unordered(64).collect::<Vec<()>>().await;
    }

    /// Calls routes, methods and sessions that do not exist: a client can invent any number of them.
    async fn probe_unknown_routes(&self, guesses: usize) {
        for number in 0..guesses {
            assert_eq!(self.send(Method::GET, &format!("/guess-{number}"), number).await, 404);
            let method = Method::from_bytes(format!("GUESS{number}").as_bytes()).unwrap();
            assert_eq!(self.send(method, "/sessions", number).await, 405);
            assert_eq!(self.send(Method::GET, &format!("/sessions/nobody-{number}"), number).await, 404);
        }
    }

    async fn scrape(&self) -> Scrape {
        Scrape::fetch(self.dev.server.metrics().unwrap()).await
    }

    async fn wait_until_ended(&self, runs: usize) -> Scrape {
        let ended = || async {
            let scraped = self.scrape().await;
            let ended = scraped.sum("remuda_runs_ended_total", &[("state", "completed")]);
            (ended >= f64::from(u32::try_from(runs).unwrap())).then_some(scraped)
        };
        wait_for("all runs to end", TIMEOUT * 5, ended).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_tenants_yield_a_bounded_number_of_series() {
    let fixture = ManyTenants::start(TENANTS, true).await;
    let (few, all) = (2 * NAMED, TENANTS);
    fixture.submit_for(0..few).await;
    fixture.probe_unknown_routes(10).await;
    let before = fixture.wait_until_ended(few).await;
    fixture.submit_for(few..all).await;
    fixture.probe_unknown_routes(200).await;
    let after = fixture.wait_until_ended(all).await;
    assert_eq!(after.sum("remuda_runs_submitted_total", &[]), f64::from(u32::try_from(all).unwrap()));
    assert_eq!(after.values("tenant").len(), NAMED + 1);
    assert!(after.values("tenant").contains("other"));
    assert!(after.sum("remuda_runs_ended_total", &[("tenant", "other")]) >= 9000.0);
    // The margin covers codes and tasks that occur for the first time.
    assert!(after.len() < before.len() + 100, "{} series, then {}", before.len(), after.len());
    for (label, values) in [("method", after.values("method")), ("code", after.values("code"))] {
        assert!(values.len() < 20, "{label}: {values:?}");
    }
    let text = &after.text;
    for id in ["session-", "guess-", "GUESS", "nobody-", "\"ses_", "\"run_"] {
        assert!(!text.contains(id), "{id} in {text}");
    }
    println!("{} series of {TENANTS} tenants", after.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_add_no_series_when_the_tenant_label_is_off() {
    let fixture = ManyTenants::start(1000, false).await;
    fixture.submit_for(0..100).await;
    let before = fixture.wait_until_ended(100).await;
    fixture.submit_for(100..1000).await;
    let after = fixture.wait_until_ended(1000).await;
    assert!(after.values("tenant").is_empty(), "{:?}", after.values("tenant"));
    assert!(after.len() < before.len() + 50, "{} series, then {}", before.len(), after.len());
}
