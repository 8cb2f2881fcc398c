#![doc = include_str!("../README.md")]

pub mod action;
mod broker;
mod fault;
mod fold;
pub mod property;
mod protocol;
mod reconciler;
mod recovery;
mod row;
pub mod scope;
pub mod state;
mod store;
mod worker;

pub use action::Action;
pub use protocol::Protocol;
pub use row::Row;
pub use scope::{Call, Faults, Mutation, Scope};
pub use state::State;
