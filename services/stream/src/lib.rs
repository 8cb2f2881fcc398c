//! The stream service: everything that happens in a session, exactly once and in order, from any point on; and for those who
//! ask, the pieces of messages that are being said, and what happens in the sessions below.

mod follow;
mod http;
mod hub;
mod lane;
mod meters;
mod reader;
mod readers;
mod service;
mod shared;
mod source;
mod tree;

pub use service::{StreamOptions, StreamParts, Streams};
