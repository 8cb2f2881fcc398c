//! The tools every installation has.

mod background;
mod bash;
mod bash_output;
mod edit;
mod files;
mod glob;
mod grep;
mod kill_bash;
mod noop;
mod read;
mod todo_write;
mod web_fetch;
mod web_search;
mod write;

pub use bash::Bash;
pub(crate) use bash::hide_artifacts;
pub use bash_output::BashOutput;
pub use edit::Edit;
pub(crate) use files::file_tools;
pub use glob::Glob;
pub use grep::Grep;
pub use kill_bash::KillBash;
pub use noop::Noop;
pub use read::Read;
pub use todo_write::TodoWrite;
pub use web_fetch::WebFetch;
pub use web_search::WebSearch;
pub use write::Write;
