//! Accepts, orders and explains runs.
