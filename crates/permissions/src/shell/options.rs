//! Parses the options of wrapper programs to find where the wrapped command begins.

use super::Word;
use crate::wildcard::ANY;

/// The options of a program, as far as needed.
#[derive(Clone, Copy, Debug)]
pub(super) struct OptionSpec {
    /// Letters that take a value.
    pub(super) values: &'static str,
    /// Letters that take no value.
    pub(super) flags: &'static str,
    /// Long options whose value is the next word.
    pub(super) long_values: &'static [&'static str],
    pub(super) long_flags: &'static [&'static str],
    /// Number of operands before the command.
    pub(super) operands: usize,
    /// Variables may be set before the command.
    pub(super) assignments: bool,
}

pub(super) const PLAIN: OptionSpec =
    OptionSpec { values: "", flags: "", long_values: &[], long_flags: &[], operands: 0, assignments: false };

#[derive(Debug, Default)]
pub(super) struct Options {
    /// Option names without dashes, with their values.
    pub(super) given: Vec<(String, Option<Word>)>,
    /// The index of the first word of the command.
    pub(super) rest: usize,
    /// An option was not recognized, so the command may begin elsewhere.
    pub(super) unsure: bool,
}

impl Options {
    pub(super) fn value(&self, names: &[&str]) -> Option<&Word> {
        let given = self.given.iter().find(|(name, _)| names.contains(&name.as_str()));
        given.and_then(|(_, value)| value.as_ref())
    }

    pub(super) fn has(&self, names: &[&str]) -> bool {
        self.given.iter().any(|(name, _)| names.contains(&name.as_str()))
    }
}

/// Parses the options from the word at `at` on.
pub(super) fn parse(spec: &OptionSpec, words: &[Word], at: usize) -> Options {
    let mut options = Options { rest: at, ..Options::default() };
    let mut operands = spec.operands;
    let mut only_operands = false;
    while let Some(word) = words.get(options.rest) {
        options.unsure |= word.text.starts_with(ANY);
        let sets = spec.assignments && word.text.contains('=');
        // Some programs take a path with `=` as the command.
        options.unsure |= sets && word.text.starts_with('/');
        let is_option = !only_operands && word.text.len() > 1 && word.text.starts_with('-');
        if is_option && word.text == "--" {
            only_operands = true;
        } else if is_option {
            options.unsure |= !word.literal();
            match word.text.strip_prefix("--") {
                Some(long) => take_long(spec, long, words, &mut options),
                None => take_short(spec, &word.text[1..], words, &mut options),
            }
        } else if word.text == "-" && !only_operands && spec.flags.contains('-') {
            options.given.push(("-".to_owned(), None));
        } else if sets {
            // Assignments are checked elsewhere.
        } else if operands > 0 {
            operands -= 1;
            // Options are not expected after an operand.
            only_operands = true;
        } else {
            // It may be an assignment at run time.
            options.unsure |= spec.assignments && !word.literal();
            break;
        }
        options.rest += 1;
    }
    let passed = words.get(at..options.rest.min(words.len())).unwrap_or_default();
    options.unsure |= !passed.iter().all(Word::single);
    options.rest = options.rest.min(words.len());
    options
}

fn take_long(spec: &OptionSpec, long: &str, words: &[Word], options: &mut Options) {
    if let Some((name, value)) = long.split_once('=') {
        let value = Word { text: value.to_owned(), raw: value.to_owned() };
        // Long names may be abbreviated.
        options.unsure |= !spec.long_values.contains(&name) && !spec.long_flags.contains(&name);
        options.given.push((name.to_owned(), Some(value)));
    } else if spec.long_values.contains(&long) {
        options.rest += 1;
        options.given.push((long.to_owned(), words.get(options.rest).cloned()));
    } else {
        options.unsure |= !spec.long_flags.contains(&long);
        options.given.push((long.to_owned(), None));
    }
}

fn take_short(spec: &OptionSpec, letters: &str, words: &[Word], options: &mut Options) {
    for (at, letter) in letters.char_indices() {
        if spec.values.contains(letter) {
            let attached = &letters[at + letter.len_utf8()..];
            let value = if attached.is_empty() {
                options.rest += 1;
                words.get(options.rest).cloned()
            } else {
                Some(Word { text: attached.to_owned(), raw: attached.to_owned() })
            };
            options.given.push((letter.to_string(), value));
            return;
        }
        options.unsure |= !spec.flags.contains(letter);
        options.given.push((letter.to_string(), None));
    }
}
