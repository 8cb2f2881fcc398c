//! Where a conversation is shown as it goes on.
//!
//! On a terminal the agent's words appear as they come. Anywhere else only complete lines are written, and of what the agent says
//! only its answer goes to stdout: everything else is about the run and goes to stderr.

use remuda_domain::money::dollars;
use remuda_proto::v1;

use super::{
    Line, Piece, call_line,
    live::Tally,
    painted,
    result::{Length, bounded},
    result_block,
};
use crate::{
    client::render,
    output::{Output, Sink, Style, count, counted, one_line, sanitize},
};

/// Lines of thoughts where nobody watches them come.
const THOUGHT_LINES: usize = 12;

/// What is written on: two streams.
pub(crate) trait Sheet {
    fn out(&mut self, text: &str);
    fn err(&mut self, text: &str);
    /// How the streams show emphasis.
    fn sinks(&self) -> (Sink, Sink);
}

impl Sheet for Output {
    fn out(&mut self, text: &str) {
        self.out.part(text);
    }

    fn err(&mut self, text: &str) {
        self.err.part(text);
    }

    fn sinks(&self) -> (Sink, Sink) {
        (self.out, self.err)
    }
}

/// What stands on the screen last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Nothing,
    /// Lines about the run.
    Facts,
    Thoughts,
    /// Words that are not the answer, where only the answer goes to stdout.
    Comment,
    Words,
}

/// Shows pieces of a conversation.
#[derive(Debug)]
pub(crate) struct Screen<S> {
    sheet: S,
    /// Words appear as they come.
    flowing: bool,
    block: Block,
    /// The last line has no end yet.
    is_open: bool,
    /// Line ends that are only written when something follows.
    held: usize,
    /// What the agent says, where it does not appear as it comes.
    words: String,
    thoughts: String,
}

impl<S: Sheet> Screen<S> {
    pub(crate) fn new(sheet: S, flowing: bool) -> Self {
        Self {
            sheet,
            flowing,
            block: Block::Nothing,
            is_open: false,
            held: 0,
            words: String::new(),
            thoughts: String::new(),
        }
    }

    /// Whether the cursor is in the middle of a line.
    pub(crate) fn is_mid_line(&self) -> bool {
        self.is_open
    }

    pub(crate) fn show(&mut self, piece: Piece) {
        let (_, err) = self.sheet.sinks();
        match piece {
            Piece::Text(text) if self.flowing => self.flow(Block::Words, &text),
            Piece::Reasoning(text) if self.flowing => self.flow(Block::Thoughts, &text),
            Piece::Text(text) => self.words.push_str(&text),
            Piece::Reasoning(text) => self.thoughts.push_str(&text),
            Piece::Said { calls } => self.said(calls),
            Piece::Header { agent, model } => {
                let line = format!("● {agent} · {model}");
                self.facts(&[err.paint(Style::Dim, &line)]);
            }
            Piece::Restarted => {
                let line = "↻ that did not last: the answer begins anew";
                self.facts(&[err.paint(Style::Warn, line)]);
            }
            Piece::Call { tool, detail } => self.facts(&[call_line(err, &tool, &detail)]),
            Piece::Printed(lines) => {
                let shown: Vec<String> = lines
                    .iter()
                    .map(|line| format!("    {}", painted(err, line)).trim_end().to_owned())
                    .collect();
                self.facts(&shown);
            }
            Piece::Result { call, lines } => {
                let mut shown: Vec<String> =
                    call.iter().map(|(tool, detail)| call_line(err, tool, detail)).collect();
                shown.extend(result_block(err, &lines));
                self.facts(&shown);
            }
            Piece::Facts(lines) | Piece::Waits(lines) => {
                let shown: Vec<String> = lines.iter().map(|line| painted(err, line)).collect();
                self.facts(&shown);
            }
            Piece::Event(event) => self.facts(&[render::event_line(err, &event)]),
        }
    }

    /// Shows the answer, where it was not shown as it came, and how the run ended.
    pub(crate) fn finish(&mut self, run: &v1::Run, tally: Tally) {
        if !self.flowing {
            self.shown_thoughts();
            if run.answer.is_empty() {
                self.comment();
            } else {
                self.words.clear();
                let answer = sanitize(&run.answer);
                self.close();
                self.sheet.out(&format!("{}\n", answer.trim_end_matches('\n')));
                self.block = Block::Words;
            }
        }
        let (_, err) = self.sheet.sinks();
        self.facts(&footer(err, run, tally));
    }

    /// Begins a line that the person at the terminal goes on with.
    pub(crate) fn ask(&mut self, question: &str) {
        self.facts(&[]);
        self.sheet.err(question);
        self.is_open = true;
    }

    /// The line was ended by whoever typed its end.
    pub(crate) fn answered(&mut self) {
        self.is_open = false;
    }

    /// Ends what is shown in the middle of something.
    pub(crate) fn close(&mut self) {
        if std::mem::take(&mut self.is_open) {
            match self.block {
                Block::Words => self.sheet.out("\n"),
                Block::Nothing | Block::Facts | Block::Thoughts | Block::Comment => self.sheet.err("\n"),
            }
        }
        self.held = 0;
    }

    fn said(&mut self, calls: bool) {
        if self.flowing {
            return self.close();
        }
        self.shown_thoughts();
        // Without calls this may be the answer, which the end tells.
        if calls {
            self.comment();
        }
    }

    /// Words that are not the answer.
    fn comment(&mut self) {
        let words = std::mem::take(&mut self.words);
        let words = words.trim_matches('\n');
        if !words.is_empty() {
            self.enter(Block::Comment);
            self.sheet.err(&format!("{words}\n"));
        }
    }

    fn shown_thoughts(&mut self) {
        let thoughts = std::mem::take(&mut self.thoughts);
        let lines: Vec<Line> =
            thoughts.trim_matches('\n').lines().map(|line| (None, line.to_owned())).collect();
        if lines.is_empty() {
            return;
        }
        self.enter(Block::Thoughts);
        let (_, err) = self.sheet.sinks();
        for (index, (_, line)) in bounded(lines, THOUGHT_LINES, Length::Short).into_iter().enumerate() {
            let lead = if index == 0 { "✻ " } else { "  " };
            self.sheet.err(&format!("{}\n", err.paint(Style::Dim, &format!("{lead}{line}"))));
        }
    }

    /// A piece of what is said, as it comes. Empty lines at the ends are left out.
    fn flow(&mut self, block: Block, text: &str) {
        let begins = self.block != block || !self.is_open;
        let text = if begins { text.trim_start_matches('\n') } else { text };
        let body = text.trim_end_matches('\n');
        if body.is_empty() {
            self.held += if begins { 0 } else { text.len() };
            return;
        }
        if begins {
            self.enter(block);
        }
        let lead = if begins && block == Block::Thoughts { "✻ " } else { "" };
        let shown = format!("{}{lead}{body}", "\n".repeat(self.held));
        self.held = text.len() - body.len();
        self.is_open = true;
        let (_, err) = self.sheet.sinks();
        match block {
            Block::Words => self.sheet.out(&shown),
            Block::Nothing | Block::Facts | Block::Thoughts | Block::Comment => {
                self.sheet.err(&err.paint(Style::Dim, &shown));
            }
        }
    }

    fn facts(&mut self, lines: &[String]) {
        // What was said before has to stand before.
        if !self.flowing {
            self.shown_thoughts();
            self.comment();
        }
        self.enter(Block::Facts);
        for line in lines {
            self.sheet.err(&format!("{line}\n"));
        }
    }

    /// Ends what was shown before, with an empty line between words and facts.
    fn enter(&mut self, block: Block) {
        self.close();
        if self.block != block && self.block != Block::Nothing {
            match block {
                // An answer in a file begins with itself.
                Block::Words if self.flowing => self.sheet.out("\n"),
                Block::Words => {}
                Block::Nothing | Block::Facts | Block::Thoughts | Block::Comment => self.sheet.err("\n"),
            }
        }
        self.block = block;
    }
}

/// How a run ended and what it took.
fn footer(sink: Sink, run: &v1::Run, tally: Tally) -> Vec<String> {
    let mut words = vec![render::run_state(sink, run)];
    if tally.steps > 0 {
        words.push(counted(usize::try_from(tally.steps).unwrap_or(usize::MAX), "step"));
    }
    let spent = run.spent.filter(|spent| spent.model_calls > 0).unwrap_or_else(|| tally.into());
    words.extend(cost(&spent));
    // What those below it have spent is no small thing.
    if let Some(tree) =
        run.tree_spent.filter(|tree| tree.micros > spent.micros || tokens(tree) > tokens(&spent))
    {
        words.push(format!("with those below {}", cost(&tree).join(", ")));
    }
    words.push(sink.paint(Style::Dim, &one_line(&run.id)));
    let failure = render::run_failure(run).map(|failure| format!("  {failure}"));
    std::iter::once(words.join(" · ")).chain(failure).collect()
}

impl From<Tally> for v1::Total {
    fn from(tally: Tally) -> Self {
        let (input_tokens, output_tokens) = (tally.input_tokens, tally.output_tokens);
        let usage = v1::Usage { input_tokens, output_tokens, ..v1::Usage::default() };
        Self { model_calls: 0, usage: Some(usage), micros: tally.micros }
    }
}

fn tokens(total: &v1::Total) -> u64 {
    total.usage.map_or(0, |usage| usage.input_tokens + usage.output_tokens)
}

/// Tokens and dollars, as far as there are some.
fn cost(total: &v1::Total) -> Vec<String> {
    let usage = total.usage.unwrap_or_default();
    let mut words = Vec::new();
    if tokens(total) > 0 {
        words.push(format!("{} tokens in, {} out", count(usage.input_tokens), count(usage.output_tokens)));
    }
    if total.micros > 0 {
        words.push(dollars(total.micros));
    }
    words
}

#[cfg(test)]
#[path = "screen_tests.rs"]
mod tests;
