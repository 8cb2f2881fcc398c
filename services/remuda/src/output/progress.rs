//! A progress line with a spinner, shown on terminals only.

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
/// Delay before the spinner appears, so that quick commands do not flicker.
const APPEAR_DELAY: Duration = Duration::from_millis(300);

/// The user pressed Ctrl-C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interrupted;

/// Waits for futures while showing a spinner with the elapsed time and handling Ctrl-C.
pub(crate) struct Progress {
    visible: bool,
    started: Instant,
    frame: usize,
    /// Characters currently on the line.
    width: usize,
    text: String,
    /// The cursor is in the middle of other output, so the spinner must not draw.
    pub line_taken: bool,
    /// `None` if the handler could not be installed: then Ctrl-C kills the program.
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

    /// Sets the text. A new text restarts the elapsed time.
    pub(crate) fn set_text(&mut self, text: &str) {
        if self.text != text {
            text.clone_into(&mut self.text);
            self.started = Instant::now();
        }
    }

    /// Waits for `work` and then removes the line. May be called again after Ctrl-C.
    pub(crate) async fn during<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Interrupted> {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let hidden_until = Instant::now() + APPEAR_DELAY;
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                () = ctrl_c_pressed(&mut self.ctrl_c) => {
                    self.clear();
                    return Err(Interrupted);
                }
                result = &mut work => {
                    self.clear();
                    return Ok(result);
                }
                now = ticks.tick(), if self.visible && !self.line_taken => {
                    if now >= hidden_until {
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

    /// Overwrites the line with blanks instead of an escape sequence, which works without colour support too.
    fn show(&self, line: &str) {
        let blanks = self.width.saturating_sub(line.chars().count());
        let mut stderr = io::stderr().lock();
        // Errors are ignored: a missing spinner does not matter.
        write!(stderr, "\r{line}{:blanks$}\r", "").and_then(|()| stderr.flush()).unwrap_or_default();
    }
}

async fn ctrl_c_pressed(ctrl_c: &mut Option<Signal>) {
    let received = match ctrl_c {
        Some(signal) => signal.recv().await,
        None => None,
    };
    if received.is_none() {
        std::future::pending::<()>().await;
    }
}
