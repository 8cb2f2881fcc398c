//! Interpolates environment variables in definitions: `${env.NAME}`.

use std::{collections::BTreeMap, fmt, sync::Arc};

use crate::{
    parse::{Node, Value},
    report::Reporter,
};

/// The environment variables that definitions may read.
///
/// The operator's files may read all variables. Files of a workspace are written by a tenant and may only read variables
/// that are allowed by name.
#[derive(Clone, Default)]
pub struct EnvironmentAccess {
    variables: Arc<BTreeMap<String, String>>,
    allowed: Arc<[String]>,
}

impl EnvironmentAccess {
    /// `workspace` holds the names that workspaces may read, in the order of their rules: `TEAM_*` allows a prefix, `!NAME`
    /// excludes a name, and the last rule that fits decides.
    pub fn new(
        variables: impl IntoIterator<Item = (String, String)>,
        workspace: impl IntoIterator<Item = String>,
    ) -> Self {
        Self {
            variables: Arc::new(variables.into_iter().collect()),
            allowed: workspace.into_iter().collect(),
        }
    }

    /// Takes the variables of this process. Variables that are not UTF-8 are left out.
    pub fn from_process(workspace: impl IntoIterator<Item = String>) -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self::new(std::env::vars_os().filter_map(text), workspace)
    }

    fn allows_workspace(&self, name: &str) -> bool {
        let fits = |pattern: &str| match pattern.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => pattern == name,
        };
        let decides = |rule: &String| match rule.strip_prefix('!') {
            Some(excluded) => fits(excluded).then_some(false),
            None => fits(rule).then_some(true),
        };
        self.allowed.iter().rev().find_map(decides).unwrap_or(false)
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

/// Who wrote the files of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Platform,
    Workspace,
}

/// The syntax of variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VariableSyntax {
    /// `${env.NAME}`; `$${env.NAME}` escapes it.
    Native,
    /// `{env:NAME}`.
    OpenCode,
}

impl VariableSyntax {
    const fn opening(self) -> &'static str {
        match self {
            Self::Native => "${env.",
            Self::OpenCode => "{env:",
        }
    }
}

/// Expands variables in every scalar of a tree. A scalar that cannot be expanded is reported and becomes unusable.
pub(crate) fn interpolate(
    node: &mut Node,
    environment: &EnvironmentAccess,
    owner: Owner,
    syntax: VariableSyntax,
    reporter: &Reporter<'_>,
) {
    match &mut node.value {
        Value::Scalar(scalar) => match expand(&scalar.text, environment, owner, syntax) {
            Ok(None) => {}
            Ok(Some(expanded)) => {
                scalar.from_env |= expanded.from_env;
                scalar.text = expanded.text;
            }
            Err(message) => {
                reporter.error(node.at, message);
                node.value = Value::Unusable;
            }
        },
        Value::List(items) => {
            items.iter_mut().for_each(|item| interpolate(item, environment, owner, syntax, reporter));
        }
        Value::Map(entries) => entries
            .iter_mut()
            .for_each(|entry| interpolate(&mut entry.value, environment, owner, syntax, reporter)),
        Value::Unusable => {}
    }
}

struct Expanded {
    text: String,
    from_env: bool,
}

/// Expands the variables of one text; `None` if it has none.
fn expand(
    text: &str,
    environment: &EnvironmentAccess,
    owner: Owner,
    syntax: VariableSyntax,
) -> Result<Option<Expanded>, String> {
    /// Limit of the expanded text.
    const MAX_EXPANDED: usize = 64 * 1024;
    let opening = syntax.opening();
    let mut rest = text;
    let mut expanded = Expanded { text: String::new(), from_env: false };
    while let Some(start) = rest.find(opening) {
        let (before, found) = rest.split_at(start);
        if syntax == VariableSyntax::Native && before.ends_with('$') {
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
            return Err("is too long after its variables are expanded".to_owned());
        }
        expanded.from_env = true;
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

/// The error for a variable that a tenant may not read does not reveal whether the variable is set.
fn variable<'a>(name: &str, environment: &'a EnvironmentAccess, owner: Owner) -> Result<&'a str, String> {
    if owner == Owner::Workspace && !environment.allows_workspace(name) {
        let hint = "the operator allows variables in platform.workspace_env";
        return Err(format!("the variable {name} may not be read by definitions of a workspace: {hint}"));
    }
    let value = environment.variables.get(name);
    value.map(String::as_str).ok_or_else(|| {
        format!("the variable {name} is not set in the environment of the process that reads it: for runs, the server")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment() -> EnvironmentAccess {
        let variables = [("A", "one"), ("TEAM_B", "two"), ("SECRET", "three")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        EnvironmentAccess::new(variables, ["A".to_owned(), "TEAM_*".to_owned()])
    }

    fn expand_native(text: &str, owner: Owner) -> Result<String, String> {
        let expanded = expand(text, &environment(), owner, VariableSyntax::Native)?;
        Ok(expanded.map_or_else(|| text.to_owned(), |expanded| expanded.text))
    }

    #[test]
    fn variables_are_expanded() {
        for (text, expected) in [
            ("plain", "plain"),
            ("${env.A}", "one"),
            ("x${env.A}y${env.TEAM_B}z", "xoneytwoz"),
            ("$${env.A}", "${env.A}"),
            ("$${env.NOPE} ${env.A}", "${env.NOPE} one"),
            ("${other}", "${other}"),
            ("$5 ${env.A}", "$5 one"),
        ] {
            assert_eq!(expand_native(text, Owner::Workspace).unwrap(), expected, "{text}");
        }
        let opencode = expand("{env:A}!", &environment(), Owner::Workspace, VariableSyntax::OpenCode);
        assert_eq!(opencode.unwrap().unwrap().text, "one!");
    }

    #[test]
    fn workspace_files_read_only_allowed_variables() {
        assert_eq!(expand_native("${env.SECRET}", Owner::Platform).unwrap(), "three");
        let (secret, missing) = (
            expand_native("${env.SECRET}", Owner::Workspace),
            expand_native("${env.NOPE}", Owner::Workspace),
        );
        assert!(secret.clone().unwrap_err().contains("may not be read"));
        // The error does not reveal whether the variable is set.
        assert_eq!(secret.unwrap_err().replace("SECRET", "NOPE"), missing.unwrap_err());
        assert!(expand_native("${env.NOPE}", Owner::Platform).unwrap_err().contains("is not set"));
        assert!(expand_native("${env.TEAM_X}", Owner::Workspace).unwrap_err().contains("is not set"));
    }

    #[test]
    fn last_rule_that_fits_decides() {
        let rules = ["*", "!REMUDA_*", "REMUDA_PUBLIC"].map(str::to_owned);
        let variables = [("REMUDA_DATABASE_URL".to_owned(), "secret".to_owned())];
        let environment = EnvironmentAccess::new(variables, rules);
        let read = |name: &str| variable(name, &environment, Owner::Workspace).unwrap_err();
        assert!(read("REMUDA_DATABASE_URL").contains("may not be read"));
        assert!(read("REMUDA_PUBLIC").contains("is not set"));
        assert!(read("ANTHROPIC_API_KEY").contains("is not set in the environment"));
    }

    #[test]
    fn malformed_variable_is_an_error() {
        for text in ["${env.}", "${env.A", "${env.A B}"] {
            assert!(
                expand_native(text, Owner::Platform).unwrap_err().contains("expected the name"),
                "{text}"
            );
        }
    }

    #[test]
    fn debug_output_hides_values() {
        assert!(!format!("{:?}", environment()).contains("three"));
    }
}
