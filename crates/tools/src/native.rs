//! The native tools, one module each.

mod bash;
mod bash_output;
mod edit;
mod glob;
mod grep;
mod kill_bash;
mod noop;
mod read;
mod task_report;
mod todo_write;
mod web_fetch;
mod web_search;
mod write;

pub use bash::Bash;
pub(crate) use bash::exclude_artifacts_from_git;
pub use bash_output::BashOutput;
pub use edit::Edit;
pub use glob::Glob;
pub use grep::Grep;
pub use kill_bash::KillBash;
pub use noop::Noop;
pub use read::Read;
pub use todo_write::TodoWrite;
pub use web_fetch::WebFetch;
pub use web_search::WebSearch;
pub use write::Write;
