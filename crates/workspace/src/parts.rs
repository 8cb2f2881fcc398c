//! What a workspace declares besides agents.

pub(crate) mod actions;
pub(crate) mod memory;
pub(crate) mod models;
mod permissions;
mod price;
pub(crate) mod prompts;
pub(crate) mod settings;
pub(crate) mod skills;
pub(crate) mod tools;

pub(crate) use permissions::modes;
