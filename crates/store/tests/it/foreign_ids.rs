//! What a tenant learns from ids of other tenants: nothing, not even by the time that an answer takes.

use std::time::Duration;

use anyhow::Result;
use remuda_domain::{Code, Run, RunId, TenantId};
use remuda_store::NewRun;
use tokio::time::Instant;

use crate::fixture::{Fixture, input, refusal};

const ROUNDS: usize = 101;
/// The input of the foreign run: reading it takes milliseconds.
const INPUT_BYTES: usize = 4 << 20;

pub(crate) async fn foreign_run_takes_no_longer_than_an_unknown_one(fixture: &Fixture) -> Result<()> {
    let (session, stranger) = (fixture.session().await?, fixture.stranger().await?);
    let run = Run::queued(
        RunId::new(),
        (fixture.tenant, session),
        input(&"x".repeat(INPUT_BYTES)),
        Duration::from_secs(60),
    );
    let foreign = fixture.store.submit(NewRun::from(run)).await?.run.id;
    let (mut of_foreign, mut of_unknown) = (Vec::new(), Vec::new());
    // In turns, so that other load on the machine affects both.
    for _ in 0..ROUNDS {
        of_foreign.push(time_to_refuse(fixture, stranger, foreign).await);
        of_unknown.push(time_to_refuse(fixture, stranger, RunId::new()).await);
    }
    let (foreign, unknown) = (median(of_foreign), median(of_unknown));
    assert!(foreign < unknown * 2 + Duration::from_micros(200), "{foreign:?} and {unknown:?}");
    Ok(())
}

async fn time_to_refuse(fixture: &Fixture, tenant: TenantId, run: RunId) -> Duration {
    let begun = Instant::now();
    let refused = refusal(fixture.store.get_run(tenant, run).await);
    let elapsed = begun.elapsed();
    assert_eq!(refused, Code::RunNotFound);
    elapsed
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
