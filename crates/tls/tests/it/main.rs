//! Loading and reloading certificates, and handshakes with them.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{path::Path, sync::Arc, time::Duration};

use remuda_domain::Code;
use remuda_testkit::wait_for;
use remuda_tls::{Protocol, ServerTls, TlsFiles, accept};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, ServerName},
};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

/// A self-signed certificate for 127.0.0.1 in a directory.
struct Files {
    directory: TempDir,
}

impl Files {
    fn new() -> (Self, CertificateDer<'static>) {
        let files = Self { directory: tempfile::tempdir().unwrap() };
        let certificate = files.replace();
        (files, certificate)
    }

    fn replace(&self) -> CertificateDer<'static> {
        let new = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        std::fs::write(self.path("key.pem"), new.signing_key.serialize_pem()).unwrap();
        std::fs::write(self.path("cert.pem"), new.cert.pem()).unwrap();
        new.cert.der().clone()
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn tls_files(&self) -> TlsFiles {
        TlsFiles { certificate: self.path("cert.pem"), key: self.path("key.pem") }
    }
}

/// Connects with TLS, offering these protocols. Returns the protocol that the server chose.
async fn handshake(
    tls: &ServerTls,
    trusted: &CertificateDer<'static>,
    offered: &[&[u8]],
) -> std::io::Result<Option<Protocol>> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = offered.iter().map(|protocol| protocol.to_vec()).collect();
    let client = async {
        let stream = TcpStream::connect(address).await?;
        let name = ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    };
    let server = async { accept(Some(tls), listener.accept().await?.0).await };
    let (connected, accepted) = tokio::join!(client, server);
    connected?;
    accepted.map(|(_, protocol)| protocol)
}

#[tokio::test]
async fn client_and_server_agree_on_the_protocol() {
    let (files, trusted) = Files::new();
    let tls = ServerTls::load(files.tls_files()).unwrap();
    for (offered, chosen) in [
        (&[b"h2".as_slice()][..], Protocol::Http2),
        (&[b"http/1.1".as_slice()], Protocol::Http1),
        (&[b"h2".as_slice(), b"http/1.1"], Protocol::Http2),
        (&[], Protocol::Http1),
    ] {
        assert_eq!(handshake(&tls, &trusted, offered).await.unwrap(), Some(chosen));
    }
}

#[tokio::test]
async fn changed_certificate_is_used_without_a_restart() {
    let (files, old) = Files::new();
    let tls = ServerTls::load(files.tls_files()).unwrap();
    let stop = CancellationToken::new();
    let watching = tls.clone().watch(Duration::from_millis(20), stop.clone());
    let test = async {
        handshake(&tls, &old, &[]).await.unwrap();
        let new = files.replace();
        wait_for("the new certificate", Duration::from_secs(20), || async {
            handshake(&tls, &new, &[]).await.is_ok()
        })
        .await;
        assert!(handshake(&tls, &old, &[]).await.is_err());
        // Files that do not fit leave the certificate in use.
        let unwatched = ServerTls::load(files.tls_files()).unwrap();
        std::fs::write(files.path("key.pem"), "nothing").unwrap();
        assert!(unwatched.reload().is_err());
        // Reported once.
        assert!(!unwatched.reload().unwrap());
        for tls in [&tls, &unwatched] {
            handshake(tls, &new, &[]).await.unwrap();
        }
        stop.cancel();
    };
    tokio::join!(watching, test);
}

#[test]
fn errors_name_the_setting_and_the_file() {
    let (files, _) = Files::new();
    let (other, _) = Files::new();
    let tls_files = |certificate: &Path, key: &Path| TlsFiles {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
    };
    let (good, key) = (files.path("cert.pem"), files.path("key.pem"));
    let missing = files.path("missing.pem");
    for (files, field, text) in [
        (tls_files(&missing, &key), "tls.certificate", "cannot read"),
        (tls_files(&key, &key), "tls.certificate", "expected certificates in PEM format"),
        (tls_files(&good, &missing), "tls.key", "cannot read"),
        (tls_files(&good, &good), "tls.key", "expected a private key in PEM format"),
        (tls_files(&good, &other.path("key.pem")), "tls.key", "does not belong to the certificate"),
    ] {
        let error = ServerTls::load(files.clone()).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert_eq!(error.field(), Some(field), "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
    let tls = ServerTls::load(files.tls_files()).unwrap();
    assert!(tls.expires_at() > chrono::Utc::now());
}
