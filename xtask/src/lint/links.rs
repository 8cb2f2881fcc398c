//! Links in Markdown: files exist, and so do the headings that links name.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use super::tracked_files;

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let mut anchors = Anchors::default();
    let mut problems = Vec::new();
    for file in tracked_files(root, "*.md")? {
        let text = fs::read_to_string(root.join(&file)).with_context(|| format!("{}", file.display()))?;
        for (number, target) in links(&text) {
            if let Some(problem) = anchors.check(root, &file, target)? {
                problems.push(format!("{}:{number}: {target}: {problem}", file.display()));
            }
        }
    }
    Ok(problems)
}

/// The headings of documents, each document read once.
#[derive(Debug, Default)]
struct Anchors {
    by_file: HashMap<PathBuf, HashSet<String>>,
}

impl Anchors {
    fn check(&mut self, root: &Path, file: &Path, target: &str) -> Result<Option<&'static str>> {
        if target.contains("://") || target.starts_with("mailto:") {
            return Ok(None);
        }
        let (path, anchor) =
            target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
        let directory = file.parent().unwrap_or(Path::new(""));
        let linked = if path.is_empty() { file.to_owned() } else { directory.join(path) };
        let absolute = root.join(&linked);
        if !absolute.try_exists()? {
            return Ok(Some("there is no such file"));
        }
        let Some(anchor) = anchor.filter(|_| linked.extension().is_some_and(|extension| extension == "md"))
        else {
            return Ok(None);
        };
        if !self.by_file.contains_key(&absolute) {
            self.by_file.insert(absolute.clone(), headings(&fs::read_to_string(&absolute)?));
        }
        Ok((!self.by_file[&absolute].contains(anchor)).then_some("there is no such heading"))
    }
}

/// Lines outside of fenced code, numbered from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().zip(1..).filter_map(move |(line, number)| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        (!fenced && !is_fence).then_some((number, line))
    })
}

/// Targets of inline links and images.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut links = Vec::new();
    for (number, line) in prose(text) {
        let mut rest = line;
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, behind)) = after.split_once(')') else { break };
            links.push((number, target));
            rest = behind;
        }
    }
    links
}

/// Anchors as GitHub makes them of headings.
fn headings(text: &str) -> HashSet<String> {
    let mut anchors = HashSet::new();
    for (_, line) in prose(text).filter(|(_, line)| line.starts_with('#')) {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|it| it.is_alphanumeric() || matches!(it, ' ' | '-' | '_'));
        let anchor: String = kept.map(|it| if it == ' ' { '-' } else { it }).collect();
        // A heading that occurs again gets a number.
        let repeated = (1..).map(|number| format!("{anchor}-{number}"));
        let mut names = std::iter::once(anchor.clone()).chain(repeated);
        if let Some(free) = names.find(|name| !anchors.contains(name)) {
            anchors.insert(free);
        }
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_in_prose_are_found_and_those_in_code_are_not() {
        let text = "see [a](a.md) and ![b](b.svg#x)\n```\n[c](c.md)\n```\n[d](#d)";
        assert_eq!(links(text), [(1, "a.md"), (1, "b.svg#x"), (5, "#d")]);
    }

    #[test]
    fn headings_become_anchors_and_repeated_ones_are_numbered() {
        let anchors = headings("# What is kept, and for how long\n## `remuda top`\n## Limits\n## Limits\n");
        for anchor in ["what-is-kept-and-for-how-long", "remuda-top", "limits", "limits-1"] {
            assert!(anchors.contains(anchor), "{anchor}: {anchors:?}");
        }
    }
}
