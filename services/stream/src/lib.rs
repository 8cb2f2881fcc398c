//! The stream service: the events of a session, exactly once and in order, from any cursor on. On request also the
//! deltas of messages under way, and the events of descendant sessions.

mod event_source;
mod follow;
mod followed_session;
mod http;
mod hub;
mod meters;
mod reader;
mod readers;
mod service;
mod session_tree;
mod shared_event;

pub use service::{StreamOptions, StreamParts, Streams};
