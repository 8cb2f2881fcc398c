//! A line that shows that something is under way, on a terminal only.

use std::{
    fmt,
    future::Future,
    io::{self, IsTerminal as _, Write as _},
    time::Duration,
};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{Instant, MissedTickBehavior, interval},
};

use super::{Output, dumb_terminal, elapsed};

const FRAMES: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];
const TICK: Duration = Duration::from_millis(100);
/// Quick answers come without a flicker.
const QUIET: Duration = Duration::from_millis(300);

/// The user pressed Ctrl-C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interrupted;

/// A spinner with the elapsed time, and Ctrl-C, around whatever is waited for.
pub(crate) struct Progress {
    visible: bool,
    started: Instant,
    frame: usize,
    /// Characters on the line now.
    width: usize,
    text: String,
    /// The cursor is in the middle of a line that others write.
    pub line_taken: bool,
    /// Missing if it cannot be had: then Ctrl-C ends the program as it always does.
    ctrl_c: Option<Signal>,
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").field("text", &self.text).finish_non_exhaustive()
    }
}

impl Progress {
    pub(crate) fn new(output: &Output, text: impl Into<String>) -> Self {
        Self {
            visible: !output.json && io::stderr().is_terminal() && !dumb_terminal(),
            started: Instant::now(),
            frame: 0,
            width: 0,
            text: text.into(),
            line_taken: false,
            ctrl_c: signal(SignalKind::interrupt()).ok(),
        }
    }

    /// Says what is waited for now, and counts the time from here if that is something else.
    pub(crate) fn about(&mut self, text: &str) {
        if self.text != text {
            text.clone_into(&mut self.text);
            self.started = Instant::now();
        }
    }

    /// Waits for `work`; the line is gone when this returns. Ctrl-C can be pressed again after it was.
    pub(crate) async fn during<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Interrupted> {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let quiet_until = Instant::now() + QUIET;
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                () = pressed(&mut self.ctrl_c) => {
                    self.clear();
                    return Err(Interrupted);
                }
                result = &mut work => {
                    self.clear();
                    return Ok(result);
                }
                now = ticks.tick(), if self.visible && !self.line_taken => {
                    if now >= quiet_until {
                        self.draw();
                    }
                }
            }
        }
    }

    fn draw(&mut self) {
        let waited = self.started.elapsed();
        let line = format!("{} {} {}", FRAMES[self.frame % FRAMES.len()], self.text, elapsed(waited));
        self.frame += 1;
        self.show(&line);
        self.width = line.chars().count();
    }

    fn clear(&mut self) {
        if self.width > 0 {
            self.show("");
            self.show("");
            self.width = 0;
        }
    }

    /// Overwrites the line with blanks rather than with an escape sequence: works without any colour too.
    fn show(&self, line: &str) {
        let blanks = self.width.saturating_sub(line.chars().count());
        let mut stderr = io::stderr().lock();
        // A spinner that cannot be drawn is no reason to stop.
        write!(stderr, "\r{line}{:blanks$}\r", "").and_then(|()| stderr.flush()).unwrap_or_default();
    }
}

async fn pressed(ctrl_c: &mut Option<Signal>) {
    let received = match ctrl_c {
        Some(signal) => signal.recv().await,
        None => None,
    };
    if received.is_none() {
        std::future::pending::<()>().await;
    }
}
