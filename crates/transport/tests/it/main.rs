//! A conformance suite for every transport, and NATS-specific tests.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod deltas;
mod end_notices;
mod grants;
mod nats;
mod notices;
mod role_work;
mod roles;
mod signing;
mod suite;
mod support;
