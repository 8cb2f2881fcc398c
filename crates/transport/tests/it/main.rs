//! One suite for every transport, and what only NATS can get wrong.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod carrier;
mod deltas;
mod ends;
mod nats;
mod notices;
mod suite;
mod support;
