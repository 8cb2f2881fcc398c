//! The options of programs that run another one: where the other one begins.

use super::Word;
use crate::wildcard::ANY;

/// The options of a program, as far as they matter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spec {
    /// Letters that take a value.
    pub(super) values: &'static str,
    /// Letters that do not.
    pub(super) flags: &'static str,
    /// Long options whose value is the next word.
    pub(super) long_values: &'static [&'static str],
    pub(super) long_flags: &'static [&'static str],
    /// Words before the command.
    pub(super) operands: usize,
    /// Variables may be set before the command.
    pub(super) assignments: bool,
}

pub(super) const PLAIN: Spec =
    Spec { values: "", flags: "", long_values: &[], long_flags: &[], operands: 0, assignments: false };

#[derive(Debug, Default)]
pub(super) struct Options {
    /// Without dashes, and with their values.
    pub(super) given: Vec<(String, Option<Word>)>,
    /// The first word that belongs to the command.
    pub(super) rest: usize,
    /// Something was not understood, so the command may begin elsewhere.
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

/// Reads the options from the word at `at` on.
pub(super) fn skip(spec: &Spec, words: &[Word], at: usize) -> Options {
    let mut options = Options { rest: at, ..Options::default() };
    let mut operands = spec.operands;
    let mut only_operands = false;
    while let Some(word) = words.get(options.rest) {
        options.unsure |= word.text.starts_with(ANY);
        let sets = spec.assignments && word.text.contains('=');
        // A path with `=` is the command to some of them.
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
            // They are looked at elsewhere.
        } else if operands > 0 {
            operands -= 1;
            // Options are not expected behind it.
            only_operands = true;
        } else {
            // It may turn out to set a variable.
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

fn take_long(spec: &Spec, long: &str, words: &[Word], options: &mut Options) {
    if let Some((name, value)) = long.split_once('=') {
        let value = Word { text: value.to_owned(), raw: value.to_owned() };
        // Long names may be shortened.
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

fn take_short(spec: &Spec, letters: &str, words: &[Word], options: &mut Options) {
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
