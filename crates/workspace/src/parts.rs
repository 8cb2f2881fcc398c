//! What a workspace declares besides agents.

pub(crate) mod actions;
pub(crate) mod models;
pub(crate) mod prompts;
pub(crate) mod settings;
pub(crate) mod skills;
pub(crate) mod tools;
