//! What a command may know of this process's environment.

use std::{
    ffi::{OsStr, OsString},
    path::Path,
};

/// Everything else (keys, tokens, `REMUDA_*`) stays here. A list of what to hide would always miss one.
const ALLOWED: &[&str] = &["PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"];
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

#[derive(Debug)]
pub(super) struct Environment(Vec<(OsString, OsString)>);

impl Environment {
    pub(super) fn of_this_process(shell: &Path) -> Self {
        Self::select(std::env::vars_os(), shell)
    }

    fn select(from: impl IntoIterator<Item = (OsString, OsString)>, shell: &Path) -> Self {
        let mut kept: Vec<_> =
            from.into_iter().filter(|(name, _)| ALLOWED.iter().any(|allowed| name == allowed)).collect();
        if !kept.iter().any(|(name, _)| name == "PATH") {
            kept.push(("PATH".into(), DEFAULT_PATH.into()));
        }
        kept.push(("SHELL".into(), shell.into()));
        Self(kept)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.0.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_allowed_passes() {
        let from = [
            ("HOME", "/h"),
            ("REMUDA_KEY", "k"),
            ("ANTHROPIC_API_KEY", "s"),
            ("LD_PRELOAD", "x"),
            ("home", "y"),
        ]
        .map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let environment = Environment::select(from, Path::new("/bin/sh"));
        let seen: Vec<_> =
            environment.iter().filter_map(|(name, value)| Some((name.to_str()?, value.to_str()?))).collect();
        assert_eq!(seen, [("HOME", "/h"), ("PATH", DEFAULT_PATH), ("SHELL", "/bin/sh")]);
    }
}
