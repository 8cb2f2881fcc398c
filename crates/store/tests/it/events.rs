//! Reading the event stream.

use std::time::Duration;

use anyhow::{Context as _, Result};
use remuda_domain::{Code, SessionId};
use remuda_store::Trimmed;
use remuda_testkit::wait_for;

use crate::lab::{LONG_LEASE, Lab, PATIENCE, completed, progress, refusal, step};

const NO_TIME: Duration = Duration::ZERO;

/// A session whose stream has chunks of one, three and five events.
async fn session_with_chunks(lab: &Lab) -> Result<SessionId> {
    let session = lab.session().await?;
    let worker = lab.worker(LONG_LEASE).await?;
    for count in [3, 5] {
        lab.submit(session).await?;
        let grant = lab.granted(session, worker).await?;
        lab.store.commit(progress(&grant, (0..count).map(|index| step(&grant, index)).collect())).await?;
        lab.store.commit(completed(&grant)).await?;
    }
    Ok(session)
}

pub(crate) async fn any_cursor_can_be_resumed(lab: &Lab) -> Result<()> {
    let session = session_with_chunks(lab).await?;
    let all = lab.events_of(session).await?;
    assert_eq!(all.len(), 13);
    for after in 0..=13 {
        let slice = lab.store.read_events(lab.tenant, session, after, 100).await?;
        assert_eq!(slice.last_cursor, 13);
        assert_eq!(slice.events, all[usize::try_from(after)?..], "after {after}");
    }
    lab.check(session).await
}

pub(crate) async fn limits_and_ends_are_reported(lab: &Lab) -> Result<()> {
    let session = session_with_chunks(lab).await?;
    for after in 0..13 {
        for limit in [0, 1, 2, 4, usize::MAX] {
            let slice = lab.store.read_events(lab.tenant, session, after, limit).await?;
            // At least as many as asked for, unless the stream ends, and without a hole from the first on.
            let cursors: Vec<_> = slice.events.iter().map(|event| event.cursor).collect();
            assert_eq!(cursors, (after + 1..).take(cursors.len()).collect::<Vec<_>>());
            assert!(!cursors.is_empty() && (cursors.len() >= limit || cursors.last() == Some(&13)));
            assert_eq!(slice.last_cursor, 13);
        }
    }
    for after in [13, 14, i64::MAX] {
        let slice = lab.store.read_events(lab.tenant, session, after, 10).await?;
        assert_eq!((slice.events.len(), slice.last_cursor), (0, 13));
    }
    Ok(())
}

/// Streams of two sessions grow side by side, and each is read from any place in it, however much of its beginning is gone.
pub(crate) async fn long_streams_are_read_from_anywhere(lab: &Lab) -> Result<()> {
    let (session, other) = (lab.session().await?, lab.session().await?);
    let worker = lab.worker(LONG_LEASE).await?;
    let mut grants = Vec::new();
    for session in [session, other] {
        lab.submit(session).await?;
        grants.push(lab.granted(session, worker).await?);
    }
    // Chunks of one to nine events, so that what is in the index of some comes at all kinds of places.
    for round in 0..60 {
        for (number, grant) in (0_u32..).zip(&grants) {
            let steps = (0..=(round * 7 + number) % 9).map(|index| step(grant, index));
            lab.store.commit(progress(grant, steps.collect())).await?;
        }
    }
    for grant in &grants {
        lab.store.commit(completed(grant)).await?;
    }
    for session in [session, other] {
        let all = lab.events_of(session).await?;
        assert!(all.len() > 250 && all.iter().all(|event| event.session == session));
        lab.check(session).await?;
        for after in (0..all.len()).step_by(3) {
            for limit in [1, 50, 64, 130] {
                let slice = lab.store.read_events(lab.tenant, session, i64::try_from(after)?, limit).await?;
                assert!(slice.events.len() >= limit.min(all.len() - after), "{after}, {limit}");
                assert_eq!(slice.events[..], all[after..after + slice.events.len()], "{after}, {limit}");
            }
        }
    }
    // The first of a session that goes on stays, and so does everything behind it.
    let late = lab.submit(other).await?.run.id;
    let all = || async { trim(lab, NO_TIME).await.ok().filter(|rows| *rows > 0) };
    wait_for("everything is old", PATIENCE, || async { all().await.is_some() }).await;
    while trim(lab, NO_TIME).await? > 0 {}
    assert!(lab.store.read_events(lab.tenant, session, 0, 1000).await?.events.is_empty());
    let kept = lab.store.read_events(lab.tenant, other, 0, 1000).await?;
    assert_eq!(kept.events.iter().map(|event| event.run).collect::<Vec<_>>(), [Some(late)]);
    // What comes after a gap is a stream like any other.
    for _ in 0..70 {
        lab.submit(session).await?;
    }
    let again = lab.store.read_events(lab.tenant, session, 3, 50).await?;
    let cursors: Vec<_> = again.events.iter().map(|event| event.cursor).collect();
    assert_eq!(cursors, (again.last_cursor - 69..).take(cursors.len()).collect::<Vec<_>>());
    assert!(cursors.len() >= 50);
    Ok(())
}

pub(crate) async fn other_tenants_streams_do_not_exist(lab: &Lab) -> Result<()> {
    let (session, stranger) = (lab.session().await?, lab.stranger().await?);
    let foreign = lab.store.read_events(stranger, session, 0, 10).await.err().context("foreign")?;
    let unknown = lab.store.read_events(stranger, SessionId::new(), 0, 10).await.err().context("unknown")?;
    assert_eq!(foreign.code(), Code::SessionNotFound);
    assert_eq!(format!("{foreign:?}"), format!("{unknown:?}"));
    assert_eq!(refusal(lab.store.read_events(stranger, session, 99, 10).await), Code::SessionNotFound);
    Ok(())
}

pub(crate) async fn ends_of_many_streams_are_told_at_once(lab: &Lab) -> Result<()> {
    let (one, two) = (lab.session().await?, lab.session().await?);
    lab.submit(two).await?;
    let worker = lab.worker(LONG_LEASE).await?;
    lab.granted(two, worker).await?;
    let stranger = lab.stranger().await?;
    let asked = [(lab.tenant, one), (lab.tenant, two), (stranger, one), (lab.tenant, SessionId::new())];
    let mut ends = lab.store.last_cursors(&asked).await?;
    ends.sort_by_key(|end| end.last_cursor);
    let told: Vec<_> = ends.iter().map(|end| (end.tenant, end.session, end.last_cursor, end.owner)).collect();
    assert_eq!(told, [(lab.tenant, one, 1, None), (lab.tenant, two, 2, Some(worker))]);
    assert_eq!(lab.store.last_cursors(&[]).await?, []);
    Ok(())
}

/// Trims until nothing happens any more, and says how many rows that were.
async fn trim(lab: &Lab, kept: Duration) -> Result<u64> {
    let (mut after, mut rows) = (None, 0);
    loop {
        let trimmed = lab.store.trim_events(kept, after, 1).await?;
        after = trimmed.next;
        rows += trimmed.rows;
        if after.is_none() {
            return Ok(rows);
        }
    }
}

pub(crate) async fn old_events_of_finished_runs_are_trimmed(lab: &Lab) -> Result<()> {
    let session = session_with_chunks(lab).await?;
    assert_eq!(trim(lab, LONG_LEASE).await?, 0, "nothing is as old as that");
    assert_eq!(lab.events_of(session).await?.len(), 13);
    // Stamped by clocks that may be some microseconds apart.
    let all = || async { trim(lab, NO_TIME).await.ok().filter(|rows| *rows > 0) };
    assert_eq!(wait_for("events that are old", PATIENCE, all).await, 7);
    for after in [0, 5, 13] {
        let slice = lab.store.read_events(lab.tenant, session, after, 10).await?;
        assert_eq!((slice.events.len(), slice.last_cursor), (0, 13));
    }
    // What happens from here on has its place after what is gone.
    lab.submit(session).await?;
    let slice = lab.store.read_events(lab.tenant, session, 0, 10).await?;
    assert_eq!(slice.events.iter().map(|event| event.cursor).collect::<Vec<_>>(), [14]);
    assert_eq!(lab.runs_of(session).await?.len(), 3);
    Ok(())
}

pub(crate) async fn unfinished_runs_keep_their_events(lab: &Lab) -> Result<()> {
    let (session, worker) = (lab.session().await?, lab.worker(LONG_LEASE).await?);
    lab.submit(session).await?;
    // Queued before the first one ends: its first event stands in the middle of the first one's.
    let grant = lab.granted(session, worker).await?;
    lab.submit(session).await?;
    lab.store.commit(completed(&grant)).await?;
    let all = || async { trim(lab, NO_TIME).await.ok().filter(|rows| *rows > 0) };
    assert_eq!(wait_for("events that are old", PATIENCE, all).await, 2);
    let slice = lab.store.read_events(lab.tenant, session, 0, 10).await?;
    let kept: Vec<_> = slice.events.iter().map(|event| (event.cursor, event.body.name())).collect();
    assert_eq!(kept[0], (3, "run.queued"), "{kept:?}");
    assert_eq!(trim(lab, NO_TIME).await?, 0);
    Ok(())
}

pub(crate) async fn sessions_are_trimmed_some_at_a_time(lab: &Lab) -> Result<()> {
    for _ in 0..3 {
        lab.session().await?;
    }
    let mut seen = Vec::new();
    let mut after = None;
    let gone = std::sync::atomic::AtomicU64::new(0);
    wait_for("sessions that are old", PATIENCE, || async {
        let rows = lab.store.trim_events(NO_TIME, None, 10).await.map_or(0, |trimmed| trimmed.rows);
        gone.fetch_add(rows, std::sync::atomic::Ordering::SeqCst) + rows == 3
    })
    .await;
    for _ in 0..3 {
        let trimmed = lab.store.trim_events(NO_TIME, after, 1).await?;
        assert_eq!(Trimmed { next: None, ..trimmed }, Trimmed::default(), "everything was trimmed before");
        after = trimmed.next;
        seen.push(after.context("the last one looked at")?);
    }
    assert!(seen.is_sorted() && seen.len() == 3);
    assert_eq!(lab.store.trim_events(NO_TIME, after, 1).await?.next, None);
    Ok(())
}
