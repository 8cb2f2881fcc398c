//! Where problems are gathered while a workspace is read.

use std::cell::{Cell, RefCell};

use crate::{
    problem::{Problem, Severity},
    text::{Fault, Position, nearest},
};

/// More than anyone reads. What comes after is only counted.
const MAX_PROBLEMS: usize = 500;

/// How much is compared to find what is allowed and yet a mistake; see [`Place::affords`].
const MAX_EFFORT: usize = 10_000_000;

/// All problems of one reading.
#[derive(Debug, Default)]
pub(crate) struct Report {
    problems: RefCell<Vec<Problem>>,
    left_off: Cell<usize>,
    effort: Cell<usize>,
}

impl Report {
    fn push(&self, problem: Problem) {
        let mut problems = self.problems.borrow_mut();
        if problems.len() < MAX_PROBLEMS {
            problems.push(problem);
        } else {
            self.left_off.set(self.left_off.get() + 1);
        }
    }

    /// Whether more problems would not be shown: then nobody needs to work on them.
    fn is_full(&self) -> bool {
        self.problems.borrow().len() >= MAX_PROBLEMS
    }

    pub(crate) fn into_problems(self) -> Vec<Problem> {
        let mut problems = self.problems.into_inner();
        let key = |problem: &Problem| (problem.file.clone(), problem.line, problem.column);
        problems.sort_by_cached_key(key);
        // What is said once for several definitions is one problem.
        problems.dedup_by(|a, b| {
            (&a.file, a.line, a.column, &a.message) == (&b.file, b.line, b.column, &b.message)
        });
        let left_off = self.left_off.get();
        if left_off > 0 {
            problems.push(Problem {
                file: ".".to_owned(),
                line: 0,
                column: 0,
                subject: None,
                message: format!("{left_off} more problems are not shown"),
                severity: Severity::Warning,
            });
        }
        problems
    }
}

/// One definition that is being read: its problems, and whether it can still be used.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    report: &'a Report,
    file: &'a str,
    subject: Option<String>,
    failed: Cell<bool>,
}

impl<'a> Place<'a> {
    /// A file, or a part of one that is no definition of its own.
    pub(crate) fn new(report: &'a Report, file: &'a str) -> Self {
        Self { report, file, subject: None, failed: Cell::new(false) }
    }

    /// A definition.
    pub(crate) fn of(report: &'a Report, file: &'a str, subject: impl Into<String>) -> Self {
        Self { subject: Some(subject.into()), ..Self::new(report, file) }
    }

    pub(crate) fn file(&self) -> &'a str {
        self.file
    }

    /// Something cannot be used, so the definition is not.
    pub(crate) fn error(&self, at: Position, message: impl Into<String>) {
        self.failed.set(true);
        self.tell(at, message.into(), Severity::Error);
    }

    pub(crate) fn warn(&self, at: Position, message: impl Into<String>) {
        self.tell(at, message.into(), Severity::Warning);
    }

    pub(crate) fn fault(&self, fault: Fault) {
        self.error(fault.at, fault.message);
    }

    fn tell(&self, at: Position, message: String, severity: Severity) {
        self.report.push(Problem {
            file: self.file.to_owned(),
            line: at.line,
            column: at.column,
            subject: self.subject.clone(),
            message,
            severity,
        });
    }

    /// A guess at what was meant, for the end of a message.
    pub(crate) fn hint<'n>(&self, name: &str, known: impl IntoIterator<Item = &'n str>) -> String {
        let near = if self.report.is_full() { None } else { nearest(name, known) };
        near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default()
    }

    /// Whether there is time left to look for mistakes. Who writes definitions must not keep those who read them busy.
    pub(crate) fn affords(&self, effort: usize) -> bool {
        let effort = self.report.effort.get().saturating_add(effort);
        self.report.effort.set(effort);
        effort <= MAX_EFFORT && !self.report.is_full()
    }

    /// Whether something was found that cannot be used.
    pub(crate) fn failed(&self) -> bool {
        self.failed.get()
    }
}
