//! The control plane: accepts, orders, cancels and explains runs.
//!
//! [`App`] is the application layer: it holds every rule about what a caller may do, independent of the protocol. `grpc`
//! and `http` translate; the calls that they share are in `calls`. [`Reconciler`] repairs what crashes and lost messages
//! left behind, and delivers events to webhooks.

mod announcer;
mod app;
mod calls;
mod grpc;
mod health;
mod http;
mod log_filters;
mod lost_wakeups;
mod reconciler;
mod services;
mod webhooks;

pub use app::{
    App, AppOptions, Artifact, BudgetRef, CheckCall, CurrentStep, Estimate, Explanation, Overview,
    PoolPosition, Receipt, RunOverview, SessionRequirements, SessionSpec, Submission, SubmitReceipt,
    TestDelivery, Wait, WebhookSpec, WebhookWithSecret,
};
pub use calls::ServerInfo;
pub use health::{Health, report_health};
pub use http::{PREFIX, description, health_routes};
pub use log_filters::ProcessLogs;
pub use reconciler::{Reconciler, ReconcilerOptions};
pub use services::Services;
pub use webhooks::WebhookOptions;
