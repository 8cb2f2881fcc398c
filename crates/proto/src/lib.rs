//! The public gRPC API `remuda.v1`: generated types, conversions to the domain, and errors as statuses.
//!
//! Both directions of every conversion are here, so that services and clients agree.

pub mod convert;
pub mod status;

/// Generated from `proto/remuda/v1` and committed; `tests/api.rs` writes and checks it.
#[allow(
    clippy::all,
    clippy::large_futures,
    clippy::cast_possible_truncation,
    clippy::needless_pass_by_value,
    unreachable_pub,
    missing_debug_implementations,
    rust_2018_idioms,
    reason = "generated code"
)]
pub mod v1 {
    include!("generated/remuda.v1.rs");
}

/// The compiled protos, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("../../../proto/remuda.v1.binpb");
