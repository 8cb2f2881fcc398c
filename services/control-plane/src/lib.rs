//! The control plane: accepts, orders, cancels and explains runs.
//!
//! [`App`] is the application layer: every rule about what a caller may do is there, once, whatever protocol the caller
//! speaks. [`grpc`] translates. [`Reconciler`] mends what crashes and losses left behind.

mod alarm;
mod app;
mod grpc;
mod health;
mod reconciler;
mod waker;

pub use app::{
    App, AppOptions, CheckCall, Explanation, Making, Receipt, SessionSpec, Spender, Submission,
    SubmitReceipt, Wait,
};
pub use grpc::{ServerInfo, add_services};
pub use health::report_health;
pub use reconciler::{Reconciler, ReconcilerOptions};
