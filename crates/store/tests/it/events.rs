//! Event streams.

use std::time::Duration;

use anyhow::{Context as _, Result};
use remuda_domain::{Code, SessionId};
use remuda_store::TrimPage;
use remuda_testkit::wait_for;

use crate::fixture::{Fixture, LONG_LEASE, PATIENCE, completed, progress, refusal, step};

const NO_TIME: Duration = Duration::ZERO;

/// A session whose stream has chunks of one, three and five events.
async fn session_with_chunks(fixture: &Fixture) -> Result<SessionId> {
    let session = fixture.session().await?;
    let worker = fixture.worker(LONG_LEASE).await?;
    for count in [3, 5] {
        fixture.submit(session).await?;
        let grant = fixture.granted(session, worker).await?;
        fixture.store.commit(progress(&grant, (0..count).map(|index| step(&grant, index)).collect())).await?;
        fixture.store.commit(completed(&grant)).await?;
    }
    Ok(session)
}

pub(crate) async fn stream_can_be_read_from_any_cursor(fixture: &Fixture) -> Result<()> {
    let session = session_with_chunks(fixture).await?;
    let all = fixture.events_of(session).await?;
    assert_eq!(all.len(), 13);
    for after in 0..=13 {
        let slice = fixture.store.read_events(fixture.tenant, session, after, 100).await?;
        assert_eq!(slice.last_cursor, 13);
        assert_eq!(slice.events, all[usize::try_from(after)?..], "after {after}");
    }
    fixture.check(session).await
}

pub(crate) async fn read_respects_the_limit_and_returns_the_stream_end(fixture: &Fixture) -> Result<()> {
    let session = session_with_chunks(fixture).await?;
    for after in 0..13 {
        for limit in [0, 1, 2, 4, usize::MAX] {
            let slice = fixture.store.read_events(fixture.tenant, session, after, limit).await?;
            // At least as many as requested unless the stream ends, and without a gap.
            let cursors: Vec<_> = slice.events.iter().map(|event| event.cursor).collect();
            assert_eq!(cursors, (after + 1..).take(cursors.len()).collect::<Vec<_>>());
            assert!(!cursors.is_empty() && (cursors.len() >= limit || cursors.last() == Some(&13)));
            assert_eq!(slice.last_cursor, 13);
        }
    }
    for after in [13, 14, i64::MAX] {
        let slice = fixture.store.read_events(fixture.tenant, session, after, 10).await?;
        assert_eq!((slice.events.len(), slice.last_cursor), (0, 13));
    }
    Ok(())
}

/// Streams of two sessions grow side by side, and each can be read from any cursor, however much of its beginning was
/// trimmed.
pub(crate) async fn long_trimmed_streams_are_read_from_any_cursor(fixture: &Fixture) -> Result<()> {
    let (session, other) = (fixture.session().await?, fixture.session().await?);
    let worker = fixture.worker(LONG_LEASE).await?;
    let mut grants = Vec::new();
    for session in [session, other] {
        fixture.submit(session).await?;
        grants.push(fixture.granted(session, worker).await?);
    }
    // Chunks of one to nine events, so that landmarks fall on varying positions.
    for round in 0..60 {
        for (number, grant) in (0_u32..).zip(&grants) {
            let steps = (0..=(round * 7 + number) % 9).map(|index| step(grant, index));
            fixture.store.commit(progress(grant, steps.collect())).await?;
        }
    }
    for grant in &grants {
        fixture.store.commit(completed(grant)).await?;
    }
    for session in [session, other] {
        let all = fixture.events_of(session).await?;
        assert!(all.len() > 250 && all.iter().all(|event| event.session == session));
        fixture.check(session).await?;
        for after in (0..all.len()).step_by(3) {
            for limit in [1, 50, 64, 130] {
                let slice =
                    fixture.store.read_events(fixture.tenant, session, i64::try_from(after)?, limit).await?;
                assert!(slice.events.len() >= limit.min(all.len() - after), "{after}, {limit}");
                assert_eq!(slice.events[..], all[after..after + slice.events.len()], "{after}, {limit}");
            }
        }
    }
    // The first event of an unfinished run stays, and so does everything after it.
    let late = fixture.submit(other).await?.run.id;
    let all = || async { trim(fixture, NO_TIME).await.ok().filter(|rows| *rows > 0) };
    wait_for("everything is old", PATIENCE, || async { all().await.is_some() }).await;
    while trim(fixture, NO_TIME).await? > 0 {}
    assert!(fixture.store.read_events(fixture.tenant, session, 0, 1000).await?.events.is_empty());
    let kept = fixture.store.read_events(fixture.tenant, other, 0, 1000).await?;
    assert_eq!(kept.events.iter().map(|event| event.run).collect::<Vec<_>>(), [Some(late)]);
    // After a gap the stream continues as usual.
    for _ in 0..70 {
        fixture.submit(session).await?;
    }
    let again = fixture.store.read_events(fixture.tenant, session, 3, 50).await?;
    let cursors: Vec<_> = again.events.iter().map(|event| event.cursor).collect();
    assert_eq!(cursors, (again.last_cursor - 69..).take(cursors.len()).collect::<Vec<_>>());
    assert!(cursors.len() >= 50);
    Ok(())
}

pub(crate) async fn streams_of_other_tenants_are_not_found(fixture: &Fixture) -> Result<()> {
    let (session, stranger) = (fixture.session().await?, fixture.stranger().await?);
    let foreign = fixture.store.read_events(stranger, session, 0, 10).await.err().context("foreign")?;
    let unknown =
        fixture.store.read_events(stranger, SessionId::new(), 0, 10).await.err().context("unknown")?;
    assert_eq!(foreign.code(), Code::SessionNotFound);
    assert_eq!(format!("{foreign:?}"), format!("{unknown:?}"));
    assert_eq!(refusal(fixture.store.read_events(stranger, session, 99, 10).await), Code::SessionNotFound);
    Ok(())
}

pub(crate) async fn last_cursors_returns_the_ends_of_many_streams(fixture: &Fixture) -> Result<()> {
    let (one, two) = (fixture.session().await?, fixture.session().await?);
    fixture.submit(two).await?;
    let worker = fixture.worker(LONG_LEASE).await?;
    fixture.granted(two, worker).await?;
    let stranger = fixture.stranger().await?;
    let asked =
        [(fixture.tenant, one), (fixture.tenant, two), (stranger, one), (fixture.tenant, SessionId::new())];
    let mut ends = fixture.store.last_cursors(&asked).await?;
    ends.sort_by_key(|end| end.last_cursor);
    let told: Vec<_> = ends.iter().map(|end| (end.tenant, end.session, end.last_cursor, end.owner)).collect();
    assert_eq!(told, [(fixture.tenant, one, 1, None), (fixture.tenant, two, 2, Some(worker))]);
    assert_eq!(fixture.store.last_cursors(&[]).await?, []);
    Ok(())
}

/// Trims until nothing is left to trim, and returns the number of deleted rows.
async fn trim(fixture: &Fixture, kept: Duration) -> Result<u64> {
    let (mut after, mut rows) = (None, 0);
    loop {
        let trimmed = fixture.store.trim_events(kept, after, 1).await?;
        after = trimmed.next;
        rows += trimmed.rows;
        if after.is_none() {
            return Ok(rows);
        }
    }
}

pub(crate) async fn old_events_of_finished_runs_are_trimmed(fixture: &Fixture) -> Result<()> {
    let session = session_with_chunks(fixture).await?;
    assert_eq!(trim(fixture, LONG_LEASE).await?, 0, "nothing is that old");
    assert_eq!(fixture.events_of(session).await?.len(), 13);
    // Timestamps come from clocks that may differ by microseconds.
    let all = || async { trim(fixture, NO_TIME).await.ok().filter(|rows| *rows > 0) };
    assert_eq!(wait_for("events that are old", PATIENCE, all).await, 7);
    for after in [0, 5, 13] {
        let slice = fixture.store.read_events(fixture.tenant, session, after, 10).await?;
        assert_eq!((slice.events.len(), slice.last_cursor), (0, 13));
    }
    // New events get cursors after the trimmed ones.
    fixture.submit(session).await?;
    let slice = fixture.store.read_events(fixture.tenant, session, 0, 10).await?;
    assert_eq!(slice.events.iter().map(|event| event.cursor).collect::<Vec<_>>(), [14]);
    assert_eq!(fixture.runs_of(session).await?.len(), 3);
    Ok(())
}

pub(crate) async fn events_of_unfinished_runs_are_kept(fixture: &Fixture) -> Result<()> {
    let (session, worker) = (fixture.session().await?, fixture.worker(LONG_LEASE).await?);
    fixture.submit(session).await?;
    // Queued before the first run ends, so the runs' events overlap.
    let grant = fixture.granted(session, worker).await?;
    fixture.submit(session).await?;
    fixture.store.commit(completed(&grant)).await?;
    let all = || async { trim(fixture, NO_TIME).await.ok().filter(|rows| *rows > 0) };
    assert_eq!(wait_for("events that are old", PATIENCE, all).await, 2);
    let slice = fixture.store.read_events(fixture.tenant, session, 0, 10).await?;
    let kept: Vec<_> = slice.events.iter().map(|event| (event.cursor, event.body.name())).collect();
    assert_eq!(kept[0], (3, "run.queued"), "{kept:?}");
    assert_eq!(trim(fixture, NO_TIME).await?, 0);
    Ok(())
}

pub(crate) async fn trim_scans_sessions_page_by_page(fixture: &Fixture) -> Result<()> {
    for _ in 0..3 {
        fixture.session().await?;
    }
    let mut seen = Vec::new();
    let mut after = None;
    let gone = std::sync::atomic::AtomicU64::new(0);
    wait_for("sessions that are old", PATIENCE, || async {
        let rows = fixture.store.trim_events(NO_TIME, None, 10).await.map_or(0, |trimmed| trimmed.rows);
        gone.fetch_add(rows, std::sync::atomic::Ordering::SeqCst) + rows == 3
    })
    .await;
    for _ in 0..3 {
        let trimmed = fixture.store.trim_events(NO_TIME, after, 1).await?;
        assert_eq!(TrimPage { next: None, ..trimmed }, TrimPage::default(), "everything was trimmed before");
        after = trimmed.next;
        seen.push(after.context("no last scanned session")?);
    }
    assert!(seen.is_sorted() && seen.len() == 3);
    assert_eq!(fixture.store.trim_events(NO_TIME, after, 1).await?.next, None);
    Ok(())
}
