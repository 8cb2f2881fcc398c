//! The certificate of a process: loaded at the start, and again when its files change.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use parking_lot::RwLock;
use remuda_domain::error::{Error, Result};
use rustls::{
    ServerConfig,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::certificate::{Contents, Loaded, provider};

/// A process warns when its certificate expires within this time.
const EXPIRES_SOON: chrono::TimeDelta = chrono::TimeDelta::days(14);

const HTTP_1: &[u8] = b"http/1.1";
pub(crate) const HTTP_2: &[u8] = b"h2";

/// The files of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// PEM: the certificate, and those that lead to its authority.
    pub certificate: PathBuf,
    /// PEM: the private key.
    pub key: PathBuf,
}

/// TLS for the ports of a process. Clones share the certificate.
#[derive(Clone)]
pub struct ServerTls {
    shared: Arc<Shared>,
    config: Arc<ServerConfig>,
    /// For a port that speaks HTTP/1.1 only.
    http1: Arc<ServerConfig>,
}

struct Shared {
    files: TlsFiles,
    loaded: RwLock<Loaded>,
    /// What was read last, good or not.
    seen: RwLock<Contents>,
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").field("files", &self.shared.files).finish_non_exhaustive()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("files", &self.files).finish_non_exhaustive()
    }
}

impl ResolvesServerCert for Shared {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.loaded.read().certified))
    }
}

impl ServerTls {
    /// Loads the files. The error names the setting and what was expected.
    pub fn load(files: TlsFiles) -> Result<Self> {
        let seen = Contents::read(&files)?;
        let loaded = seen.load(&files)?;
        warn_if_expiring(&files, loaded.expires_at);
        let shared = Arc::new(Shared { files, loaded: RwLock::new(loaded), seen: RwLock::new(seen) });
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::internal("TLS cannot be set up").with_source(error))?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&shared) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![HTTP_1.to_vec()];
        let http1 = Arc::new(config.clone());
        config.alpn_protocols = vec![HTTP_2.to_vec(), HTTP_1.to_vec()];
        Ok(Self { shared, config: Arc::new(config), http1 })
    }

    /// When the certificate in use expires.
    #[must_use]
    pub fn expires_at(&self) -> DateTime<Utc> {
        self.shared.loaded.read().expires_at
    }

    /// Loads the files again if they have changed. Returns whether another certificate is in use now.
    pub fn reload(&self) -> Result<bool> {
        let shared = &self.shared;
        let contents = Contents::read(&shared.files)?;
        if *shared.seen.read() == contents {
            return Ok(false);
        }
        let loaded = contents.load(&shared.files);
        *shared.seen.write() = contents;
        *shared.loaded.write() = loaded?;
        Ok(true)
    }

    /// Reloads changed files every `pause` and at SIGHUP, until `stop`.
    pub async fn watch(self, pause: Duration, stop: CancellationToken) {
        let mut hangups = match signal(SignalKind::hangup()) {
            Ok(hangups) => hangups,
            Err(error) => {
                return tracing::warn!(%error, "SIGHUP cannot be received; certificates are not reloaded");
            }
        };
        let mut timer = interval(pause);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = timer.tick() => {}
                _ = hangups.recv() => {}
            }
            let tls = self.clone();
            // A panic or a shutdown, nothing else.
            let Ok(outcome) = spawn_blocking(move || tls.reload()).await else { return };
            match outcome {
                Ok(true) => {
                    tracing::info!(expires_at = %self.expires_at(), "reloaded the TLS certificate");
                    warn_if_expiring(&self.shared.files, self.expires_at());
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(
                        error = error.chain(),
                        "the TLS certificate was not reloaded; the last one stays"
                    );
                }
            }
        }
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.config))
    }

    pub(crate) fn http1_acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.http1))
    }
}

fn warn_if_expiring(files: &TlsFiles, expires_at: DateTime<Utc>) {
    if expires_at < Utc::now() + EXPIRES_SOON {
        tracing::warn!(file = %files.certificate.display(), %expires_at, "the TLS certificate expires soon");
    }
}
