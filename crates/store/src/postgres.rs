//! The store on PostgreSQL.

#[path = "shared/cancel.rs"]
mod cancel;
mod dialect;
#[path = "shared/events.rs"]
mod events;
#[path = "shared/fleet.rs"]
mod fleet;
#[path = "shared/identity.rs"]
mod identity;
#[path = "shared/ownership.rs"]
mod ownership;
#[path = "shared/runs.rs"]
mod runs;
#[path = "shared/sessions.rs"]
mod sessions;
#[path = "shared/store.rs"]
mod store;
#[path = "shared/submit.rs"]
mod submit;

pub(crate) use dialect::{lift_time_limits, open};
pub(crate) use store::{Context, SqlStore};
