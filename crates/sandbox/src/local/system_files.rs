//! The files of this machine that confined commands see: programs, libraries, and settings without secrets.

use std::path::{Path, PathBuf};

const PROGRAMS: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// An allow list, because `/etc` also holds passwords and keys.
const SETTINGS: [&str; 42] = [
    "alternatives",
    "bash.bashrc",
    "bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "fonts",
    "gai.conf",
    "group",
    "host.conf",
    "hostname",
    "hosts",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "login.defs",
    "magic",
    "magic.mime",
    "maven",
    "mime.types",
    "networks",
    "nsswitch.conf",
    "os-release",
    "passwd",
    "perl",
    "pki/ca-trust",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "profile",
    "protocols",
    "resolv.conf",
    "rpc",
    "services",
    "shells",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
];

/// Their names contain a version.
const SETTINGS_OF_VERSIONS: [&str; 2] = ["java-", "python3"];

/// Those that exist.
pub(super) fn list() -> Vec<PathBuf> {
    let etc = Path::new("/etc");
    let versions = std::fs::read_dir(etc).into_iter().flatten().flatten().filter(|entry| {
        let name = entry.file_name();
        SETTINGS_OF_VERSIONS.iter().any(|start| name.as_encoded_bytes().starts_with(start.as_bytes()))
    });
    let programs = PROGRAMS.into_iter().map(PathBuf::from);
    programs
        .chain(SETTINGS.into_iter().map(|name| etc.join(name)))
        .chain(versions.map(|entry| entry.path()))
        .filter(|path| path.try_exists().unwrap_or(false))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_listed_path_contains_passwords_or_keys() {
        let listed = list();
        for secret in ["/etc/shadow", "/etc/gshadow", "/etc/ssl/private", "/etc/sudoers", "/etc/ssh", "/root"]
        {
            assert!(!listed.iter().any(|path| Path::new(secret).starts_with(path)), "{secret}");
        }
        assert!(listed.contains(&"/usr".into()) && listed.contains(&"/etc/passwd".into()));
    }
}
