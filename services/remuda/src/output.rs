//! Writes the output of commands, for humans or for scripts.
//!
//! Human-readable text goes through a [`Sink`], which knows whether its stream shows colour. JSON is one document per line on
//! stdout. If the reader of stdout closes the pipe (`| head`), the program exits quietly. Callers pass text from models, tools
//! and users through [`sanitize`] first.

mod progress;
mod table;
mod units;

use std::{
    env,
    io::{self, ErrorKind, IsTerminal as _, Write as _},
};

use remuda_domain::Error;
pub(crate) use remuda_domain::display::{Sanitizer, counted, json_text, one_line, sanitize};
use serde_json::{Value, json};

pub(crate) use progress::{Interrupted, Progress};
pub(crate) use table::{Table, columns};
pub(crate) use units::{ago, count, elapsed, local_time};

/// The status that shells report for a program killed by a closed pipe: 128 + SIGPIPE.
const BROKEN_PIPE_STATUS: i32 = 141;

/// When to use colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    Always,
    Never,
}

/// How a command writes: text for humans or JSON for scripts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub json: bool,
    pub out: Sink,
    pub err: Sink,
}

impl Output {
    pub(crate) fn new(json: bool, color: ColorChoice) -> Self {
        let auto = |terminal: bool| match color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => terminal && !no_color() && !dumb_terminal(),
        };
        Self {
            json,
            out: Sink { stream: Stream::Out, color: auto(io::stdout().is_terminal()) },
            err: Sink { stream: Stream::Err, color: auto(io::stderr().is_terminal()) },
        }
    }

    /// Writes one JSON document as one line on stdout.
    pub(crate) fn json_line(&self, value: &Value) {
        self.out.line(&json_text(value));
    }

    /// Reports an error on stderr. The hint says what to do about it.
    pub(crate) fn error(&self, error: &Error, hint: Option<&str>) {
        if self.json {
            let mut body = json!({ "code": error.code().as_str(), "message": error.message() });
            if let Some(field) = error.field() {
                body["field"] = field.into();
            }
            return self.err.line(&json_text(&json!({ "error": body })));
        }
        let label = self.err.paint(Style::Bad, "error:");
        self.err.line(&format!("{label} {} [{}]", one_line(&error.to_string()), error.code()));
        if let Some(hint) = hint {
            self.err.line(&format!("{} {hint}", self.err.paint(Style::Accent, "hint:")));
        }
    }

    /// Writes a note for humans to stderr; left out with `--json`.
    pub(crate) fn note(&self, text: &str) {
        if !self.json {
            self.err.line(text);
        }
    }
}

fn no_color() -> bool {
    env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

fn dumb_terminal() -> bool {
    env::var_os("TERM").is_some_and(|term| term == "dumb")
}

/// Text styles, named by meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Good,
    Bad,
    Warn,
    Accent,
    Dim,
    Bold,
}

#[derive(Clone, Copy, Debug)]
enum Stream {
    Out,
    Err,
}

/// One of the two standard streams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sink {
    stream: Stream,
    pub color: bool,
}

impl Sink {
    /// Writes a line as it is. Sanitize untrusted text first.
    pub(crate) fn line(self, text: &str) {
        let written = match self.stream {
            Stream::Out => writeln!(io::stdout().lock(), "{text}"),
            Stream::Err => writeln!(io::stderr().lock(), "{text}"),
        };
        let Err(error) = written else { return };
        match self.stream {
            Stream::Out => stop_writing(&error),
            // A closed stderr is no reason to stop the command.
            Stream::Err => {}
        }
    }

    /// Writes a part of a line and flushes it.
    pub(crate) fn part(self, text: &str) {
        let written = match self.stream {
            Stream::Out => {
                let mut out = io::stdout().lock();
                out.write_all(text.as_bytes()).and_then(|()| out.flush())
            }
            Stream::Err => io::stderr().lock().write_all(text.as_bytes()),
        };
        if let (Err(error), Stream::Out) = (written, self.stream) {
            stop_writing(&error);
        }
    }

    /// Writes text of one or more lines, without an empty line at the end.
    pub(crate) fn text(self, text: &str) {
        let text = text.strip_suffix('\n').unwrap_or(text);
        if !text.is_empty() {
            self.line(text);
        }
    }

    pub(crate) fn paint(self, style: Style, text: &str) -> String {
        if !self.color {
            return text.to_owned();
        }
        let code = match style {
            Style::Good => "32",
            Style::Bad => "31",
            Style::Warn => "33",
            Style::Accent => "36",
            Style::Dim => "2",
            Style::Bold => "1",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// Exits because stdout cannot be written: quietly if the pipe is closed, else with an error message.
#[expect(clippy::exit, reason = "no command can continue without stdout")]
fn stop_writing(error: &io::Error) {
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(BROKEN_PIPE_STATUS);
    }
    // If stderr fails too, the exit code is all that is left.
    writeln!(io::stderr(), "error: cannot write to stdout: {error}").unwrap_or_default();
    std::process::exit(10);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_is_used_only_if_enabled() {
        let plain = Output::new(false, ColorChoice::Never);
        assert_eq!(plain.out.paint(Style::Bad, "x"), "x");
        let colourful = Output::new(false, ColorChoice::Always);
        assert_eq!(colourful.err.paint(Style::Bad, "x"), "\u{1b}[31mx\u{1b}[0m");
    }
}
