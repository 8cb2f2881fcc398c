//! The stream service: everything that happens in a session, exactly once and in order, from any point on; and for those who
//! ask, the pieces of messages that are being said, and what happens in the sessions below.

mod deltas;
mod follow;
mod lane;
mod reader;
mod service;
mod tree;

pub use follow::Follower;
pub use service::{StreamOptions, add_service};
