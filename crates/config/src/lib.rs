//! Configuration: defaults, file, environment, flags, each overruling the one before.
//!
//! [`Config::load`] reads all sources and either returns a tree in which every value was checked, or every
//! problem found, each with its key, where the value came from, and what was expected. Nothing is guessed: an
//! unknown key is an error that names the nearest known one, and a value of another type is never converted.
//! So each source is checked key by key first, and only then handed to the `config` crate, which lays one over
//! the other and would convert.
//!
//! The crate reads files, but neither the process environment nor the arguments: callers pass those in
//! ([`LoadOptions::from_process`] does it for `main`). Secrets are masked by `Debug`, `Display` and
//! [`Config::to_toml`].

mod address;
mod bytes;
mod directories;
mod duration;
mod entries;
mod error;
mod layer;
mod load;
mod policy;
mod secret;
mod secrets;
mod suggest;
mod tree;
mod validate;

pub use error::{Error, Origin, Problem};
pub use load::{LoadOptions, Loaded};
pub use secret::SecretUrl;
pub use tree::{
    Budget, Config, Context, Delegation, Docker, Hardening, Limits, LogFormat, Models, Nats, OnExpiry,
    Permissions, Platform, Reconciler, RequireKeys, Rule, Sandbox, Server, Store, Stream, Telemetry, Tools,
    Worker, Workspaces,
};
