//! Tokens, live events, deltas, control signals and grants between processes: in memory or over NATS.
//!
//! A [`Transport`] may lose anything at any time; the store is the source of truth. It guarantees only this:
//! - At most one [`Token`] per session exists. A publish while one exists returns [`Published::AlreadyScheduled`],
//!   which is a success.
//! - A token that was taken and neither finished nor kept alive is redelivered to some worker.
//! - [`Token::finish`] returns only after the token is gone, so it does not make a later publish a duplicate.
//! - Live events, end notices, deltas, signals, notices, slot offers and grant batches reach the subscribers of the
//!   moment, in order per sender, at most once.
//!
//! Over NATS, messages are signed with keys from the store ([`BusSigning`]): a subscriber gets what another process of
//! the installation has sent, and besides at most hints to read the store.
//!
//! It does not decide who owns a session, and it does not count attempts.

mod bus_role;
mod bus_signing;
#[doc(hidden)]
pub mod fuzzing;
mod grant_batch;
mod memory;
mod meters;
mod nats;
mod traits;

pub use bus_role::BusRole;
pub use bus_signing::{BusSigning, KeySource, Signing, SignsAs, new_bus_secret};
pub use grant_batch::{GRANT_VERSION, GrantBatch, GrantRecord};
pub use memory::Memory;
pub use nats::{ConsumerReport, Nats, NatsAuth, NatsOptions, NatsReport};
pub use traits::*;
