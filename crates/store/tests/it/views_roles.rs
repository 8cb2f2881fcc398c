//! Who sees what through the views, with real roles on PostgreSQL, and how much is read for it.

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
use remuda_store::{NewRun, NewSession};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, postgres::PgConnectOptions};

use crate::{
    lab::{LONG_LEASE, Lab},
    views::VIEWS,
    views_document::columns_of,
};

const PASSWORD: &str = "for-a-moment";

/// Two tenants with a run, a cost and a sandbox each, a spare sandbox, and roles to look at them. Roles belong to the server, so
/// their names must be nobody else's.
struct House {
    lab: Lab,
    suffix: String,
}

impl House {
    async fn build() -> Result<Self> {
        let lab = Lab::postgres().await?;
        let suffix = uuid::Uuid::now_v7().simple().to_string();
        let house = Self { lab, suffix };
        let worker = house.lab.worker(LONG_LEASE).await?;
        for tenant in [house.tenant("a"), house.tenant("b")] {
            let id = house.lab.store.ensure_tenant(&tenant, "/srv").await?.id;
            let workspace = house.lab.store.find_workspace(id, "default").await?.context("no workspace")?.id;
            let session = NewSession { tenant: id, workspace, ..house.lab.new_session(None) };
            house.lab.store.create_session(&session).await?;
            house.lab.store.submit(NewRun { tenant: id, ..house.lab.new_run(session.id) }).await?;
            house.sandbox(worker, Some((id, session.id))).await?;
        }
        house.sandbox(worker, None).await?;
        house.admin("UPDATE runs SET model_calls = 1, cost_micros = 5").await?;
        for role in house.roles() {
            let views = VIEWS.join(", ");
            house.admin(&format!("CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")).await?;
            house.admin(&format!("GRANT SELECT ON {views} TO {role}")).await?;
        }
        Ok(house)
    }

    /// Shorter than 50 bytes, as names of roles are cut.
    fn tenant(&self, name: &str) -> String {
        format!("{name}{}", self.suffix)
    }

    fn role(&self, tenant: &str) -> String {
        format!("remuda_tenant_{}", self.tenant(tenant))
    }

    fn operator(&self) -> String {
        format!("operator_{}", self.suffix)
    }

    /// Somebody with a name of her own.
    fn anna(&self) -> String {
        format!("anna_{}", self.suffix)
    }

    /// With this in front, a tenant's name is as long as fits, and may be the beginning of a longer one.
    fn long(&self) -> String {
        "x".repeat(63 - self.role("").len())
    }

    fn roles(&self) -> [String; 5] {
        [self.operator(), self.role("a"), self.role("nobody"), self.role(&self.long()), self.anna()]
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
        Ok(self.lab.store.save_sandbox(&record).await?)
    }

    async fn admin(&self, sql: &str) -> Result<()> {
        let mut connection = PgConnection::connect(&self.lab.options().url).await?;
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await?;
        Ok(())
    }

    async fn login(&self, role: &str) -> Result<PgConnection> {
        let options = PgConnectOptions::from_str(&self.lab.options().url)?;
        Ok(PgConnection::connect_with(&options.username(role).password(PASSWORD)).await?)
    }

    /// Rows of each view that a role sees, in the order of [`VIEWS`].
    async fn sees(&self, role: &str) -> Result<Vec<i64>> {
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

/// The roles are removed whatever came of it.
async fn in_a_house(look: impl AsyncFnOnce(&House) -> Result<()>) -> Result<()> {
    let house = House::build().await?;
    let outcome = AssertUnwindSafe(look(&house)).catch_unwind().await;
    house.tear_down().await?;
    outcome.unwrap_or_else(|panic| resume_unwind(panic))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenants_role_sees_its_tenant_only() -> Result<()> {
    in_a_house(async |house| {
        let (operator, tenant) = (house.operator(), house.role("a"));
        // Sessions, runs, queue, workers, sandboxes, costs.
        assert_eq!(house.sees(&operator).await?, [2, 2, 2, 1, 3, 2]);
        assert_eq!(house.sees(&tenant).await?, [1, 1, 1, 0, 1, 1]);
        assert_eq!(house.sees(&house.role("nobody")).await?, [0; 6], "a role of a tenant that is not there");
        let mut connection = house.login(&tenant).await?;
        for view in VIEWS.iter().filter(|view| **view != "v_workers") {
            let sql = format!("SELECT DISTINCT tenant FROM {view}");
            let tenants: Vec<String> =
                sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&mut connection).await?;
            assert_eq!(tenants, [house.tenant("a")], "{view}");
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
async fn a_name_that_may_have_been_cut_is_nobodys() -> Result<()> {
    in_a_house(async |house| {
        let (long, short) = (house.tenant(&house.long()), house.tenant("a"));
        house.admin(&format!("UPDATE tenants SET name = '{long}' WHERE name = '{short}'")).await?;
        assert_eq!(house.sees(&house.role(&house.long())).await?, [0; 6]);
        Ok(())
    })
    .await
}

/// Someone who has a tenant's rights by inheritance is as confined as the tenant's role.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_as_confined_as_their_role() -> Result<()> {
    in_a_house(async |house| {
        let (anna, tenant, operator) = (house.anna(), house.role("a"), house.operator());
        assert_eq!(house.sees(&anna).await?, [2, 2, 2, 1, 3, 2], "nobody's");
        house.admin(&format!("GRANT {tenant} TO {anna}")).await?;
        assert_eq!(house.sees(&anna).await?, [1, 1, 1, 0, 1, 1]);
        house.admin(&format!("GRANT {operator} TO {anna}")).await?;
        assert_eq!(house.sees(&anna).await?, [1, 1, 1, 0, 1, 1], "the narrower of the two");
        let mut connection = house.login(&anna).await?;
        sqlx::raw_sql(AssertSqlSafe(format!("SET ROLE {operator}"))).execute(&mut connection).await?;
        let runs: i64 = sqlx::query_scalar("SELECT count(*) FROM v_runs").fetch_one(&mut connection).await?;
        assert_eq!(runs, 2, "she may act as an operator");
        house.admin(&format!("REVOKE {operator} FROM {anna}")).await?;
        house.admin(&format!("GRANT {} TO {anna}", house.role("nobody"))).await?;
        assert_eq!(house.sees(&anna).await?, [1, 1, 1, 0, 1, 1], "two tenants, one of which is there");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roles_reach_nothing_but_the_views() -> Result<()> {
    in_a_house(async |house| {
        let tables = "SELECT table_name::text FROM information_schema.tables WHERE table_schema = 'public'";
        let mut admin = PgConnection::connect(&house.lab.options().url).await?;
        let mut relations: Vec<String> = sqlx::query_scalar(tables).fetch_all(&mut admin).await?;
        ensure!(relations.len() > 20, "{relations:?}");
        relations.retain(|name| !VIEWS.contains(&name.as_str()));
        for role in [house.operator(), house.role("a")] {
            let mut connection = house.login(&role).await?;
            for relation in &relations {
                let sql = format!("SELECT 1 FROM {relation}");
                let error = sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut connection).await.err();
                let error = error.with_context(|| format!("{role} reads {relation}"))?.to_string();
                ensure!(error.contains("permission denied"), "{relation}: {error}");
            }
            for view in VIEWS {
                let column = columns_of(&house.lab, view).await?.remove(0);
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

/// What a caller's own function is given to see, cheap as it claims to be, is what the caller may see.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn functions_of_callers_see_no_other_rows() -> Result<()> {
    in_a_house(async |house| {
        house.admin(&format!("GRANT CREATE ON SCHEMA public TO {}", house.role("a"))).await?;
        let mut connection = house.login(&house.role("a")).await?;
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
            let column = columns_of(&house.lab, view).await?.remove(0);
            let sql = format!("SELECT count(*) FROM {view} WHERE spy({column})");
            sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut connection).await?;
        }
        let seen: Vec<String> =
            sqlx::query_scalar("SELECT DISTINCT what FROM seen").fetch_all(&mut connection).await?;
        assert_eq!(seen, [house.tenant("a")]);
        Ok(())
    })
    .await
}

/// How a statement is executed, in one text.
async fn plan(lab: &Lab, sql: &str) -> Result<String> {
    let mut connection = PgConnection::connect(&lab.options().url).await?;
    let lines: Vec<String> = sqlx::query_scalar(AssertSqlSafe(format!("EXPLAIN (COSTS OFF) {sql}")))
        .fetch_all(&mut connection)
        .await?;
    Ok(lines.join("\n"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_usual_looks_use_indexes() -> Result<()> {
    let lab = Lab::postgres().await?;
    let session = lab.session().await?;
    let run = lab.submit(session).await?.run.id;
    // Many that are over, of the last hundred days, and of other sessions.
    crate::plans::execute(
        &lab,
        "INSERT INTO sessions SELECT n.* FROM sessions s, generate_series(1, 2000) g, LATERAL jsonb_populate_record(s, \
         jsonb_build_object('id', md5(g::text)::uuid, 'pending', 0)) n",
    )
    .await?;
    crate::plans::execute(
        &lab,
        "INSERT INTO runs SELECT n.* FROM runs r, generate_series(1, 20000) g, LATERAL jsonb_populate_record(r, \
         jsonb_build_object('id', gen_random_uuid(), 'session_id', md5((1 + g % 2000)::text)::uuid, 'seq', g, 'state', 10 + g % 4, 'model_calls', 1, \
         'created_at', now() - interval '100 days' + g * interval '7 minutes')) n",
    )
    .await?;
    crate::plans::execute(&lab, "VACUUM ANALYZE").await?;
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
        let plan = plan(&lab, &format!("SELECT * FROM {filter}")).await?;
        ensure!(plan.contains(index) && !plan.contains("Seq Scan on runs"), "{filter}:\n{plan}");
    }
    Ok(())
}
