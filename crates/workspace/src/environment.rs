//! Variables of the environment in definitions: `${env.NAME}`.

use std::{collections::BTreeMap, fmt, sync::Arc};

use crate::{
    report::Place,
    text::{Node, Value},
};

/// Which variables definitions may read. The operator's own files may read all; those of a workspace are written by a
/// tenant, who may only read what is allowed by name.
#[derive(Clone, Default)]
pub struct EnvironmentAccess {
    variables: Arc<BTreeMap<String, String>>,
    allowed: Arc<[String]>,
}

impl EnvironmentAccess {
    /// `workspace` holds names, or beginnings of names such as `TEAM_*`.
    pub fn new(
        variables: impl IntoIterator<Item = (String, String)>,
        workspace: impl IntoIterator<Item = String>,
    ) -> Self {
        Self {
            variables: Arc::new(variables.into_iter().collect()),
            allowed: workspace.into_iter().collect(),
        }
    }

    /// With the variables of this process. Those that are not UTF-8 are left out.
    pub fn from_process(workspace: impl IntoIterator<Item = String>) -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self::new(std::env::vars_os().filter_map(text), workspace)
    }

    fn allows_workspace(&self, name: &str) -> bool {
        self.allowed.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => pattern == name,
        })
    }
}

impl fmt::Debug for EnvironmentAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.variables.len();
        f.debug_struct("EnvironmentAccess")
            .field("variables", &names)
            .field("allowed", &self.allowed)
            .finish()
    }
}

/// Whose files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Platform,
    Workspace,
}

/// How variables are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notation {
    /// `${env.NAME}`, and `$${env.NAME}` for just that text.
    Ours,
    /// `{env:NAME}`.
    OpenCode,
}

impl Notation {
    const fn opening(self) -> &'static str {
        match self {
            Self::Ours => "${env.",
            Self::OpenCode => "{env:",
        }
    }
}

/// Puts variables into every text of a tree. A text that cannot be completed is an error and becomes unusable.
pub(crate) fn interpolate(
    node: &mut Node,
    environment: &EnvironmentAccess,
    owner: Owner,
    notation: Notation,
    place: &Place<'_>,
) {
    match &mut node.value {
        Value::Scalar(scalar) => match expand(&scalar.text, environment, owner, notation) {
            Ok(None) => {}
            Ok(Some(expanded)) => {
                scalar.hidden |= expanded.hidden;
                scalar.text = expanded.text;
            }
            Err(message) => {
                place.error(node.at, message);
                node.value = Value::Unusable;
            }
        },
        Value::List(items) => {
            items.iter_mut().for_each(|item| interpolate(item, environment, owner, notation, place));
        }
        Value::Map(entries) => entries
            .iter_mut()
            .for_each(|entry| interpolate(&mut entry.value, environment, owner, notation, place)),
        Value::Unusable => {}
    }
}

struct Expanded {
    text: String,
    hidden: bool,
}

/// `None` if there is nothing to do.
fn expand(
    text: &str,
    environment: &EnvironmentAccess,
    owner: Owner,
    notation: Notation,
) -> Result<Option<Expanded>, String> {
    /// A text that grows by its variables.
    const MAX_EXPANDED: usize = 64 * 1024;
    let opening = notation.opening();
    let mut rest = text;
    let mut expanded = Expanded { text: String::new(), hidden: false };
    while let Some(start) = rest.find(opening) {
        let (before, found) = rest.split_at(start);
        if notation == Notation::Ours && before.ends_with('$') {
            expanded.text.push_str(before);
            expanded.text.push_str(&opening[1..]);
            rest = &found[opening.len()..];
            continue;
        }
        expanded.text.push_str(before);
        let inside = &found[opening.len()..];
        let name = inside.split_once('}').map(|(name, _)| name).filter(|name| is_variable(name));
        let Some(name) = name else {
            return Err(format!("expected the name of a variable after {opening}, as in {opening}NAME}}"));
        };
        expanded.text.push_str(variable(name, environment, owner)?);
        if expanded.text.len() > MAX_EXPANDED {
            return Err("is too long with its variables put in".to_owned());
        }
        expanded.hidden = true;
        rest = &inside[name.len() + 1..];
    }
    if rest.len() == text.len() {
        return Ok(None);
    }
    expanded.text.push_str(rest);
    Ok(Some(expanded))
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && name.len() <= 256 && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Tenants are told the same whether a variable is set or not, unless they may read it.
fn variable<'a>(name: &str, environment: &'a EnvironmentAccess, owner: Owner) -> Result<&'a str, String> {
    if owner == Owner::Workspace && !environment.allows_workspace(name) {
        return Err(format!("the variable {name} may not be read by definitions of a workspace"));
    }
    let value = environment.variables.get(name);
    value.map(String::as_str).ok_or_else(|| format!("the variable {name} is not set"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment() -> EnvironmentAccess {
        let variables = [("A", "one"), ("TEAM_B", "two"), ("SECRET", "three")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        EnvironmentAccess::new(variables, ["A".to_owned(), "TEAM_*".to_owned()])
    }

    fn ours(text: &str, owner: Owner) -> Result<String, String> {
        let expanded = expand(text, &environment(), owner, Notation::Ours)?;
        Ok(expanded.map_or_else(|| text.to_owned(), |expanded| expanded.text))
    }

    #[test]
    fn variables_are_put_in() {
        for (text, expected) in [
            ("plain", "plain"),
            ("${env.A}", "one"),
            ("x${env.A}y${env.TEAM_B}z", "xoneytwoz"),
            ("$${env.A}", "${env.A}"),
            ("$${env.NOPE} ${env.A}", "${env.NOPE} one"),
            ("${other}", "${other}"),
            ("$5 ${env.A}", "$5 one"),
        ] {
            assert_eq!(ours(text, Owner::Workspace).unwrap(), expected, "{text}");
        }
        let opencode = expand("{env:A}!", &environment(), Owner::Workspace, Notation::OpenCode);
        assert_eq!(opencode.unwrap().unwrap().text, "one!");
    }

    #[test]
    fn tenants_read_only_what_is_allowed() {
        assert_eq!(ours("${env.SECRET}", Owner::Platform).unwrap(), "three");
        let (secret, missing) =
            (ours("${env.SECRET}", Owner::Workspace), ours("${env.NOPE}", Owner::Workspace));
        assert!(secret.clone().unwrap_err().contains("may not be read"));
        // Whether it is set cannot be told from the answer.
        assert_eq!(secret.unwrap_err().replace("SECRET", "NOPE"), missing.unwrap_err());
        assert!(ours("${env.NOPE}", Owner::Platform).unwrap_err().contains("is not set"));
        assert!(ours("${env.TEAM_X}", Owner::Workspace).unwrap_err().contains("is not set"));
    }

    #[test]
    fn what_is_unfinished_is_an_error() {
        for text in ["${env.}", "${env.A", "${env.A B}"] {
            assert!(ours(text, Owner::Platform).unwrap_err().contains("expected the name"), "{text}");
        }
    }

    #[test]
    fn values_are_not_shown() {
        assert!(!format!("{:?}", environment()).contains("three"));
    }
}
