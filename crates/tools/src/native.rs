//! The tools every installation has.

mod background;
mod bash;
mod bash_output;
mod kill_bash;
mod noop;
mod read;
mod web_fetch;
mod web_search;
mod write;

pub use bash::Bash;
pub use bash_output::BashOutput;
pub use kill_bash::KillBash;
pub use noop::Noop;
pub use read::Read;
pub use web_fetch::WebFetch;
pub use web_search::WebSearch;
pub use write::Write;
