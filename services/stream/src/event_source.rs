//! Access of one tenant's reader to the hub and the store.

use std::sync::Arc;

use remuda_domain::{
    Cursor, Event, EventBody, EventId, RunId, SessionId, TenantId, Timestamp,
    error::Result,
    page::PageRequest,
    session::SessionRef,
    snapshot::{RunSnapshot, SessionSnapshot, Snapshot},
};
use remuda_store::Store;

use crate::{
    follow::{Follower, TrimmedRange},
    hub::Hub,
    shared_event::{Shared, SharedEvent},
};

#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) hub: Hub,
    pub(crate) tenant: TenantId,
}

impl Source {
    pub(crate) fn store(&self) -> &dyn Store {
        self.hub.store()
    }

    pub(crate) async fn follow(&self, session: SessionId, after: Cursor, deltas: bool) -> Result<Follower> {
        Follower::start(self.hub.clone(), self.tenant, session, after, deltas).await
    }

    /// The unfinished runs of a session.
    pub(crate) async fn unfinished(&self, session: SessionId) -> Result<Vec<RunId>> {
        if self.store().get_session(self.tenant, &SessionRef::Id(session)).await?.pending == 0 {
            return Ok(Vec::new());
        }
        let queue = self.store().list_queue(self.tenant, session, &first_page()).await?;
        Ok(queue.items.into_iter().map(|run| run.id).collect())
    }

    /// A snapshot event that replaces trimmed history: of a session, or of one run in it.
    pub(crate) async fn snapshot(
        &self,
        session: SessionId,
        run: Option<RunId>,
        trimmed: TrimmedRange,
    ) -> Result<SharedEvent> {
        let (store, tenant) = (self.store(), self.tenant);
        let record = store.get_session(tenant, &SessionRef::Id(session)).await?;
        let runs: Vec<RunSnapshot> = match run {
            Some(run) => vec![RunSnapshot::from(&store.get_run(tenant, run).await?)],
            None if record.pending == 0 => Vec::new(),
            None => {
                let queue = store.list_queue(tenant, session, &first_page()).await?;
                queue.items.iter().map(RunSnapshot::from).collect()
            }
        };
        let snapshot = Snapshot {
            first_cursor: trimmed.first,
            last_cursor: trimmed.last.max(record.last_cursor),
            session: SessionSnapshot::from(&record),
            runs,
        };
        Ok(Arc::new(Shared::new(Event {
            id: EventId::new(),
            cursor: trimmed.first - 1,
            session,
            run,
            at: Timestamp::from(std::time::SystemTime::now()),
            body: EventBody::Snapshot(Box::new(snapshot)),
        })))
    }
}

fn first_page() -> PageRequest {
    PageRequest { size: PageRequest::MAX_SIZE, token: None }
}
