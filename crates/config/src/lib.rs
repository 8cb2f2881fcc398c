//! Loads the configuration from defaults, file, environment and flags; each overrides the one before.
//!
//! [`Config::load`] reads all sources. It returns either a checked configuration, or all problems with their key, the
//! origin of the value, and what was expected. Loading is strict: an unknown key is an error that suggests the most
//! similar one, and a value of another type is not converted. So each source is checked key by key, before the `config`
//! crate, which would convert values, merges them.
//!
//! The crate reads files, but neither the process environment nor the arguments: callers pass them in
//! ([`LoadOptions::from_process`] does it for `main`). `Debug`, `Display` and [`Config::to_toml`] mask secrets.

mod address;
mod bytes;
mod directories;
mod duration;
mod error;
mod layer;
mod load;
mod policy;
mod secret_text;
mod secret_url;
mod secrets;
mod source_parser;
mod tree;
mod validate;

pub use error::{Error, Origin, Problem};
pub use load::{LoadOptions, LoadedConfig};
pub use secret_text::SecretText;
pub use secret_url::SecretUrl;
pub use tree::{
    Budget, BusSigning, Config, Context, Delegation, Docker, Hardening, Limits, LogFormat, Models, Nats,
    OnExpiry, Permissions, Platform, Reconciler, RequireKeys, Rule, Sandbox, Server, Store, Stream,
    Telemetry, Tls, Tools, Worker, Workspaces,
};
