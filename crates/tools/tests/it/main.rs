//! The native tools in a local sandbox.

mod bash;
mod bench;
mod files;
mod noop;
mod registry;
