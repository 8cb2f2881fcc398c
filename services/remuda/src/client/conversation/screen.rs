//! Writes a live conversation to stdout and stderr.
//!
//! On a terminal the agent's text appears as it is streamed. Anywhere else only complete lines are written. Stdout gets only the
//! answer; everything else goes to stderr.

use remuda_domain::money::dollars;
use remuda_proto::v1;

use super::{
    DisplayItem, Line, call_line,
    live_run::RunTotals,
    painted,
    result::{Length, bounded},
    result_block,
};
use crate::{
    client::render,
    output::{Output, Sink, Style, count, counted, one_line, sanitize},
};

/// Lines of reasoning shown when the output is not a terminal.
const REASONING_LINES: usize = 12;

/// The two streams that a screen writes to.
pub(crate) trait Streams {
    fn out(&mut self, text: &str);
    fn err(&mut self, text: &str);
    /// The sinks of stdout and stderr, which know whether to use colour.
    fn sinks(&self) -> (Sink, Sink);
}

impl Streams for Output {
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

/// What was written last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Nothing,
    /// Lines about the run.
    Info,
    Reasoning,
    /// Text that is not the answer and so goes to stderr.
    Comment,
    Answer,
}

/// Shows the items of a conversation.
#[derive(Debug)]
pub(crate) struct Screen<S> {
    streams: S,
    /// Text is written as it arrives.
    streaming: bool,
    block: Block,
    /// The last line has no newline yet.
    is_open: bool,
    /// Newlines that are written only if text follows.
    pending_newlines: usize,
    /// The agent's text, collected when not streaming.
    text: String,
    reasoning: String,
}

impl<S: Streams> Screen<S> {
    pub(crate) fn new(streams: S, streaming: bool) -> Self {
        Self {
            streams,
            streaming,
            block: Block::Nothing,
            is_open: false,
            pending_newlines: 0,
            text: String::new(),
            reasoning: String::new(),
        }
    }

    /// Whether the cursor is in the middle of a line.
    pub(crate) fn is_mid_line(&self) -> bool {
        self.is_open
    }

    pub(crate) fn show(&mut self, item: DisplayItem) {
        let (_, err) = self.streams.sinks();
        match item {
            DisplayItem::Text(text) if self.streaming => self.stream(Block::Answer, &text),
            DisplayItem::Reasoning(text) if self.streaming => self.stream(Block::Reasoning, &text),
            DisplayItem::Text(text) => self.text.push_str(&text),
            DisplayItem::Reasoning(text) => self.reasoning.push_str(&text),
            DisplayItem::MessageEnd { calls } => self.message_end(calls),
            DisplayItem::Header { agent, model } => {
                let line = format!("● {agent} · {model}");
                self.info(&[err.paint(Style::Dim, &line)]);
            }
            DisplayItem::Restarted => {
                let line = "↻ the model starts its answer again";
                self.info(&[err.paint(Style::Warn, line)]);
            }
            DisplayItem::Call { tool, detail } => self.info(&[call_line(err, &tool, &detail)]),
            DisplayItem::CallOutput(lines) => {
                let shown: Vec<String> = lines
                    .iter()
                    .map(|line| format!("    {}", painted(err, line)).trim_end().to_owned())
                    .collect();
                self.info(&shown);
            }
            DisplayItem::Result { call, lines } => {
                let mut shown: Vec<String> =
                    call.iter().map(|(tool, detail)| call_line(err, tool, detail)).collect();
                shown.extend(result_block(err, &lines));
                self.info(&shown);
            }
            DisplayItem::Notice(lines) | DisplayItem::ActionNeeded(lines) => {
                let shown: Vec<String> = lines.iter().map(|line| painted(err, line)).collect();
                self.info(&shown);
            }
            DisplayItem::Event(event) => self.info(&[render::event_line(err, &event)]),
        }
    }

    /// Shows the answer, unless it was streamed, and how the run ended.
    pub(crate) fn finish(&mut self, run: &v1::Run, totals: RunTotals) {
        if !self.streaming {
            self.flush_reasoning();
            if run.answer.is_empty() {
                self.flush_comment();
            } else {
                self.text.clear();
                let answer = sanitize(&run.answer);
                self.close();
                self.streams.out(&format!("{}\n", answer.trim_end_matches('\n')));
                self.block = Block::Answer;
            }
        }
        let (_, err) = self.streams.sinks();
        self.info(&footer(err, run, totals));
    }

    /// Writes a prompt; the user completes the line.
    pub(crate) fn ask(&mut self, prompt: &str) {
        self.info(&[]);
        self.streams.err(prompt);
        self.is_open = true;
    }

    /// The user ended the line of the prompt with Enter.
    pub(crate) fn answered(&mut self) {
        self.is_open = false;
    }

    /// Ends an unfinished line.
    pub(crate) fn close(&mut self) {
        if std::mem::take(&mut self.is_open) {
            match self.block {
                Block::Answer => self.streams.out("\n"),
                Block::Nothing | Block::Info | Block::Reasoning | Block::Comment => self.streams.err("\n"),
            }
        }
        self.pending_newlines = 0;
    }

    fn message_end(&mut self, calls: bool) {
        if self.streaming {
            return self.close();
        }
        self.flush_reasoning();
        // A message without calls may be the answer, which `finish` shows.
        if calls {
            self.flush_comment();
        }
    }

    /// Writes collected text that is not the answer.
    fn flush_comment(&mut self) {
        let text = std::mem::take(&mut self.text);
        let text = text.trim_matches('\n');
        if !text.is_empty() {
            self.begin_block(Block::Comment);
            self.streams.err(&format!("{text}\n"));
        }
    }

    fn flush_reasoning(&mut self) {
        let reasoning = std::mem::take(&mut self.reasoning);
        let lines: Vec<Line> =
            reasoning.trim_matches('\n').lines().map(|line| (None, line.to_owned())).collect();
        if lines.is_empty() {
            return;
        }
        self.begin_block(Block::Reasoning);
        let (_, err) = self.streams.sinks();
        for (index, (_, line)) in bounded(lines, REASONING_LINES, Length::Short).into_iter().enumerate() {
            let lead = if index == 0 { "✻ " } else { "  " };
            self.streams.err(&format!("{}\n", err.paint(Style::Dim, &format!("{lead}{line}"))));
        }
    }

    /// Writes streamed text, without empty lines at its beginning and end.
    fn stream(&mut self, block: Block, text: &str) {
        let begins = self.block != block || !self.is_open;
        let text = if begins { text.trim_start_matches('\n') } else { text };
        let body = text.trim_end_matches('\n');
        if body.is_empty() {
            self.pending_newlines += if begins { 0 } else { text.len() };
            return;
        }
        if begins {
            self.begin_block(block);
        }
        let lead = if begins && block == Block::Reasoning { "✻ " } else { "" };
        let shown = format!("{}{lead}{body}", "\n".repeat(self.pending_newlines));
        self.pending_newlines = text.len() - body.len();
        self.is_open = true;
        let (_, err) = self.streams.sinks();
        match block {
            Block::Answer => self.streams.out(&shown),
            Block::Nothing | Block::Info | Block::Reasoning | Block::Comment => {
                self.streams.err(&err.paint(Style::Dim, &shown));
            }
        }
    }

    fn info(&mut self, lines: &[String]) {
        // Keep the order: collected text comes first.
        if !self.streaming {
            self.flush_reasoning();
            self.flush_comment();
        }
        self.begin_block(Block::Info);
        for line in lines {
            self.streams.err(&format!("{line}\n"));
        }
    }

    /// Ends the block before, with an empty line between blocks of different kinds.
    fn begin_block(&mut self, block: Block) {
        self.close();
        if self.block != block && self.block != Block::Nothing {
            match block {
                // A file gets the answer without an empty line before it.
                Block::Answer if self.streaming => self.streams.out("\n"),
                Block::Answer => {}
                Block::Nothing | Block::Info | Block::Reasoning | Block::Comment => self.streams.err("\n"),
            }
        }
        self.block = block;
    }
}

/// How a run ended and what it used.
fn footer(sink: Sink, run: &v1::Run, totals: RunTotals) -> Vec<String> {
    let mut text = vec![render::run_state(sink, run)];
    if totals.steps > 0 {
        text.push(counted(usize::try_from(totals.steps).unwrap_or(usize::MAX), "step"));
    }
    let spent = run.spent.filter(|spent| spent.model_calls > 0).unwrap_or_else(|| totals.into());
    text.extend(cost(&spent));
    if let Some(tree) =
        run.tree_spent.filter(|tree| tree.micros > spent.micros || tokens(tree) > tokens(&spent))
    {
        text.push(format!("with child runs {}", cost(&tree).join(", ")));
    }
    text.push(sink.paint(Style::Dim, &one_line(&run.id)));
    let failure = render::run_failure(run).map(|failure| format!("  {failure}"));
    std::iter::once(text.join(" · ")).chain(failure).collect()
}

impl From<RunTotals> for v1::Total {
    fn from(totals: RunTotals) -> Self {
        let (input_tokens, output_tokens) = (totals.input_tokens, totals.output_tokens);
        let usage = v1::Usage { input_tokens, output_tokens, ..v1::Usage::default() };
        Self { model_calls: 0, usage: Some(usage), micros: totals.micros }
    }
}

fn tokens(total: &v1::Total) -> u64 {
    total.usage.map_or(0, |usage| usage.input_tokens + usage.output_tokens)
}

/// Tokens and dollars, each only if greater than zero.
fn cost(total: &v1::Total) -> Vec<String> {
    let usage = total.usage.unwrap_or_default();
    let mut text = Vec::new();
    if tokens(total) > 0 {
        text.push(format!("{} tokens in, {} out", count(usage.input_tokens), count(usage.output_tokens)));
    }
    if total.micros > 0 {
        text.push(dollars(total.micros));
    }
    text
}

#[cfg(test)]
#[path = "screen_tests.rs"]
mod tests;
