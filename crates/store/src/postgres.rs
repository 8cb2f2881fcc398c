//! The store on PostgreSQL.

#[path = "shared/approvals.rs"]
mod approvals;
#[path = "shared/below.rs"]
mod below;
#[path = "shared/budgets.rs"]
mod budgets;
#[path = "shared/cancel.rs"]
mod cancel;
#[path = "shared/children.rs"]
mod children;
mod chunks;
#[path = "shared/claim.rs"]
mod claim;
#[path = "shared/commit.rs"]
mod commit;
#[path = "shared/delete.rs"]
mod delete;
#[path = "shared/deliveries.rs"]
mod deliveries;
mod dialect;
#[path = "shared/events.rs"]
mod events;
#[path = "shared/fleet.rs"]
mod fleet;
mod flush;
#[path = "shared/following.rs"]
mod following;
#[path = "shared/gc.rs"]
mod gc;
#[path = "shared/gc_runs.rs"]
mod gc_runs;
#[path = "shared/gc_sessions.rs"]
mod gc_sessions;
#[path = "shared/identity.rs"]
mod identity;
#[path = "shared/lock.rs"]
mod lock;
#[path = "shared/notes.rs"]
mod notes;
#[path = "shared/outlook.rs"]
mod outlook;
#[path = "shared/overview.rs"]
mod overview;
mod own;
#[path = "shared/ownership.rs"]
mod ownership;
#[path = "shared/park.rs"]
mod park;
#[path = "shared/ready.rs"]
mod ready;
#[path = "shared/recover.rs"]
mod recover;
#[path = "shared/runs.rs"]
mod runs;
#[path = "shared/sandboxes.rs"]
mod sandboxes;
#[path = "shared/sessions.rs"]
mod sessions;
#[path = "shared/spending.rs"]
mod spending;
#[path = "shared/store.rs"]
mod store;
#[path = "shared/submit.rs"]
mod submit;
mod swift;
#[path = "shared/tasks.rs"]
mod tasks;
#[path = "shared/ties.rs"]
mod ties;
#[path = "shared/totals.rs"]
mod totals;
#[path = "shared/trees.rs"]
mod trees;
#[path = "shared/trim.rs"]
mod trim;
#[path = "shared/webhooks.rs"]
mod webhooks;
#[path = "shared/work.rs"]
mod work;
#[path = "shared/writes.rs"]
mod writes;

pub(crate) use dialect::{lift_time_limits, open};
pub(crate) use store::{Context, SqlStore};
