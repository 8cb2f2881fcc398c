//! The built-in rules: everything is allowed but what gives secrets away.

use remuda_domain::permission::{PermissionAction, PermissionRule};

/// Where programs keep credentials, beneath a home or anywhere else.
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
/// Credentials beneath a home, and settings elsewhere.
const OF_PROJECTS: &str = ".npmrc";
const CREDENTIALS_OF_SYSTEM: [&str; 4] = ["/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssl/private"];

pub(crate) fn rules() -> Vec<PermissionRule> {
    use PermissionAction::{Allow, Ask, Deny};
    let mut rules = vec![PermissionRule::new("*", "*", Allow)];
    let environment = [("*.env", Ask), ("*.env.*", Ask), ("*.env.example", Allow)];
    rules.extend(environment.map(|(pattern, action)| PermissionRule::new("read", pattern, action)));
    for place in CREDENTIAL_DIRECTORIES {
        for pattern in [format!("{place}/*"), format!("*/{place}/*")] {
            rules.extend(["read", "edit", "grep"].map(|of| PermissionRule::new(of, pattern.clone(), Deny)));
        }
    }
    for place in CREDENTIAL_FILES {
        for pattern in [place.to_owned(), format!("*/{place}")] {
            rules.extend(["read", "edit", "grep"].map(|of| PermissionRule::new(of, pattern.clone(), Deny)));
        }
    }
    for place in CREDENTIALS_OF_SYSTEM {
        for pattern in [place.to_owned(), format!("{place}/*")] {
            rules.extend(["read", "edit", "grep"].map(|of| PermissionRule::new(of, pattern.clone(), Deny)));
        }
    }
    // Projects have one too, mostly without secrets.
    let homes = ["~", "/root", "/home/*", "/Users/*"].map(|home| (format!("{home}/{OF_PROJECTS}"), Deny));
    let asked = (format!("*/{OF_PROJECTS}"), Ask);
    for (pattern, action) in [asked].into_iter().chain(homes).chain([(OF_PROJECTS.to_owned(), Ask)]) {
        rules.extend(["read", "edit", "grep"].map(|of| PermissionRule::new(of, pattern.clone(), action)));
    }
    // What a command does with a path is not known, so it is only asked about.
    for place in CREDENTIAL_DIRECTORIES.iter().chain(&CREDENTIAL_FILES).chain([&OF_PROJECTS]) {
        for pattern in [format!("* {place}"), format!("*/{place}")] {
            let patterns = [format!("{pattern}/*"), format!("{pattern} *")];
            rules.extend(patterns.map(|pattern| PermissionRule::new("bash", pattern, Ask)));
        }
    }
    for place in CREDENTIALS_OF_SYSTEM {
        let pattern = format!("* {place}");
        let patterns = [format!("{pattern}/*"), format!("{pattern} *")];
        rules.extend(patterns.map(|pattern| PermissionRule::new("bash", pattern, Ask)));
    }
    rules
}
