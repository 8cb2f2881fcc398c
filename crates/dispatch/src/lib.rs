//! Gets workers for runnable sessions, and announces committed changes.
//!
//! The store decides in the transaction of a submit whether a worker with a free slot gets the session at once; it asks
//! [`Slots`] for one. Every other runnable session gets a token, which [`Dispatcher`] publishes with the events of the
//! change.
//!
//! ```text
//!            ┌────────────────────────────── Slots ◄── reserve_slot ── store, while it accepts a run
//!            │  worker of this process: its slot pool
//!            │  workers elsewhere: RemoteSlots ◄── slot offers ── workers
//!            │                         └────────── grant batches ──► workers
//!  store ── SessionChange ──► Dispatcher ── token ──► transport ──► any worker of the pool
//!                                        └─ events ─► transport ──► readers
//! ```
//!
//! Grants and tokens may be lost. That is only a delay: reconciler tasks redeliver grants and publish tokens again.

mod dispatcher;
mod grant_sender;
mod remote_slots;
mod retry;
mod slot_table;
mod slots;

use std::time::Duration;

pub use dispatcher::Dispatcher;
pub use remote_slots::{RemoteSlots, ServedOffers};
pub use retry::{retry_until_abandoned, session_abandoned};
pub use slots::{AttachedSlots, Slots};

/// The oldest grant that a worker executes as received. It claims the session of an older grant instead, because it may
/// have claimed that session in the meantime (after a `ReclaimSession` signal) and the grant would then carry an
/// outdated epoch.
pub const MAX_GRANT_AGE: Duration = Duration::from_secs(5);
