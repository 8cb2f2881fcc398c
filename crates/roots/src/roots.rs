//! The operator's decision which directories may be workspaces.

use std::path::{Path, PathBuf};

use remuda_domain::error::Result;

use crate::{
    refusal::{Reason, Refusal},
    resolve::resolve,
    system::system_directory,
};

/// Stands for the tenant's name in an allowed directory.
pub const TENANT: &str = "{tenant}";

/// What an operator has configured.
#[derive(Clone, Debug, Default)]
pub struct RootOptions {
    /// The parent of the tenants' own directories.
    pub own: PathBuf,
    /// Further directories; [`TENANT`] as a whole part stands for the tenant's name.
    pub allowed: Vec<PathBuf>,
    /// No workspace may lie in it, except beneath `own`.
    pub data_directory: Option<PathBuf>,
    /// Every directory is allowed, except those that are never: for a server whose only user is its operator.
    pub single_user: bool,
}

/// Which directories may be workspaces.
///
/// A tenant may have what lies beneath its own directory and beneath the allowed ones. Nobody may have a directory of the
/// system, the data directory, or a directory of another tenant, unless an allowed directory names that very directory
/// or one above it within the other's. Links in the operator's directories are resolved once, at the start: a link that
/// a tool puts in their place later allows nothing.
#[derive(Clone, Debug)]
pub struct WorkspaceRoots {
    allowed: Vec<Directory>,
    tenants: Vec<TenantDirectory>,
    data_directory: Option<Directory>,
    single_user: bool,
}

/// A directory of the operator's, as configured and with its links resolved.
#[derive(Clone, Debug)]
struct Directory {
    configured: PathBuf,
    real: PathBuf,
}

impl Directory {
    fn new(path: &Path) -> Self {
        // What cannot be resolved allows only what is named literally.
        Self { configured: path.to_owned(), real: resolve(path).unwrap_or_else(|_| path.to_owned()) }
    }

    /// The rest of a path that is or lies beneath the directory.
    fn strip<'a>(&self, path: &'a Path) -> Option<&'a Path> {
        let paths = [&self.configured, &self.real];
        paths.into_iter().find_map(|directory| path.strip_prefix(directory).ok())
    }

    fn holds(&self, path: &Path) -> bool {
        self.strip(path).is_some()
    }

    /// Whether the directory is or lies beneath a path.
    fn is_beneath(&self, path: &Path) -> bool {
        self.configured.starts_with(path) || self.real.starts_with(path)
    }

    /// Number of parts, by which the more specific of two directories is found.
    fn depth(&self) -> usize {
        self.real.components().count()
    }
}

/// `parent/{tenant}/rest`.
#[derive(Clone, Debug)]
struct TenantDirectory {
    parent: Directory,
    rest: PathBuf,
}

impl TenantDirectory {
    /// The directory of a tenant.
    fn of(&self, tenant: &str) -> PathBuf {
        let own = self.parent.configured.join(tenant);
        if self.rest.as_os_str().is_empty() { own } else { own.join(&self.rest) }
    }

    /// Whether a path is or lies beneath the directory of a tenant.
    fn holds(&self, tenant: &str, path: &Path) -> bool {
        let inside = self.parent.strip(path).and_then(|rest| rest.strip_prefix(tenant).ok());
        inside.is_some_and(|inside| inside.starts_with(&self.rest))
    }
}

/// The parts before and after [`TENANT`].
fn split_at_tenant(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let parts: Vec<_> = path.components().collect();
    let at = parts.iter().position(|part| part.as_os_str() == TENANT)?;
    Some((parts[..at].iter().collect(), parts[at + 1..].iter().collect()))
}

/// Checks an entry of the configuration. Returns what was expected instead.
pub fn check_allowed(path: &Path) -> Result<(), String> {
    let text = path.to_string_lossy();
    let (before, after) = split_at_tenant(path).unwrap_or_else(|| (path.to_owned(), PathBuf::new()));
    let plain = |path: &Path| !path.to_string_lossy().contains(['{', '}']);
    let normal = text.split('/').all(|part| !matches!(part, "." | ".."));
    if !path.is_absolute() || !normal {
        return Err(format!("expected absolute paths without . and .., found {text}"));
    }
    if !plain(&before) || !plain(&after) {
        return Err(format!("expected {TENANT} at most once and as a whole part of a path, found {text}"));
    }
    match system_directory(path) {
        Some(directory) if path != Path::new("/") => {
            Err(format!("expected directories outside of the system's ({directory}), found {text}"))
        }
        _ => Ok(()),
    }
}

impl WorkspaceRoots {
    /// Resolves the links of the operator's directories.
    #[must_use]
    pub fn new(options: &RootOptions) -> Self {
        let mut roots = Self {
            allowed: Vec::new(),
            tenants: Vec::new(),
            data_directory: options.data_directory.as_deref().map(Directory::new),
            single_user: options.single_user,
        };
        if options.own.is_absolute() {
            roots
                .tenants
                .push(TenantDirectory { parent: Directory::new(&options.own), rest: PathBuf::new() });
        }
        for path in &options.allowed {
            match split_at_tenant(path) {
                Some((parent, rest)) => {
                    roots.tenants.push(TenantDirectory { parent: Directory::new(&parent), rest });
                }
                None => roots.allowed.push(Directory::new(path)),
            }
        }
        roots
    }

    /// Resolves the links of a workspace's root and checks where it leads. Returns the real path.
    ///
    /// A root that cannot be resolved here is checked as it is: the workers may be on other machines, and they check it
    /// again.
    pub fn admit(&self, tenant: &str, root: &Path) -> Result<PathBuf, Refusal> {
        let real = resolve(root).unwrap_or_else(|_| root.to_owned());
        self.check(tenant, &real)?;
        Ok(real)
    }

    /// Checks a path without links.
    pub fn check(&self, tenant: &str, real: &Path) -> Result<(), Refusal> {
        let refused = |reason| Err(Refusal { path: real.to_owned(), reason });
        if let Some(directory) = system_directory(real) {
            return refused(Reason::System(directory));
        }
        if self.touches_data(real) {
            return refused(Reason::DataDirectory);
        }
        let named = self.allowed.iter().filter(|directory| directory.holds(real)).map(Directory::depth).max();
        if self.touches_other_tenant(tenant, real, named) {
            return refused(Reason::OtherTenant);
        }
        let own = self.tenants.iter().any(|directory| directory.holds(tenant, real));
        if own || named.is_some() || self.single_user {
            return Ok(());
        }
        refused(Reason::Outside(self.allowed_for(tenant)))
    }

    /// The directories that a tenant may have workspaces in.
    fn allowed_for(&self, tenant: &str) -> Vec<PathBuf> {
        let own = self.tenants.iter().map(|directory| directory.of(tenant));
        own.chain(self.allowed.iter().map(|directory| directory.configured.clone())).collect()
    }

    fn touches_data(&self, real: &Path) -> bool {
        let Some(data) = &self.data_directory else { return false };
        let workspaces = self.tenants.iter().any(|directory| {
            data.holds(&directory.parent.real) && directory.parent.strip(real).is_some_and(is_below)
        });
        // A single user may work in a directory above the data directory, such as their home.
        (data.holds(real) && !workspaces) || (!self.single_user && data.is_beneath(real))
    }

    /// `named` is the depth of the most specific allowed directory that holds the path: one that lies within another
    /// tenant's was meant to be shared.
    fn touches_other_tenant(&self, tenant: &str, real: &Path, named: Option<usize>) -> bool {
        self.tenants.iter().any(|directory| {
            let parent = &directory.parent;
            match parent.strip(real) {
                Some(rest) if is_below(rest) => {
                    let shared = named.is_some_and(|depth| depth > parent.depth());
                    !rest.starts_with(tenant) && !shared
                }
                Some(_) => true,
                None => !self.single_user && parent.is_beneath(real),
            }
        })
    }
}

fn is_below(rest: &Path) -> bool {
    !rest.as_os_str().is_empty()
}

#[cfg(test)]
#[path = "roots_tests.rs"]
mod tests;
