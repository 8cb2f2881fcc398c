//! The built-in rules: everything is allowed except access to credentials.

use remuda_domain::permission::{PermissionAction, PermissionRule};

/// Directories with credentials, beneath a home directory or anywhere else.
const CREDENTIAL_DIRECTORIES: [&str; 8] = [
    ".ssh",
    ".aws",
    ".gnupg",
    ".azure",
    ".config/gcloud",
    ".config/gh",
    ".password-store",
    ".local/share/keyrings",
];
const CREDENTIAL_FILES: [&str; 8] = [
    ".kube/config",
    ".docker/config.json",
    ".netrc",
    ".pgpass",
    ".git-credentials",
    ".pypirc",
    ".cargo/credentials.toml",
    ".config/containers/auth.json",
];
/// Has credentials beneath a home directory, and mostly plain settings in projects.
const NPMRC: &str = ".npmrc";
const SYSTEM_CREDENTIALS: [&str; 4] = ["/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssl/private"];

pub(crate) fn rules() -> Vec<PermissionRule> {
    use PermissionAction::{Allow, Ask, Deny};
    let mut rules = vec![PermissionRule::new("*", "*", Allow)];
    let environment = [("*.env", Ask), ("*.env.*", Ask), ("*.env.example", Allow)];
    rules.extend(environment.map(|(pattern, action)| PermissionRule::new("read", pattern, action)));
    for path in CREDENTIAL_DIRECTORIES {
        for pattern in [format!("{path}/*"), format!("*/{path}/*")] {
            rules.extend(["read", "edit", "grep"].map(|of| PermissionRule::new(of, pattern.clone(), Deny)));
        }
    }
    for path in CREDENTIAL_FILES {
        for pattern in [path.to_owned(), format!("*/{path}")] {
            rules.extend(["read", "edit", "grep"].map(|of| PermissionRule::new(of, pattern.clone(), Deny)));
        }
    }
    for path in SYSTEM_CREDENTIALS {
        for pattern in [path.to_owned(), format!("{path}/*")] {
            rules.extend(["read", "edit", "grep"].map(|of| PermissionRule::new(of, pattern.clone(), Deny)));
        }
    }
    // Ask in projects, deny in home directories.
    let homes = ["~", "/root", "/home/*", "/Users/*"].map(|home| (format!("{home}/{NPMRC}"), Deny));
    let asked = (format!("*/{NPMRC}"), Ask);
    for (pattern, action) in [asked].into_iter().chain(homes).chain([(NPMRC.to_owned(), Ask)]) {
        rules.extend(["read", "edit", "grep"].map(|of| PermissionRule::new(of, pattern.clone(), action)));
    }
    // The effect of a command on a path is unknown, so these only ask.
    for path in CREDENTIAL_DIRECTORIES.iter().chain(&CREDENTIAL_FILES).chain([&NPMRC]) {
        for pattern in [format!("* {path}"), format!("*/{path}")] {
            let patterns = [format!("{pattern}/*"), format!("{pattern} *")];
            rules.extend(patterns.map(|pattern| PermissionRule::new("bash", pattern, Ask)));
        }
    }
    for path in SYSTEM_CREDENTIALS {
        let pattern = format!("* {path}");
        let patterns = [format!("{pattern}/*"), format!("{pattern} *")];
        rules.extend(patterns.map(|pattern| PermissionRule::new("bash", pattern, Ask)));
    }
    rules
}
