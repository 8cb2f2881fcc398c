//! The SQLite implementation of the store.

mod apply;
#[path = "shared/approvals.rs"]
mod approvals;
#[path = "shared/background_tasks.rs"]
mod background_tasks;
#[path = "shared/budgets.rs"]
mod budgets;
#[path = "shared/bus_keys.rs"]
mod bus_keys;
#[path = "shared/cancel.rs"]
mod cancel;
#[path = "shared/children.rs"]
mod children;
mod chunks;
#[path = "shared/claim.rs"]
mod claim;
#[path = "shared/commit.rs"]
mod commit;
#[path = "shared/commit_rows.rs"]
mod commit_rows;
#[path = "shared/delete.rs"]
mod delete;
#[path = "shared/deliveries.rs"]
mod deliveries;
#[path = "shared/descendants.rs"]
mod descendants;
mod dialect;
#[path = "shared/estimate_inputs.rs"]
mod estimate_inputs;
#[path = "shared/events.rs"]
mod events;
mod fast_path;
mod files;
#[path = "shared/fleet.rs"]
mod fleet;
mod flush;
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
#[path = "shared/overview.rs"]
mod overview;
#[path = "shared/ownership.rs"]
mod ownership;
#[path = "shared/park.rs"]
mod park;
mod peek;
#[path = "shared/placement.rs"]
mod placement;
#[path = "shared/recover.rs"]
mod recover;
#[path = "shared/related_rows.rs"]
mod related_rows;
#[path = "shared/resume.rs"]
mod resume;
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
#[path = "shared/successors.rs"]
mod successors;
#[path = "shared/totals.rs"]
mod totals;
#[path = "shared/trees.rs"]
mod trees;
#[path = "shared/trim.rs"]
mod trim;
#[path = "shared/webhooks.rs"]
mod webhooks;
#[path = "shared/worked_time.rs"]
mod worked_time;
#[path = "shared/write_set.rs"]
mod write_set;
mod writer;

pub(crate) use dialect::{check_integrity, open};
pub(crate) use files::protect_files;
pub(crate) use store::{Context, SqlStore};
