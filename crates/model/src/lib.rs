#![doc = include_str!("../README.md")]

pub mod action;
mod broker;
mod fault;
mod fold;
mod parcel;
pub mod property;
mod protocol;
mod reconciler;
mod recovery;
mod row;
pub mod scope;
pub mod state;
mod store;
pub mod task;
mod worker;

pub use action::Action;
pub use protocol::Protocol;
pub use row::Row;
pub use scope::{Call, Faults, Mutation, Scope, StandBy};
pub use state::State;
