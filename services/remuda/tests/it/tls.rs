//! TLS on every port of real processes.

use std::{path::PathBuf, sync::Arc};

use remuda_testkit::{nats_binaries, wait_for};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, ServerName},
};
use serde_json::json;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use crate::{
    cluster::Services,
    harness::{CommandOutput, Server, TIMEOUT, temporary_directory, variables},
};

/// A certificate for 127.0.0.1 that trusts itself.
struct Certificate {
    directory: TempDir,
}

impl Certificate {
    fn new() -> Self {
        let certificate = Self { directory: temporary_directory() };
        certificate.replace();
        certificate
    }

    /// Replaces both files and returns the certificate.
    fn replace(&self) -> CertificateDer<'static> {
        let new = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        std::fs::write(self.path("key.pem"), new.signing_key.serialize_pem()).unwrap();
        std::fs::write(self.path("cert.pem"), new.cert.pem()).unwrap();
        new.cert.der().clone()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn settings(&self) -> Vec<(String, String)> {
        variables(&[
            ("REMUDA_TLS__CERTIFICATE", self.path("cert.pem").to_str().unwrap()),
            ("REMUDA_TLS__KEY", self.path("key.pem").to_str().unwrap()),
            ("REMUDA_TLS__RELOAD", "50ms"),
            ("REMUDA_TELEMETRY__METRICS_LISTEN", "127.0.0.1:0"),
        ])
    }
}

/// The response to an HTTP/1.1 request over TLS. An error if the certificate is not trusted.
async fn get(url: &str, trusted: &CertificateDer<'static>) -> std::io::Result<String> {
    let (address, path) = url.strip_prefix("https://").unwrap().split_once('/').unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    let request = format!("GET /{path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await?;
    Ok(String::from_utf8_lossy(&response).into_owned())
}

async fn speaks_plain_http(url: &str) -> bool {
    let address = url.strip_prefix("https://").unwrap().split('/').next().unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await.ok();
    response.starts_with(b"HTTP/")
}

#[tokio::test]
async fn every_port_speaks_tls_and_takes_a_new_certificate() {
    let certificate = Certificate::new();
    let old = certificate.replace();
    let data = temporary_directory();
    let listen = ["dev", "--listen", "127.0.0.1:0", "--data-dir", data.path().to_str().unwrap()];
    let server = Server::start(&listen, &certificate.settings()).await;
    let ready = format!("{}/readyz", server.endpoint());
    let metrics = server.metrics().unwrap().to_owned();
    assert!(ready.starts_with("https://") && metrics.starts_with("https://"), "{ready} {metrics}");
    for url in [&ready, &metrics] {
        assert!(get(url, &old).await.unwrap().starts_with("HTTP/1.1 200"), "{url}");
        assert!(!speaks_plain_http(url).await, "{url}");
    }
    assert!(get(&metrics, &old).await.unwrap().contains("remuda_tls_certificate_expiry_timestamp_seconds"));

    // gRPC: with the authority, without it, and without TLS.
    let (endpoint, ca) = (server.endpoint().to_owned(), certificate.path("cert.pem"));
    let run = ["run", "--tool", "noop", "--json", "--endpoint", endpoint.as_str()];
    let trusting = variables(&[("REMUDA_CA", ca.to_str().unwrap())]);
    let done = CommandOutput::run(&run, &trusting).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
    let refused = CommandOutput::run(&run, &[]).await;
    assert_eq!(refused.error().0, "unavailable", "{}", refused.stderr);
    let plain = endpoint.replace("https", "http");
    let refused = CommandOutput::run(&["workers", "--json", "--endpoint", &plain], &[]).await;
    assert_eq!(refused.error().0, "unavailable", "{}", refused.stderr);

    let new = certificate.replace();
    wait_for("the new certificate on all ports", TIMEOUT, || async {
        get(&ready, &new).await.is_ok() && get(&metrics, &new).await.is_ok()
    })
    .await;
    assert!(get(&ready, &old).await.is_err());
}

#[tokio::test]
async fn stream_service_and_control_plane_speak_tls() {
    let certificate = Certificate::new();
    let mut services = Services::start(&nats_binaries()[0]);
    services.migrate().await;
    let (_, key) = services.create_key("acme", &["write"]).await;
    services.variables.extend(certificate.settings());
    let stream = services.stream().await;
    let plane = services.control_plane(&[("REMUDA_SERVER__STREAM_ENDPOINT", stream.endpoint())]).await;
    let _worker = services.worker().await;
    assert!(stream.endpoint().starts_with("https://") && plane.endpoint().starts_with("https://"));
    let ca = certificate.path("cert.pem");
    let client = variables(&[
        ("REMUDA_ENDPOINT", plane.endpoint()),
        ("REMUDA_CA", ca.to_str().unwrap()),
        ("REMUDA_API_KEY", &key),
    ]);
    // The end of the run is followed on the stream service.
    let arguments = ["run", "--tool", "Bash", "--arg", "command=echo hello", "--follow", "--json"];
    let done = CommandOutput::run(&arguments, &client).await;
    assert_eq!(done.code, 0, "{}", done.stderr);
}

#[tokio::test]
async fn unsuitable_certificate_is_named_at_the_start() {
    let certificate = Certificate::new();
    let data = temporary_directory();
    let start = ["dev", "--json", "--listen", "127.0.0.1:0", "--data-dir", data.path().to_str().unwrap()];
    let missing = variables(&[("REMUDA_TLS__KEY", "/missing/key.pem")]);
    let failed = CommandOutput::run(&start, &[certificate.settings(), missing].concat()).await;
    assert_eq!(failed.error(), ("invalid_argument".to_owned(), "tls.key".to_owned()), "{}", failed.stderr);
    let one = variables(&[("REMUDA_TLS__CERTIFICATE", certificate.path("cert.pem").to_str().unwrap())]);
    let failed = CommandOutput::run(&start, &one).await;
    assert!(failed.stderr.contains("tls.key"), "{}", failed.stderr);
    let doctor = CommandOutput::run(&["doctor", "--json"], &certificate.settings()).await;
    let checks = doctor.documents()[0]["checks"].clone();
    let tls = checks.as_array().unwrap().iter().find(|check| check["name"] == "TLS").unwrap().clone();
    assert_eq!(tls["level"], json!("ok"), "{tls}");
}
