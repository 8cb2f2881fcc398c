//! One suite for every transport, and what only NATS can get wrong.

mod nats;
mod suite;
mod support;
