//! However many tenants and sessions there are, a process has no more series than it should.

use std::path::Path;

use futures::{StreamExt as _, stream};
use remuda_domain::{ApiKeyId, TenantId, WorkspaceId};
use remuda_testkit::wait_for;
use reqwest::Method;
use serde_json::json;
use sqlx::{Connection as _, SqliteConnection, query};
use tempfile::TempDir;

use crate::{
    harness::{Dev, PATIENCE, temporary_directory},
    scraped::Scraped,
    web::Web,
};

const TENANTS: usize = 10_000;
/// As many as the default lets through.
const NAMED: usize = 100;

fn secret(number: usize) -> String {
    format!("rmd_{number}")
}

/// A data directory in which there are as many tenants, each with a key. Written at once: one by one they would take minutes.
async fn populated(tenants: usize) -> TempDir {
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

struct Crowd {
    dev: Dev,
    web: Web,
}

impl Crowd {
    async fn start(tenants: usize, label: bool) -> Self {
        let label = format!("telemetry.tenant_label={label}");
        let more = ["--set", &label, "--set", "telemetry.metrics_listen=127.0.0.1:0"];
        let dev = Dev::start_in(populated(tenants).await, &more).await;
        let web = Web::new(dev.server.endpoint());
        Self { dev, web }
    }

    async fn ask(&self, method: Method, path: &str, number: usize) -> u16 {
        let request = self.web.with_key(&secret(number)).request(method, path);
        request.send().await.unwrap().status().as_u16()
    }

    /// Each of these tenants has a run in a session of its own.
    async fn run(&self, tenants: std::ops::Range<usize>) {
        let calls = json!([{ "tool": "noop" }]);
        let requests = tenants.map(|number| {
            let (web, calls) = (self.web.with_key(&secret(number)), &calls);
            async move { drop(web.submit(&format!("session-{number}"), calls).await) }
        });
        stream::iter(requests).buffer_unordered(64).collect::<Vec<()>>().await;
    }

    /// Calls that the API does not have, of which everyone can make up any number.
    async fn guess(&self, guesses: usize) {
        for number in 0..guesses {
            assert_eq!(self.ask(Method::GET, &format!("/guess-{number}"), number).await, 404);
            let method = Method::from_bytes(format!("GUESS{number}").as_bytes()).unwrap();
            assert_eq!(self.ask(method, "/sessions", number).await, 405);
            assert_eq!(self.ask(Method::GET, &format!("/sessions/nobody-{number}"), number).await, 404);
        }
    }

    async fn scrape(&self) -> Scraped {
        Scraped::from(self.dev.server.metrics().unwrap()).await
    }

    async fn until_ended(&self, runs: usize) -> Scraped {
        let ended = || async {
            let scraped = self.scrape().await;
            let ended = scraped.sum("remuda_runs_ended_total", &[("state", "completed")]);
            (ended >= f64::from(u32::try_from(runs).unwrap())).then_some(scraped)
        };
        wait_for("all runs to end", PATIENCE * 5, ended).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_tenants_make_a_bounded_number_of_series() {
    let crowd = Crowd::start(TENANTS, true).await;
    let (few, all) = (2 * NAMED, TENANTS);
    crowd.run(0..few).await;
    crowd.guess(10).await;
    let before = crowd.until_ended(few).await;
    crowd.run(few..all).await;
    crowd.guess(200).await;
    let after = crowd.until_ended(all).await;
    assert_eq!(after.sum("remuda_runs_submitted_total", &[]), f64::from(u32::try_from(all).unwrap()));
    assert_eq!(after.values("tenant").len(), NAMED + 1);
    assert!(after.values("tenant").contains("other"));
    assert!(after.sum("remuda_runs_ended_total", &[("tenant", "other")]) >= 9000.0);
    // What else there may be now is a code that did not come before, or a task that had nothing to do.
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
async fn without_the_label_tenants_make_no_series() {
    let crowd = Crowd::start(1000, false).await;
    crowd.run(0..100).await;
    let before = crowd.until_ended(100).await;
    crowd.run(100..1000).await;
    let after = crowd.until_ended(1000).await;
    assert!(after.values("tenant").is_empty(), "{:?}", after.values("tenant"));
    assert!(after.len() < before.len() + 50, "{} series, then {}", before.len(), after.len());
}
