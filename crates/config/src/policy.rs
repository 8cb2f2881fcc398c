//! Loads the sandbox policy file: what each tenant may use.
//!
//! ```toml
//! [default]
//! backends = ["docker"]
//! images = ["python:*", "team/*"]
//! image = "python:3.12"
//! memory = "2GiB"
//!
//! [tenants.acme]            # like [default], except:
//! networks = ["egress"]
//! memory = "8GiB"
//! permissions = [{ permission = "webfetch", action = "deny" }]
//! ```

use std::{fs, path::Path};

use remuda_domain::execution::{
    BackendKind, Policies, ResourceLimits, TenantPolicy, WorkspaceAccess, check_image,
};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::{
    bytes::ByteSize,
    error::{Error, Origin, Problem},
    tree::Rule,
};

/// Loads the policies. An empty path allows every tenant everything.
pub(crate) fn load(path: &Path) -> Result<Policies, Error> {
    if path.as_os_str().is_empty() {
        return Ok(Policies::default());
    }
    let origin = Origin::File(path.to_owned());
    let failed = |key: &str, message: String| {
        Error::one(Problem { key: key.to_owned(), origin: origin.clone(), message })
    };
    let text = fs::read_to_string(path).map_err(|error| failed("", format!("cannot be read: {error}")))?;
    parse(&text).map_err(|(key, message)| failed(&key, message))
}

/// One section of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PolicySection {
    backends: Vec<BackendKind>,
    images: Vec<String>,
    image: Option<String>,
    networks: Vec<String>,
    workspace: Vec<WorkspaceAccess>,
    memory: Option<ByteSize>,
    cpus: Option<f64>,
    processes: Option<u64>,
    file_size: Option<ByteSize>,
    open_files: Option<u64>,
    scratch: ByteSize,
    disk_reserve: ByteSize,
    permissions: Vec<Rule>,
}

impl Default for PolicySection {
    fn default() -> Self {
        let TenantPolicy { backends, images, image, networks, workspace, limits, permissions: _ } =
            TenantPolicy::default();
        Self {
            backends,
            images,
            image,
            networks,
            workspace,
            memory: limits.memory_bytes.map(ByteSize),
            cpus: limits.cpus,
            processes: limits.processes,
            file_size: limits.file_bytes.map(ByteSize),
            open_files: limits.open_files,
            scratch: ByteSize(limits.scratch_bytes),
            disk_reserve: ByteSize(limits.disk_reserve_bytes),
            permissions: Vec::new(),
        }
    }
}

impl PolicySection {
    fn into_policy(self) -> Result<TenantPolicy, (&'static str, String)> {
        const LEAST_MEMORY: u64 = 8 << 20;
        if self.backends.is_empty() {
            return Err(("backends", "expected at least one of none, local and docker".to_owned()));
        }
        if self.workspace.is_empty() {
            return Err(("workspace", "expected at least one of mount and copy".to_owned()));
        }
        if let Some(image) = &self.image {
            check_image("image", image).map_err(|error| ("image", error.message().to_owned()))?;
        }
        if self.networks.iter().any(|network| network.is_empty() || network == "host") {
            return Err(("networks", "expected names of networks other than host".to_owned()));
        }
        if self.memory.is_some_and(|memory| memory.0 < LEAST_MEMORY) {
            return Err(("memory", "expected at least 8MiB".to_owned()));
        }
        if self.cpus.is_some_and(|cpus| !(0.01..=1024.0).contains(&cpus)) {
            return Err(("cpus", "expected 0.01 to 1024".to_owned()));
        }
        for (key, value) in [("processes", self.processes), ("open_files", self.open_files)] {
            if value.is_some_and(|value| !(8..=1_000_000).contains(&value)) {
                return Err((key, "expected 8 to 1000000".to_owned()));
            }
        }
        if let Some(problem) = Rule::problem(&self.permissions) {
            return Err(("permissions", problem));
        }
        Ok(TenantPolicy {
            backends: self.backends,
            images: self.images,
            image: self.image,
            networks: self.networks,
            workspace: self.workspace,
            limits: ResourceLimits {
                memory_bytes: self.memory.map(|size| size.0),
                cpus: self.cpus,
                processes: self.processes,
                file_bytes: self.file_size.map(|size| size.0),
                open_files: self.open_files,
                scratch_bytes: self.scratch.0,
                disk_reserve_bytes: self.disk_reserve.0,
            },
            permissions: self.permissions.into_iter().map(Into::into).collect(),
        })
    }
}

fn parse(text: &str) -> Result<Policies, (String, String)> {
    let mut file: Table =
        text.parse().map_err(|error: toml::de::Error| (String::new(), error.message().to_owned()))?;
    let default = take_table(&mut file, "default")?;
    let tenants = take_table(&mut file, "tenants")?;
    if let Some(key) = file.keys().next() {
        return Err((key.clone(), "unknown key; expected [default] and [tenants.NAME]".to_owned()));
    }
    // Rules for all tenants belong to the configuration, so that there is only one place for them.
    if default.contains_key("permissions") {
        let message = "expected in [tenants.NAME] only: set rules for all tenants as permissions.rules of the configuration";
        return Err(("default.permissions".to_owned(), message.to_owned()));
    }
    let mut policies = Policies { default: section("default", default.clone())?, ..Policies::default() };
    for (name, own) in tenants {
        let path = format!("tenants.{name}");
        let Value::Table(own) = own else {
            return Err((path, format!("expected a section, found {}", own.type_str())));
        };
        let mut merged = default.clone();
        merged.extend(own);
        policies.tenants.insert(name, section(&path, merged)?);
    }
    Ok(policies)
}

fn take_table(file: &mut Table, key: &str) -> Result<Table, (String, String)> {
    match file.remove(key) {
        None => Ok(Table::new()),
        Some(Value::Table(table)) => Ok(table),
        Some(other) => Err((key.to_owned(), format!("expected a section, found {}", other.type_str()))),
    }
}

fn section(path: &str, table: Table) -> Result<TenantPolicy, (String, String)> {
    let section: PolicySection = Value::Table(table)
        .try_into()
        .map_err(|error: toml::de::Error| (path.to_owned(), error.message().trim().to_owned()))?;
    section.into_policy().map_err(|(key, message)| (format!("{path}.{key}"), message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_section_overrides_keys_of_the_default() {
        let policies = parse(
            "[default]\nbackends = ['docker']\nimages = ['python:*']\nimage = 'python:3.12'\nmemory = '2GiB'\n\
             [tenants.acme]\nmemory = '8GiB'\nnetworks = ['egress']\nworkspace = ['copy']\n",
        )
        .unwrap();
        assert_eq!(policies.of("other"), &policies.default);
        let acme = policies.of("acme");
        assert_eq!(acme.backends, [BackendKind::Docker]);
        assert_eq!(acme.limits.memory_bytes, Some(8 << 30));
        assert_eq!(policies.default.limits.memory_bytes, Some(2 << 30));
        assert_eq!(
            (acme.networks.as_slice(), acme.workspace[0]),
            (&["egress".to_owned()][..], WorkspaceAccess::Copy)
        );
        assert_eq!(parse("").unwrap(), Policies::default());
    }

    #[test]
    fn tenant_can_have_its_own_permission_rules() {
        let policies = parse(
            "[tenants.acme]\npermissions = [\n  { permission = 'webfetch', action = 'deny' },\n  \
             { permission = 'bash', pattern = 'git push *', action = 'ask', locked = true },\n]\n",
        )
        .unwrap();
        assert!(policies.of("other").permissions.is_empty());
        let rules = &policies.of("acme").permissions;
        assert_eq!((rules[0].pattern.as_str(), rules[0].locked), ("*", false));
        assert_eq!((rules[1].pattern.as_str(), rules[1].locked), ("git push *", true));
    }

    #[test]
    fn error_names_the_key_of_a_mistake() {
        for (text, key) in [
            ("[defaults]\n", "defaults"),
            ("[default]\nbackend = 'docker'\n", "default"),
            ("[default]\nbackends = ['podman']\n", "default"),
            ("[default]\nbackends = []\n", "default.backends"),
            ("[tenants.a]\nmemory = '1KiB'\n", "tenants.a.memory"),
            ("[tenants.a]\nmemory = 'much'\n", "tenants.a"),
            ("[tenants.a]\nnetworks = ['host']\n", "tenants.a.networks"),
            ("[tenants.a]\nimage = '--privileged'\n", "tenants.a.image"),
            ("[tenants.a]\ncpus = 0.0\n", "tenants.a.cpus"),
            ("[tenants]\na = 3\n", "tenants.a"),
            ("default = 3\n", "default"),
            ("[default]\npermissions = [{permission = 'bash', action = 'deny'}]\n", "default.permissions"),
            ("[tenants.a]\npermissions = [{permission = '', action = 'deny'}]\n", "tenants.a.permissions"),
            ("[tenants.a]\npermissions = [{permission = 'bash', action = 'no'}]\n", "tenants.a"),
            ("[tenants.a]\npermissions = ['bash']\n", "tenants.a"),
        ] {
            assert_eq!(parse(text).unwrap_err().0, key, "{text}");
        }
    }
}
