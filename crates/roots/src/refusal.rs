//! Why a directory may not be a workspace, told to operators and to tenants.

use std::path::PathBuf;

use remuda_domain::{Code, Error};

/// Why a directory may not be a workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It is or lies in this directory of the operating system.
    System(&'static str),
    /// It is, lies in, or holds the data directory.
    DataDirectory,
    /// It belongs to another tenant, or holds the directories of other tenants.
    OtherTenant,
    /// It lies outside of the allowed directories, which are these.
    Outside(Vec<PathBuf>),
}

/// A directory that may not be a workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// With all links resolved.
    pub path: PathBuf,
    pub reason: Reason,
}

impl Refusal {
    /// The reason in a few words, with paths: for operators only.
    #[must_use]
    pub fn why(&self) -> String {
        match &self.reason {
            Reason::System(directory) => format!("belongs to the system ({directory})"),
            Reason::DataDirectory => "is, lies in, or holds the data directory".to_owned(),
            Reason::OtherTenant => {
                "belongs to another tenant, or holds directories of other tenants".to_owned()
            }
            Reason::Outside(allowed) => {
                let allowed: Vec<String> = allowed.iter().map(|path| path.display().to_string()).collect();
                format!("lies outside of {}", allowed.join(", "))
            }
        }
    }

    /// The error for an operator: names the directory and the allowed ones.
    #[must_use]
    pub fn for_operator(&self) -> Error {
        let advice = match self.reason {
            Reason::Outside(_) => "; add a directory to workspaces.allowed",
            Reason::System(_) | Reason::DataDirectory | Reason::OtherTenant => "; no setting allows it",
        };
        let message = format!("{} {}{advice}", self.path.display(), self.why());
        Error::new(Code::WorkspaceNotAllowed, message)
    }

    /// The error for a tenant: names no path, since paths of others are none of its business.
    #[must_use]
    pub fn for_tenant(&self) -> Error {
        let message = "the operator does not allow the directory of this workspace";
        Error::new(Code::WorkspaceNotAllowed, message)
    }
}
