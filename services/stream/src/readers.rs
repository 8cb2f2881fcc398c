//! Opens streams, for all protocols.

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
use remuda_grpc::KeyValidity;
use remuda_store::Store;
use remuda_transport::Transport;
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    StreamOptions,
    event_source::Source,
    hub::{Hub, HubOptions},
    meters::observe_readers,
    reader::{ReadRequest, Reader, ReaderLifetime},
};

/// Streams close spread over this time after the stop signal, so that clients do not all reconnect at once.
const DRAIN_SPREAD: Duration = Duration::from_secs(1);
/// A session is followed for this long after its last reader: most come back.
const LINGER: Duration = Duration::from_secs(2);

/// What a stream is for, as named by the caller.
#[derive(Clone, Debug)]
pub(crate) enum StreamTarget {
    /// Id or name of a session.
    Session(String),
    Run(String),
}

/// Options of a stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct SubscribeOptions {
    /// The last cursor seen.
    pub after: Cursor,
    pub deltas: bool,
    /// Also the descendant sessions, with the reader's cursors in them.
    pub tree: Option<HashMap<SessionId, Cursor>>,
}

/// Opens readers. Cheap to clone; clones share the hub and the limits.
#[derive(Clone)]
pub(crate) struct Readers {
    hub: Hub,
    permits: Arc<Semaphore>,
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
            drain_time: DRAIN_SPREAD * 2,
        };
        let permits = Arc::new(Semaphore::new(options.max_readers));
        observe_readers(Arc::downgrade(&permits), options.max_readers);
        Self {
            hub: Hub::start(store, transport, hub, tasks, stop.clone()),
            permits,
            opened: Arc::default(),
            stop,
        }
    }

    /// Opens a stream for an authorized caller, for as long as the authorization lasts.
    pub(crate) async fn open(
        &self,
        tenant: TenantId,
        standing: KeyValidity,
        target: &StreamTarget,
        options: SubscribeOptions,
    ) -> Result<Reader> {
        let full = || {
            Error::new(Code::Overloaded, "this server has reached its maximum number of readers")
                .retry_after(Duration::from_secs(1))
        };
        let permit = Arc::clone(&self.permits).try_acquire_owned().map_err(|_| full())?;
        let (session, run) = self.resolve(tenant, target).await?;
        let SubscribeOptions { after, deltas, tree } = options;
        let lifetime = ReaderLifetime {
            _permit: permit,
            stop: self.stop.clone(),
            drain_time: self.drain_time(),
            standing,
        };
        let source = Source { hub: self.hub.clone(), tenant };
        Reader::open(source, ReadRequest { session, run, after, deltas, tree }, lifetime).await
    }

    async fn resolve(&self, tenant: TenantId, target: &StreamTarget) -> Result<(SessionId, Option<RunId>)> {
        match target {
            StreamTarget::Session(text) => match limits::parse_session_ref(text)? {
                SessionRef::Id(id) => Ok((id, None)),
                name @ SessionRef::Name(_) => {
                    Ok((self.hub.store().get_session(tenant, &name).await?.id, None))
                }
            },
            StreamTarget::Run(text) => {
                let run: RunId = text.parse()?;
                Ok((self.hub.store().get_run(tenant, run).await?.session, Some(run)))
            }
        }
    }

    /// When the next reader closes: steps of the golden ratio spread any number of readers evenly.
    fn drain_time(&self) -> Duration {
        let step = self.opened.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B9);
        DRAIN_SPREAD.mul_f64(f64::from(step) / f64::from(u32::MAX))
    }
}
