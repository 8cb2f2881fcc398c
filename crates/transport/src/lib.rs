//! Wake-ups, live events, pieces of messages and control signals: in process or over NATS.
//!
//! A [`Transport`] may lose everything at any time; the store is the truth. It promises only this:
//! - At most one [`Token`] per session exists. Publishing while one exists is refused as
//!   [`Published::AlreadyScheduled`], which is a success.
//! - A token that was taken and neither finished nor kept alive comes back to some worker.
//! - [`Token::finish`] returns only after the token is gone, so a publish that follows is not refused because of it.
//! - Live events, ends of runs, deltas, signals, notices, offers and parcels of grants reach those who subscribed before they were sent, in order per sender, at most once.
//!
//! It does not say who owns a session, and it does not count attempts.

mod memory;
mod meters;
mod nats;
mod traits;

pub use memory::Memory;
pub use nats::{ConsumerReport, Nats, NatsOptions, NatsReport};
pub use traits::*;
