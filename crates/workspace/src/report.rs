//! Collects problems while a workspace is loaded.

use std::cell::{Cell, RefCell};

use remuda_domain::nearest;

use crate::{
    parse::{Fault, Position},
    problem::{Problem, Severity},
};

/// Further problems are only counted.
const MAX_PROBLEMS: usize = 500;

/// Limit of the effort to find probable mistakes; see [`Reporter::has_effort_left`].
const MAX_EFFORT: usize = 10_000_000;

/// All problems of one load.
#[derive(Debug, Default)]
pub(crate) struct Report {
    problems: RefCell<Vec<Problem>>,
    omitted: Cell<usize>,
    effort: Cell<usize>,
}

impl Report {
    fn push(&self, problem: Problem) {
        let mut problems = self.problems.borrow_mut();
        if problems.len() < MAX_PROBLEMS {
            problems.push(problem);
        } else {
            self.omitted.set(self.omitted.get() + 1);
        }
    }

    /// Whether further problems would only be counted, so that the effort to describe them can be saved.
    fn is_full(&self) -> bool {
        self.problems.borrow().len() >= MAX_PROBLEMS
    }

    pub(crate) fn into_problems(self) -> Vec<Problem> {
        let mut problems = self.problems.into_inner();
        let key = |problem: &Problem| (problem.file.clone(), problem.line, problem.column);
        problems.sort_by_cached_key(key);
        // The same problem may be reported once per definition that it affects.
        problems.dedup_by(|a, b| {
            (&a.file, a.line, a.column, &a.message) == (&b.file, b.line, b.column, &b.message)
        });
        let omitted = self.omitted.get();
        if omitted > 0 {
            problems.push(Problem {
                file: ".".to_owned(),
                line: 0,
                column: 0,
                subject: None,
                message: format!("{omitted} more problems are not shown"),
                severity: Severity::Warning,
            });
        }
        problems
    }
}

/// Reports the problems of one definition, and tracks whether it has errors.
#[derive(Debug)]
pub(crate) struct Reporter<'a> {
    report: &'a Report,
    file: &'a str,
    subject: Option<String>,
    failed: Cell<bool>,
}

impl<'a> Reporter<'a> {
    /// For a file, or a part of a file that is not a definition of its own.
    pub(crate) fn for_file(report: &'a Report, file: &'a str) -> Self {
        Self { report, file, subject: None, failed: Cell::new(false) }
    }

    /// For a definition.
    pub(crate) fn for_definition(report: &'a Report, file: &'a str, subject: impl Into<String>) -> Self {
        Self { subject: Some(subject.into()), ..Self::for_file(report, file) }
    }

    pub(crate) fn file(&self) -> &'a str {
        self.file
    }

    /// Reports an error, which makes the definition unusable.
    pub(crate) fn error(&self, at: Position, message: impl Into<String>) {
        self.failed.set(true);
        self.push(at, message.into(), Severity::Error);
    }

    pub(crate) fn warn(&self, at: Position, message: impl Into<String>) {
        self.push(at, message.into(), Severity::Warning);
    }

    pub(crate) fn fault(&self, fault: Fault) {
        self.error(fault.at, fault.message);
    }

    fn push(&self, at: Position, message: String, severity: Severity) {
        self.report.push(Problem {
            file: self.file.to_owned(),
            line: at.line,
            column: at.column,
            subject: self.subject.clone(),
            message,
            severity,
        });
    }

    /// `; did you mean …?` for the end of a message, or nothing.
    pub(crate) fn suggestion<'n>(&self, name: &str, known: impl IntoIterator<Item = &'n str>) -> String {
        let near = if self.report.is_full() { None } else { nearest(name, known) };
        near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default()
    }

    /// Spends effort on finding probable mistakes; `false` if the limit is exceeded. The limit keeps a tenant's definitions
    /// from using up CPU time.
    pub(crate) fn has_effort_left(&self, effort: usize) -> bool {
        let effort = self.report.effort.get().saturating_add(effort);
        self.report.effort.set(effort);
        effort <= MAX_EFFORT && !self.report.is_full()
    }

    /// Whether an error was reported.
    pub(crate) fn failed(&self) -> bool {
        self.failed.get()
    }
}
