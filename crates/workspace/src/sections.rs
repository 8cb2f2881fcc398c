//! Parsers for all definitions except agents.

pub(crate) mod actions;
pub(crate) mod memory;
mod model_limits;
pub(crate) mod models;
mod permissions;
pub(crate) mod prompts;
pub(crate) mod settings;
pub(crate) mod skills;
pub(crate) mod tools;

pub(crate) use permissions::modes;
