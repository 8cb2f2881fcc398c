//! Dependencies: declared ones are used, licences are allowed, and no crate is in the tree twice without a reason.
//!
//! What is allowed stands in `xtask/dependencies.toml`. An entry that is no longer needed is a problem too, so the list stays short.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::tracked_files;

const POLICY: &str = "xtask/dependencies.toml";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Policy {
    /// SPDX identifiers.
    licences: BTreeSet<String>,
    /// Crates with several versions, and why.
    duplicates: BTreeMap<String, String>,
    /// `package/dependency` that no source names, and why it is declared all the same.
    unnamed: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: BTreeSet<String>,
}

#[derive(Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    rename: Option<String>,
}

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let policy = fs::read_to_string(root.join(POLICY)).context(POLICY)?;
    let policy: Policy = toml::from_str(&policy).context(POLICY)?;
    let metadata = metadata(root)?;
    let (members, foreign): (Vec<&Package>, Vec<&Package>) =
        metadata.packages.iter().partition(|package| metadata.workspace_members.contains(&package.id));
    let mut problems = check_licences(&policy, &foreign);
    problems.extend(check_duplicates(&policy, &foreign));
    problems.extend(check_unused(&policy, &members)?);
    Ok(problems)
}

/// What cargo resolved for the platform that is supported.
fn metadata(root: &Path) -> Result<Metadata> {
    let platform = ["--filter-platform", "x86_64-unknown-linux-gnu"];
    let output = remuda_testkit::cargo()
        .args(["metadata", "--format-version", "1", "--locked"])
        .args(platform)
        .current_dir(root)
        .output()
        .context("cannot run cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    serde_json::from_slice(&output.stdout).context("cannot read what cargo metadata printed")
}

fn check_licences(policy: &Policy, packages: &[&Package]) -> Vec<String> {
    let problem = |package: &&&Package| {
        let expression = package.license.as_deref().unwrap_or_default();
        !is_allowed(expression, &policy.licences)
    };
    let name = |package: &&Package| {
        let licence = package.license.as_deref().unwrap_or("none");
        format!("{} {}: its licence is not allowed: {licence}", package.name, package.version)
    };
    packages.iter().filter(problem).map(name).collect()
}

/// Whether one alternative of an SPDX expression consists of allowed licences. Enough for the expressions that crates use: `OR` of `AND`s, with
/// parentheses around either, and `/` for `OR`.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let plain = expression.replace(['(', ')'], "").replace('/', " OR ");
    let conjunction = |terms: &str| terms.split(" AND ").all(|term| allowed.contains(term.trim()));
    if expression.contains(") AND") || expression.contains("AND (") {
        // `(A OR B) AND C`: every group needs an allowed alternative.
        return expression.split(" AND ").all(|group| {
            group.replace(['(', ')'], "").split(" OR ").any(|term| allowed.contains(term.trim()))
        });
    }
    plain.split(" OR ").any(conjunction)
}

fn check_duplicates(policy: &Policy, packages: &[&Package]) -> Vec<String> {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages {
        versions.entry(&package.name).or_default().insert(&package.version);
    }
    versions.retain(|_, versions| versions.len() > 1);
    let unexpected = versions.iter().filter(|(name, _)| !policy.duplicates.contains_key(**name));
    let mut problems: Vec<String> = unexpected
        .map(|(name, versions)| {
            let versions: Vec<&str> = versions.iter().copied().collect();
            format!("{name} is in the tree in several versions: {}", versions.join(", "))
        })
        .collect();
    let outdated = policy.duplicates.keys().filter(|name| !versions.contains_key(name.as_str()));
    problems.extend(outdated.map(|name| format!("{POLICY}: {name} has one version now; remove it")));
    problems
}

fn check_unused(policy: &Policy, members: &[&Package]) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let mut unnamed = BTreeSet::new();
    for package in members {
        let directory = package.manifest_path.parent().context("a manifest has a directory")?;
        let sources = sources(directory)?;
        for dependency in &package.dependencies {
            let name = dependency.rename.as_ref().unwrap_or(&dependency.name).replace('-', "_");
            if !sources.iter().any(|source| names(source, &name)) {
                unnamed.insert(format!("{}/{}", package.name, dependency.name));
            }
        }
    }
    let unexpected = unnamed.iter().filter(|entry| !policy.unnamed.contains_key(*entry));
    problems.extend(unexpected.map(|entry| format!("{entry}: no source names this dependency; remove it")));
    let outdated = policy.unnamed.keys().filter(|entry| !unnamed.contains(*entry));
    problems.extend(outdated.map(|entry| format!("{POLICY}: {entry} is named by a source now; remove it")));
    Ok(problems)
}

fn sources(directory: &Path) -> Result<Vec<String>> {
    let files = tracked_files(directory, "*.rs")?;
    files
        .iter()
        .map(|file| {
            let path = directory.join(file);
            fs::read_to_string(&path).with_context(|| format!("{}", path.display()))
        })
        .collect()
}

/// Whether a source has this identifier as a whole word.
fn names(source: &str, identifier: &str) -> bool {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    source.match_indices(identifier).any(|(at, found)| {
        let before = source[..at].chars().next_back();
        let after = source[at + found.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_licence_is_allowed_if_one_alternative_is() {
        let allowed = BTreeSet::from(["MIT".to_owned(), "Apache-2.0".to_owned(), "Unicode-3.0".to_owned()]);
        for good in [
            "MIT",
            "MIT OR GPL-3.0",
            "MIT/Apache-2.0",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "MIT AND Apache-2.0",
        ] {
            assert!(is_allowed(good, &allowed), "{good}");
        }
        for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR Apache-2.0) AND GPL-3.0"] {
            assert!(!is_allowed(bad, &allowed), "{bad}");
        }
    }

    #[test]
    fn only_whole_words_name_a_dependency() {
        assert!(names("use nix::sys;", "nix") && names("nix", "nix"));
        assert!(!names("use unix::nixie;", "nix"));
    }
}
