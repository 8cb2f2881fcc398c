//! Row visibility of the views for PostgreSQL roles, and the indexes they use.

use std::{
    panic::{AssertUnwindSafe, resume_unwind},
    str::FromStr as _,
};

use anyhow::{Context as _, Result, ensure};
use futures::FutureExt as _;
use remuda_domain::{
    SandboxId, SessionId, TenantId,
    execution::{BackendKind, Holder, SandboxRecord, SandboxState},
};
use remuda_store::NewSession;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, postgres::PgConnectOptions};

use crate::{
    fixture::{Fixture, LONG_LEASE},
    views::VIEWS,
    views_document::columns_of,
};

const PASSWORD: &str = "for-a-moment";

/// Two tenants with a run, a cost and a sandbox each, a spare sandbox, and roles to read them. Roles are global to the
/// server, so their names must be unique.
struct RoleFixture {
    fixture: Fixture,
    suffix: String,
}

impl RoleFixture {
    async fn build() -> Result<Self> {
        let fixture = Fixture::postgres().await?;
        let suffix = uuid::Uuid::now_v7().simple().to_string();
        let setup = Self { fixture, suffix };
        let worker = setup.fixture.worker(LONG_LEASE).await?;
        for tenant in [setup.tenant("a"), setup.tenant("b")] {
            let id = setup.fixture.store.ensure_tenant(&tenant, "/srv").await?.id;
            let workspace =
                setup.fixture.store.find_workspace(id, "default").await?.context("no workspace")?.id;
            let session = NewSession { tenant: id, workspace, ..setup.fixture.new_session(None) };
            setup.fixture.store.create_session(&session).await?;
            setup
                .fixture
                .store
                .submit(crate::fixture::of_tenant(id, setup.fixture.new_run(session.id)))
                .await?;
            setup.sandbox(worker, Some((id, session.id))).await?;
        }
        setup.sandbox(worker, None).await?;
        setup.admin("UPDATE runs SET model_calls = 1, cost_micros = 5").await?;
        for role in setup.roles() {
            let views = VIEWS.join(", ");
            setup.admin(&format!("CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")).await?;
            setup.admin(&format!("GRANT SELECT ON {views} TO {role}")).await?;
        }
        Ok(setup)
    }

    /// Shorter than 50 bytes, because role names are truncated.
    fn tenant(&self, name: &str) -> String {
        format!("{name}{}", self.suffix)
    }

    fn role(&self, tenant: &str) -> String {
        format!("remuda_tenant_{}", self.tenant(tenant))
    }

    fn operator(&self) -> String {
        format!("operator_{}", self.suffix)
    }

    /// A role with a personal name.
    fn anna(&self) -> String {
        format!("anna_{}", self.suffix)
    }

    /// With this prefix, a tenant's role name has the maximum length and may be a truncated longer one.
    fn max_length_prefix(&self) -> String {
        "x".repeat(63 - self.role("").len())
    }

    fn roles(&self) -> [String; 5] {
        [
            self.operator(),
            self.role("a"),
            self.role("nobody"),
            self.role(&self.max_length_prefix()),
            self.anna(),
        ]
    }

    async fn sandbox(
        &self,
        worker: remuda_domain::WorkerId,
        holder: Option<(TenantId, SessionId)>,
    ) -> Result<()> {
        let at = chrono::Utc::now();
        let record = SandboxRecord {
            id: SandboxId::new(),
            holder: holder.map(|(tenant, session)| Holder { tenant, session, epoch: 1 }),
            worker,
            backend: BackendKind::Docker,
            engine: "engine".into(),
            handle: None,
            image: "box".into(),
            digest: String::new(),
            state: SandboxState::Spare,
            created_at: at,
            used_at: at,
        };
        Ok(self.fixture.store.save_sandbox(&record).await?)
    }

    async fn admin(&self, sql: &str) -> Result<()> {
        let mut connection = PgConnection::connect(&self.fixture.options().url).await?;
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await?;
        Ok(())
    }

    async fn login(&self, role: &str) -> Result<PgConnection> {
        let options = PgConnectOptions::from_str(&self.fixture.options().url)?;
        Ok(PgConnection::connect_with(&options.username(role).password(PASSWORD)).await?)
    }

    /// Rows of each view that a role sees, in the order of [`VIEWS`].
    async fn visible_rows(&self, role: &str) -> Result<Vec<i64>> {
        let mut connection = self.login(role).await?;
        let mut counts = Vec::new();
        for view in VIEWS {
            let sql = format!("SELECT count(*) FROM {view}");
            counts.push(sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut connection).await?);
        }
        Ok(counts)
    }

    async fn tear_down(self) -> Result<()> {
        for role in self.roles() {
            self.admin(&format!("DROP OWNED BY {role}")).await?;
            self.admin(&format!("DROP ROLE {role}")).await?;
        }
        Ok(())
    }
}

/// Runs a test and removes the roles afterwards, whatever the outcome.
async fn with_roles(test: impl AsyncFnOnce(&RoleFixture) -> Result<()>) -> Result<()> {
    let setup = RoleFixture::build().await?;
    let outcome = AssertUnwindSafe(test(&setup)).catch_unwind().await;
    setup.tear_down().await?;
    outcome.unwrap_or_else(|panic| resume_unwind(panic))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenant_role_sees_only_its_tenant() -> Result<()> {
    with_roles(async |setup| {
        let (operator, tenant) = (setup.operator(), setup.role("a"));
        // Sessions, runs, queue, workers, sandboxes, costs.
        assert_eq!(setup.visible_rows(&operator).await?, [2, 2, 2, 1, 3, 2]);
        assert_eq!(setup.visible_rows(&tenant).await?, [1, 1, 1, 0, 1, 1]);
        assert_eq!(
            setup.visible_rows(&setup.role("nobody")).await?,
            [0; 6],
            "a role of a tenant that is not there"
        );
        let mut connection = setup.login(&tenant).await?;
        for view in VIEWS.iter().filter(|view| **view != "v_workers") {
            let sql = format!("SELECT DISTINCT tenant FROM {view}");
            let tenants: Vec<String> =
                sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&mut connection).await?;
            assert_eq!(tenants, [setup.tenant("a")], "{view}");
        }
        let counts: (i64, i64) = sqlx::query_as("SELECT runnable_sessions, queued_runs FROM v_queue")
            .fetch_one(&mut connection)
            .await?;
        assert_eq!(counts, (1, 1));
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn possibly_truncated_role_name_sees_nothing() -> Result<()> {
    with_roles(async |setup| {
        let (long, short) = (setup.tenant(&setup.max_length_prefix()), setup.tenant("a"));
        setup.admin(&format!("UPDATE tenants SET name = '{long}' WHERE name = '{short}'")).await?;
        assert_eq!(setup.visible_rows(&setup.role(&setup.max_length_prefix())).await?, [0; 6]);
        Ok(())
    })
    .await
}

/// A member of a tenant's role is confined like that role.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_a_tenant_role_are_confined_like_the_role() -> Result<()> {
    with_roles(async |setup| {
        let (anna, tenant, operator) = (setup.anna(), setup.role("a"), setup.operator());
        assert_eq!(setup.visible_rows(&anna).await?, [2, 2, 2, 1, 3, 2], "no tenant's role");
        setup.admin(&format!("GRANT {tenant} TO {anna}")).await?;
        assert_eq!(setup.visible_rows(&anna).await?, [1, 1, 1, 0, 1, 1]);
        setup.admin(&format!("GRANT {operator} TO {anna}")).await?;
        assert_eq!(setup.visible_rows(&anna).await?, [1, 1, 1, 0, 1, 1], "the more restricted role applies");
        let mut connection = setup.login(&anna).await?;
        sqlx::raw_sql(AssertSqlSafe(format!("SET ROLE {operator}"))).execute(&mut connection).await?;
        let runs: i64 = sqlx::query_scalar("SELECT count(*) FROM v_runs").fetch_one(&mut connection).await?;
        assert_eq!(runs, 2, "she may act as an operator");
        setup.admin(&format!("REVOKE {operator} FROM {anna}")).await?;
        setup.admin(&format!("GRANT {} TO {anna}", setup.role("nobody"))).await?;
        assert_eq!(
            setup.visible_rows(&anna).await?,
            [1, 1, 1, 0, 1, 1],
            "two tenants, one of which is there"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roles_can_read_only_the_views() -> Result<()> {
    with_roles(async |setup| {
        let tables = "SELECT table_name::text FROM information_schema.tables WHERE table_schema = 'public'";
        let mut admin = PgConnection::connect(&setup.fixture.options().url).await?;
        let mut relations: Vec<String> = sqlx::query_scalar(tables).fetch_all(&mut admin).await?;
        ensure!(relations.len() > 20, "{relations:?}");
        relations.retain(|name| !VIEWS.contains(&name.as_str()));
        for role in [setup.operator(), setup.role("a")] {
            let mut connection = setup.login(&role).await?;
            for relation in &relations {
                let sql = format!("SELECT 1 FROM {relation}");
                let error = sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut connection).await.err();
                let error = error.with_context(|| format!("{role} reads {relation}"))?.to_string();
                ensure!(error.contains("permission denied"), "{relation}: {error}");
            }
            for view in VIEWS {
                let column = columns_of(&setup.fixture, view).await?.remove(0);
                for sql in [
                    format!("DELETE FROM {view}"),
                    format!("UPDATE {view} SET {column} = 'x'"),
                    format!("INSERT INTO {view} ({column}) VALUES ('x')"),
                ] {
                    let done = sqlx::query(AssertSqlSafe(sql.clone())).execute(&mut connection).await;
                    ensure!(done.is_err(), "{role}: {sql}");
                }
            }
        }
        Ok(())
    })
    .await
}

/// A user-defined function sees only permitted rows, even if it claims to be cheap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_defined_functions_see_only_permitted_rows() -> Result<()> {
    with_roles(async |setup| {
        setup.admin(&format!("GRANT CREATE ON SCHEMA public TO {}", setup.role("a"))).await?;
        let mut connection = setup.login(&setup.role("a")).await?;
        sqlx::raw_sql(
            "CREATE TEMP TABLE seen (what text); \
             CREATE FUNCTION spy(text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS \
             $$ BEGIN INSERT INTO seen VALUES ($1); RETURN true; END $$; \
             CREATE FUNCTION public.pg_has_role(oid, oid, text) RETURNS boolean LANGUAGE sql AS 'SELECT false'; \
             CREATE FUNCTION public.starts_with(name, text) RETURNS boolean LANGUAGE sql AS 'SELECT false'; \
             SET search_path = public, pg_catalog",
        )
        .execute(&mut connection)
        .await?;
        for view in VIEWS {
            let column = columns_of(&setup.fixture, view).await?.remove(0);
            let sql = format!("SELECT count(*) FROM {view} WHERE spy({column})");
            sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut connection).await?;
        }
        let seen: Vec<String> =
            sqlx::query_scalar("SELECT DISTINCT what FROM seen").fetch_all(&mut connection).await?;
        assert_eq!(seen, [setup.tenant("a")]);
        Ok(())
    })
    .await
}

/// The query plan of a statement as text.
async fn plan(fixture: &Fixture, sql: &str) -> Result<String> {
    let mut connection = PgConnection::connect(&fixture.options().url).await?;
    let lines: Vec<String> = sqlx::query_scalar(AssertSqlSafe(format!("EXPLAIN (COSTS OFF) {sql}")))
        .fetch_all(&mut connection)
        .await?;
    Ok(lines.join("\n"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn common_view_queries_use_indexes() -> Result<()> {
    let fixture = Fixture::postgres().await?;
    let session = fixture.session().await?;
    let run = fixture.submit(session).await?.run.id;
    // Many ended runs, of the last hundred days and of other sessions.
    crate::query_plans::execute(
        &fixture,
        "INSERT INTO sessions SELECT n.* FROM sessions s, generate_series(1, 2000) g, LATERAL jsonb_populate_record(s, \
         jsonb_build_object('id', md5(g::text)::uuid, 'pending', 0)) n",
    )
    .await?;
    crate::query_plans::execute(
        &fixture,
        "INSERT INTO runs SELECT n.* FROM runs r, generate_series(1, 20000) g, LATERAL jsonb_populate_record(r, \
         jsonb_build_object('id', gen_random_uuid(), 'session_id', md5((1 + g % 2000)::text)::uuid, 'seq', g, 'state', 10 + g % 4, 'model_calls', 1, \
         'created_at', now() - interval '100 days' + g * interval '7 minutes')) n",
    )
    .await?;
    crate::query_plans::execute(&fixture, "VACUUM ANALYZE").await?;
    for (filter, index) in [
        (format!("v_runs WHERE run_uuid = remuda_uuid('{run}')"), "runs_pkey"),
        (format!("v_runs WHERE session_uuid = remuda_uuid('{session}')"), "runs_by_session"),
        ("v_runs WHERE unfinished AND state = 'queued'".to_owned(), "runs_live"),
        (
            "v_runs WHERE state = 'failed' AND created_at > now() - interval '1 hour'".to_owned(),
            "runs_by_time",
        ),
        ("v_costs WHERE day = current_date - 50".to_owned(), "runs_by_time"),
        ("v_queue".to_owned(), "runs_live"),
    ] {
        let plan = plan(&fixture, &format!("SELECT * FROM {filter}")).await?;
        ensure!(plan.contains(index) && !plan.contains("Seq Scan on runs"), "{filter}:\n{plan}");
    }
    Ok(())
}
