//! The stream service: everything that happens in a session, exactly once and in order, from any point on.

mod follow;
mod service;

pub use follow::Follower;
pub use service::{StreamOptions, add_service};
