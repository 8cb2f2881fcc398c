//! The tools every installation has.

mod bash;
mod noop;
mod read;
mod write;

pub use bash::Bash;
pub use noop::Noop;
pub use read::Read;
pub use write::Write;
