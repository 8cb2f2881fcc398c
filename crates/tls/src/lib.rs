//! TLS of all ports of a process.
//!
//! [`ServerTls`] loads a certificate and its key, says what is wrong with them, and reloads them when the files change:
//! open connections keep the old certificate, new ones get the new one. Files that do not fit together are logged, and the
//! last good certificate stays. [`accept`] gives a connection with or without TLS.
//!
//! Clients are not asked for certificates.

mod accept;
mod certificate;
mod expiry;
mod server_tls;

pub use accept::{Protocol, Stream, accept, accept_http1};
pub use server_tls::{ServerTls, TlsFiles};
