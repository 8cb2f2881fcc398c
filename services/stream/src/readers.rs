//! Opening streams, whichever way they are served.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use remuda_domain::{
    Code, Cursor, Error, RunId, SessionId, TenantId, error::Result, limits, session::SessionRef,
};
use remuda_grpc::Standing;
use remuda_store::Store;
use remuda_transport::Transport;
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    StreamOptions,
    hub::{Hub, HubOptions},
    meters::observe_readers,
    reader::{Reader, Stay, Wish},
    source::Source,
};

/// Readers go one after the other within this time of the stop signal, so that they do not come back all at once.
const FAREWELL: Duration = Duration::from_secs(1);
/// A session is listened to for this long after its last reader: most come back.
const LINGER: Duration = Duration::from_secs(2);

/// What a stream is about, in the caller's words.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    /// Id or name of a session.
    Session(String),
    Run(String),
}

/// How a stream is to be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Manner {
    /// The last cursor seen.
    pub after: Cursor,
    pub deltas: bool,
    /// Also the sessions below, with where the reader stands in them.
    pub tree: Option<HashMap<SessionId, Cursor>>,
}

/// Opens readers. Cheap to clone; clones share what readers share.
#[derive(Clone)]
pub(crate) struct Readers {
    hub: Hub,
    seats: Arc<Semaphore>,
    opened: Arc<AtomicU32>,
    stop: CancellationToken,
}

impl Readers {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        transport: Arc<dyn Transport>,
        options: &StreamOptions,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let hub = HubOptions {
            replay_batch: options.replay_batch,
            catch_up: options.catch_up,
            linger: LINGER,
            farewell: FAREWELL * 2,
        };
        let seats = Arc::new(Semaphore::new(options.max_readers));
        observe_readers(Arc::downgrade(&seats), options.max_readers);
        Self {
            hub: Hub::start(store, transport, hub, tasks, stop.clone()),
            seats,
            opened: Arc::default(),
            stop,
        }
    }

    /// Opens a stream for a caller who may read, for as long as that is so.
    pub(crate) async fn open(
        &self,
        tenant: TenantId,
        standing: Standing,
        subject: &Subject,
        manner: Manner,
    ) -> Result<Reader> {
        let full = || {
            Error::new(Code::Overloaded, "this server has as many readers as it takes")
                .retry_after(Duration::from_secs(1))
        };
        let seat = Arc::clone(&self.seats).try_acquire_owned().map_err(|_| full())?;
        let (session, run) = self.find(tenant, subject).await?;
        let Manner { after, deltas, tree } = manner;
        let stay = Stay { _seat: seat, stop: self.stop.clone(), farewell: self.farewell(), standing };
        let source = Source { hub: self.hub.clone(), tenant };
        Reader::open(source, Wish { session, run, after, deltas, tree }, stay).await
    }

    async fn find(&self, tenant: TenantId, subject: &Subject) -> Result<(SessionId, Option<RunId>)> {
        match subject {
            Subject::Session(text) => match limits::parse_session_ref(text)? {
                SessionRef::Id(id) => Ok((id, None)),
                name @ SessionRef::Name(_) => {
                    Ok((self.hub.store().get_session(tenant, &name).await?.id, None))
                }
            },
            Subject::Run(text) => {
                let run: RunId = text.parse()?;
                Ok((self.hub.store().get_run(tenant, run).await?.session, Some(run)))
            }
        }
    }

    /// When the next reader goes: steps of the golden ratio spread any number of them evenly.
    fn farewell(&self) -> Duration {
        let step = self.opened.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B9);
        FAREWELL.mul_f64(f64::from(step) / f64::from(u32::MAX))
    }
}
