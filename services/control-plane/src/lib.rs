//! The control plane: accepts, orders, cancels and explains runs.
//!
//! [`App`] is the application layer: every rule about what a caller may do is there, once, whatever protocol the caller
//! speaks. `grpc` and `http` translate; what they both offer is in `calls`. [`Reconciler`] mends what crashes and losses left behind,
//! and delivers events to webhooks.

mod alarm;
mod app;
mod calls;
mod dispatch;
mod grpc;
mod health;
mod http;
mod logs;
mod reconciler;
mod services;
mod waker;
mod webhooks;

pub use app::{
    App, AppOptions, Artifact, CheckCall, Estimate, Explanation, Making, Overview, PoolPlace, Receipt,
    RunLine, SessionSpec, Spender, StepGlance, Submission, SubmitReceipt, TestDelivery, Wait, WebhookSpec,
    WithSecret,
};
pub use calls::ServerInfo;
pub use health::{Health, report_health};
pub use http::{PREFIX, description, health_routes};
pub use logs::ProcessLogs;
pub use reconciler::{Reconciler, ReconcilerOptions};
pub use services::Services;
pub use webhooks::WebhookOptions;
