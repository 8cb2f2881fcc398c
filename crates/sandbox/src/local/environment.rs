//! Environment of local commands: an allow list of this process's variables.

use std::{ffi::OsString, path::Path};

/// Everything else (keys, tokens, `REMUDA_*`) is withheld. A deny list would always miss one.
const ALLOWED: &[&str] = &["PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"];
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

#[derive(Debug)]
pub(super) struct Environment(Vec<(String, String)>);

impl Environment {
    pub(super) fn of_this_process(shell: &Path) -> Self {
        Self::select(std::env::vars_os(), shell)
    }

    fn select(from: impl IntoIterator<Item = (OsString, OsString)>, shell: &Path) -> Self {
        let text = from.into_iter().filter_map(|(name, value)| {
            // Values that are not UTF-8 cannot be sent to a supervisor.
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let mut kept: Vec<_> = text.filter(|(name, _)| ALLOWED.contains(&name.as_str())).collect();
        if !kept.iter().any(|(name, _)| name == "PATH") {
            kept.push(("PATH".into(), DEFAULT_PATH.into()));
        }
        kept.push(("SHELL".into(), shell.to_string_lossy().into_owned()));
        Self(kept)
    }

    pub(super) fn to_vec(&self) -> Vec<(String, String)> {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn only_allowed_utf8_variables_are_passed_on() {
        let from = [
            ("HOME", "/h"),
            ("REMUDA_KEY", "k"),
            ("ANTHROPIC_API_KEY", "s"),
            ("LD_PRELOAD", "x"),
            ("home", "y"),
        ]
        .map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let broken = (OsString::from("LANG"), OsString::from_vec(vec![0xff]));
        let environment = Environment::select(from.into_iter().chain([broken]), Path::new("/bin/sh"));
        let expected = [("HOME", "/h"), ("PATH", DEFAULT_PATH), ("SHELL", "/bin/sh")];
        assert_eq!(environment.to_vec(), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}
