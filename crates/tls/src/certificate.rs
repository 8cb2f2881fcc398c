//! Reads a certificate and its key from PEM files.

use std::{fs, path::Path, sync::Arc};

use chrono::{DateTime, Utc};
use remuda_domain::error::{Error, Result};
use rustls::{
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::CertifiedKey,
};

use crate::{TlsFiles, expiry::not_after};

const CERTIFICATE: &str = "tls.certificate";
const KEY: &str = "tls.key";

/// The content of both files.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// A certificate that can be used.
#[derive(Clone)]
pub(crate) struct Loaded {
    pub(crate) certified: Arc<CertifiedKey>,
    pub(crate) expires_at: DateTime<Utc>,
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

impl Contents {
    pub(crate) fn read(files: &TlsFiles) -> Result<Self> {
        let read = |field: &'static str, path: &Path| {
            fs::read(path).map_err(|error| {
                Error::invalid(field, format!("cannot read {}: {}", path.display(), error.kind()))
                    .with_source(error)
            })
        };
        Ok(Self { certificate: read(CERTIFICATE, &files.certificate)?, key: read(KEY, &files.key)? })
    }

    /// Checks that both are what they should be, and belong together.
    pub(crate) fn load(&self, files: &TlsFiles) -> Result<Loaded> {
        let (path, key_path) = (files.certificate.display(), files.key.display());
        let invalid =
            || Error::invalid(CERTIFICATE, format!("expected certificates in PEM format in {path}"));
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&self.certificate)
            .collect::<Result<_, _>>()
            .map_err(|error| invalid().with_source(error))?;
        let expires_at = chain.first().and_then(|first| not_after(first)).ok_or_else(invalid)?;
        // Without the source, which could quote the file.
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|_| {
            Error::invalid(KEY, format!("expected a private key in PEM format in {key_path}"))
        })?;
        let certified = CertifiedKey::from_der(chain, key, &provider()).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => Error::invalid(
                KEY,
                format!("the key in {key_path} does not belong to the certificate in {path}"),
            ),
            error => Error::invalid(KEY, format!("the key in {key_path} cannot be used")).with_source(error),
        })?;
        Ok(Loaded { certified: Arc::new(certified), expires_at })
    }
}
