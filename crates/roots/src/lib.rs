//! Workspace roots: which directories workspaces may have.
//!
//! [`WorkspaceRoots`] is the operator's decision. It is asked with the *real* path of a directory, in which every link is
//! resolved ([`resolve`]); a directory is then opened by that path without following links ([`open_directory`]). So a
//! link that changes between check and use makes the use fail, and never leads it elsewhere.
//!
//! The control plane asks when a workspace is registered, and before it reads a file of one. Workers ask whenever a run
//! needs its workspace: they see the real directories, and the decision may have changed since.
//!
//! Directories are created for the owner alone, see [`create_private_directory`].

mod private;
mod refusal;
mod resolve;
mod roots;
mod system;

pub use private::{Exposed, create_private_directory, create_private_file, exposed, restrict};
pub use refusal::{Reason, Refusal};
pub use resolve::{open_directory, resolve};
pub use roots::{RootOptions, TENANT, WorkspaceRoots, check_allowed};
pub use system::system_directory;
