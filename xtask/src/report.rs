//! Parses the output of `cargo test`.

use std::path::Path;

/// The results of one test binary.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct BinaryResult {
    pub(crate) name: String,
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
    pub(crate) duration: String,
    pub(crate) failures: Vec<String>,
    finished: bool,
}

/// Collects results from the output, line by line.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) binaries: Vec<BinaryResult>,
    /// The current package. Cargo names it only for the unit tests, which it runs first.
    package: String,
}

impl Report {
    pub(crate) fn line(&mut self, line: &str) {
        let line = line.trim();
        if let Some(name) = self.binary_name(line) {
            self.close();
            self.binaries.push(BinaryResult { name, ..BinaryResult::default() });
            return;
        }
        let Some(binary) = self.binaries.last_mut() else { return };
        if let Some(rest) = line.strip_prefix("test result: ") {
            binary.passed = number(rest, "passed");
            binary.failed = number(rest, "failed");
            binary.ignored = number(rest, "ignored");
            binary.duration =
                rest.rsplit_once("finished in ").map_or_else(String::new, |(_, time)| time.to_owned());
            binary.finished = true;
        } else if let Some(name) =
            line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            binary.failures.push(name.to_owned());
        }
    }

    /// Ends the current binary. A binary without a result line has crashed, which counts as a failure.
    pub(crate) fn close(&mut self) {
        if let Some(binary) = self.binaries.last_mut().filter(|binary| !binary.finished) {
            binary.finished = true;
            binary.failed = binary.failures.len() as u64 + 1;
            binary.failures.push("(ended without a result)".to_owned());
        }
    }

    /// Reads `Running unittests src/lib.rs (target/debug/deps/name-hash)` and `Doc-tests name`.
    fn binary_name(&mut self, line: &str) -> Option<String> {
        if let Some(package) = line.strip_prefix("Doc-tests ") {
            return Some(format!("{package} (doc tests)"));
        }
        let (target, path) = line.strip_prefix("Running ")?.strip_suffix(')')?.rsplit_once(" (")?;
        let (name, _hash) = Path::new(path).file_name()?.to_str()?.rsplit_once('-')?;
        let Some(source) = target.strip_prefix("unittests ") else {
            return Some(format!("{} ({target})", self.package));
        };
        name.clone_into(&mut self.package);
        Some(format!("{name} ({source})"))
    }

    pub(crate) fn passed(&self) -> u64 {
        self.binaries.iter().map(|binary| binary.passed).sum()
    }

    pub(crate) fn failed(&self) -> u64 {
        self.binaries.iter().map(|binary| binary.failed).sum()
    }

    pub(crate) fn failures(&self) -> impl Iterator<Item = String> {
        self.binaries
            .iter()
            .flat_map(|binary| binary.failures.iter().map(move |test| format!("{}: {test}", binary.name)))
    }
}

/// The number before a word, as in `ok. 11 passed; 0 failed`.
fn number(text: &str, word: &str) -> u64 {
    text.split(['.', ';'])
        .filter_map(|part| part.trim().strip_suffix(word))
        .find_map(|number| number.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Report {
        let mut report = Report::default();
        text.lines().for_each(|line| report.line(line));
        report.close();
        report
    }

    #[test]
    fn results_are_counted_per_binary() {
        let report = read(
            "     Running unittests src/lib.rs (/t/debug/deps/remuda_domain-0eea1b60e2046276)
running 3 tests
test a ... ok
test b::c ... FAILED
test d ... ignored
test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 4.43s
     Running tests/it/main.rs (/t/debug/deps/it-0eea1b60e2046276)
test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s
   Doc-tests remuda_domain
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        );
        assert_eq!((report.passed(), report.failed()), (7, 1));
        assert_eq!(report.binaries[0].name, "remuda_domain (src/lib.rs)");
        assert_eq!((report.binaries[0].ignored, report.binaries[0].duration.as_str()), (1, "4.43s"));
        assert_eq!(report.binaries[1].name, "remuda_domain (tests/it/main.rs)");
        assert_eq!(report.binaries[2].name, "remuda_domain (doc tests)");
        assert_eq!(report.failures().collect::<Vec<_>>(), ["remuda_domain (src/lib.rs): b::c"]);
    }

    #[test]
    fn crashed_binary_counts_as_failed() {
        let report = read(
            "     Running tests/it/main.rs (/t/debug/deps/it-0eea1b60e2046276)
test a ... ok
     Running tests/it/main.rs (/t/debug/deps/it-1eea1b60e2046276)
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
        );
        assert_eq!((report.passed(), report.failed()), (1, 1));
    }
}
