//! Reading the event stream.

use anyhow::{Context as _, Result};
use remuda_domain::{Code, SessionId};

use crate::lab::{LONG_LEASE, Lab, completed, progress, refusal, step};

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

pub(crate) async fn other_tenants_streams_do_not_exist(lab: &Lab) -> Result<()> {
    let (session, stranger) = (lab.session().await?, lab.stranger().await?);
    let foreign = lab.store.read_events(stranger, session, 0, 10).await.err().context("foreign")?;
    let unknown = lab.store.read_events(stranger, SessionId::new(), 0, 10).await.err().context("unknown")?;
    assert_eq!(foreign.code(), Code::SessionNotFound);
    assert_eq!(format!("{foreign:?}"), format!("{unknown:?}"));
    assert_eq!(refusal(lab.store.read_events(stranger, session, 99, 10).await), Code::SessionNotFound);
    Ok(())
}
