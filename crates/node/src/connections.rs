//! Connects to the store and the transport of a mode.

use std::{
    fs::{File, TryLockError},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use remuda_config::Config;
use remuda_dispatch::{Dispatcher, Slots};
use remuda_domain::{
    Code, Error, Pool,
    error::Result,
    identity::{ApiKey, Scope},
    limits,
};
use remuda_roots::{
    Exposed, RootOptions, WorkspaceRoots, create_private_directory, create_private_file, restrict,
};
use remuda_store::{Backend, KeyOwner, Store};
use remuda_transport::{Memory, Nats, NatsOptions, Transport};
use tokio::time::Instant;

use crate::{Roles, bus_signing::bus_signing};

/// The tenant of clients without an API key, if none is required.
pub const DEFAULT_TENANT: &str = "default";

/// Timeout of one attempt to connect to NATS.
const CONNECT_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// Which store and transport a process uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// SQLite and an in-process transport: a single process without other services.
    Embedded,
    /// PostgreSQL and NATS, shared by many processes.
    Split,
}

impl Mode {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Split => "split",
        }
    }
}

/// An open store and transport, and the dispatcher over both.
pub struct Connections {
    pub store: Arc<dyn Store>,
    pub transport: Arc<dyn Transport>,
    pub dispatcher: Dispatcher,
    /// To close the connection at shutdown.
    pub(crate) nats: Option<Nats>,
    /// The lock of the data directory, held while the process runs.
    _lock: Option<File>,
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connections").field("nats", &self.nats).finish_non_exhaustive()
    }
}

/// The store options of a configuration.
pub fn store_options(config: &Config, mode: Mode) -> Result<remuda_store::Options> {
    let url = match mode {
        Mode::Embedded => config.embedded_store_url().map_err(|error| bad_config(&error))?,
        Mode::Split if config.store.url.is_empty() => {
            let message = "expected postgres://…: the split mode needs a PostgreSQL database";
            return Err(Error::invalid("store.url", message));
        }
        Mode::Split => config.store.url.clone(),
    };
    let options = remuda_store::Options {
        max_connections: config.store.max_connections,
        connect_timeout: config.store.connect_timeout,
        idempotency_ttl: config.limits.idempotency_ttl,
        max_pending: i64::from(config.limits.max_pending_runs_per_session),
        max_lost_attempts: config.limits.max_lost_attempts,
        ..remuda_store::Options::new(url.expose())
    };
    if mode == Mode::Split && options.backend()? == Backend::Sqlite {
        let message = "expected postgres://…: SQLite serves one process only, see `remuda dev`";
        return Err(Error::invalid("store.url", message));
    }
    Ok(options)
}

/// The NATS options of a configuration.
#[must_use]
pub fn nats_options(config: &Config) -> NatsOptions {
    let settings = &config.nats;
    let file = |path: &Path| (!path.as_os_str().is_empty()).then(|| path.to_owned());
    NatsOptions {
        servers: settings.servers.iter().map(|server| server.expose().to_owned()).collect(),
        prefix: settings.prefix.clone(),
        replicas: settings.replicas as usize,
        credentials_file: file(&settings.credentials_file),
        key: (!settings.key.is_empty()).then(|| settings.key.expose().to_owned()),
        ca_file: file(&settings.ca_file),
        connect_timeout: settings.connect_timeout.min(CONNECT_ATTEMPT_TIMEOUT),
        // The token of a dead worker is redelivered no later than its lease expires.
        ack_wait: config.worker.lease,
        ..NatsOptions::default()
    }
}

fn bad_config(error: &remuda_config::Error) -> Error {
    Error::new(Code::InvalidArgument, error.to_string())
}

/// The directory of a tenant's default workspace.
pub fn workspace_root(config: &Config, tenant: &str) -> Result<PathBuf> {
    limits::check_name("tenant", tenant)?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if !tenant.bytes().all(plain) {
        return Err(Error::invalid("tenant", "expected letters, digits, - and _"));
    }
    let root = &config.workspaces.root;
    if root.as_os_str().is_empty() {
        return Err(Error::invalid("workspaces.root", "expected a directory: no home directory is known"));
    }
    Ok(root.join(tenant))
}

/// Which directories workspaces may have.
///
/// The caller on the loopback address of an embedded server that requires no keys is its operator and its only user, so
/// that server has no other directories to protect.
#[must_use]
pub fn workspace_roots(config: &Config, mode: Mode) -> WorkspaceRoots {
    let embedded = mode == Mode::Embedded;
    let keys_required = config.server.require_keys.resolve(embedded, config.server.listen);
    let data = Some(&config.data_dir).filter(|path| embedded && !path.as_os_str().is_empty());
    WorkspaceRoots::new(&RootOptions {
        own: config.workspaces.root.clone(),
        allowed: config.workspaces.allowed.clone(),
        data_directory: data.cloned(),
        single_user: embedded && !keys_required,
    })
}

impl Connections {
    pub(crate) async fn open(config: &Config, mode: Mode, roles: Roles) -> Result<Self> {
        if roles.worker {
            make_private(&config.workspaces.root);
        }
        match mode {
            Mode::Embedded => Self::embedded(config).await,
            Mode::Split => Self::split(config, roles).await,
        }
    }

    async fn embedded(config: &Config) -> Result<Self> {
        let lock = lock_directory(config.data_directory().map_err(|error| bad_config(&error))?)?;
        let slots = Slots::default();
        let options = with_slots(store_options(config, Mode::Embedded)?, &slots);
        let before = remuda_store::migrate(&options).await?;
        let store = remuda_store::connect(&options).await?;
        if options.predates_operators(before.found)? {
            warn_of_former_operators(&*store).await?;
        }
        // The lock proves that no worker of an earlier process is alive, so its sessions can be claimed at once.
        store.expire_all_leases().await?;
        Ok(Self::new(store, Arc::new(Memory::new()), slots, None, Some(lock)))
    }

    async fn split(config: &Config, roles: Roles) -> Result<Self> {
        let slots = Slots::default();
        let options = with_slots(store_options(config, Mode::Split)?, &slots);
        let store = remuda_store::connect(&options).await?;
        let options = NatsOptions { manages_stream: roles.control_plane, ..nats_options(config) };
        if !options.has_credentials() {
            tracing::warn!(
                "nats.key and nats.credentials_file are not set: whoever reaches NATS reads the output of tools; see `remuda nats-auth`"
            );
        }
        let signing = bus_signing(config, roles, &store);
        let give_up_at = Instant::now() + config.nats.connect_timeout;
        let nats = retry(give_up_at, || Nats::connect_signed(options.clone(), signing.clone())).await?;
        if roles.control_plane || roles.worker {
            let pools = [config.worker.pool.parse::<Pool>()?];
            // A worker waits until a control plane has created the stream.
            let give_up_at = Instant::now() + config.nats.connect_timeout;
            retry(give_up_at, || nats.provision(&pools)).await?;
        }
        Ok(Self::new(store, Arc::new(nats.clone()), slots, Some(nats), None))
    }

    /// `slots` are those that the store was opened with.
    fn new(
        store: Arc<dyn Store>,
        transport: Arc<dyn Transport>,
        slots: Slots,
        nats: Option<Nats>,
        lock: Option<File>,
    ) -> Self {
        let dispatcher = Dispatcher::new(Arc::clone(&store), Arc::clone(&transport), slots);
        Self { store, transport, dispatcher, nats, _lock: lock }
    }
}

/// The keys with the scope `admin` that are still valid: before the scope `operator` existed, they covered the fleet.
pub async fn tenant_administrators(store: &dyn Store) -> Result<Vec<ApiKey>> {
    let valid =
        |key: &ApiKey| key.revoked_at.is_none() && key.expires_at.is_none_or(|at| at > chrono::Utc::now());
    let mut keys = store.list_keys(KeyOwner::Anyone).await?;
    keys.retain(|key| key.scopes.contains(&Scope::Admin) && valid(key));
    Ok(keys)
}

async fn warn_of_former_operators(store: &dyn Store) -> Result<()> {
    let keys = tenant_administrators(store).await?;
    if !keys.is_empty() {
        let keys: Vec<String> = keys.iter().map(|key| format!("{} ({})", key.id, key.name)).collect();
        tracing::warn!(
            count = keys.len(),
            keys = keys.join(", "),
            "keys with the scope admin no longer cover the fleet: create one with `remuda keys create --scope operator`"
        );
    }
    Ok(())
}

fn with_slots(options: remuda_store::Options, slots: &Slots) -> remuda_store::Options {
    remuda_store::Options { slots: Arc::new(slots.clone()), ..options }
}

/// Takes the rights of other users of this machine to existing data away. What cannot be changed is only reported: the
/// operator may have shared it on purpose.
fn make_private(path: &Path) {
    match restrict(path) {
        Ok(None) => {}
        Ok(Some(Exposed { mode, .. })) => tracing::warn!(
            path = %path.display(),
            mode = format!("{mode:04o}"),
            "other users of this machine may read this"
        ),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cannot keep other users of this machine out");
        }
    }
}

/// Tries something with exponential backoff while NATS is unavailable.
async fn retry<T, F: Future<Output = Result<T>>>(give_up_at: Instant, attempt: impl Fn() -> F) -> Result<T> {
    let mut pause = Duration::from_millis(100);
    loop {
        let error = match attempt().await {
            Err(error) if error.code() == Code::Unavailable && Instant::now() + pause < give_up_at => error,
            outcome => return outcome,
        };
        tracing::warn!(error = error.chain(), retry_in = ?pause, "waiting for NATS");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(5));
    }
}

/// Creates and locks the data directory.
fn lock_directory(directory: &Path) -> Result<File> {
    let failed = |error: std::io::Error| {
        Error::invalid("data_dir", format!("cannot use {}", directory.display())).with_source(error)
    };
    create_private_directory(directory).map_err(failed)?;
    let lock = directory.join("lock");
    let file = create_private_file(&lock).map_err(failed)?;
    make_private(directory);
    make_private(&lock);
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let message =
                format!("{} is in use by another remuda; choose another --data-dir", directory.display());
            Err(Error::new(Code::Unavailable, message).at("data_dir"))
        }
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}
