//! Switches the terminal to the live view and restores it, also after a panic.

use std::{
    io::{self, Stdout},
    panic,
    sync::Arc,
    time::Duration,
};

use ratatui::{
    Terminal,
    backend::CrosstermBackend,
    crossterm::{
        cursor::Show,
        event::{self, Event, KeyCode, KeyEventKind, KeyModifiers},
        execute,
        terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
    },
    layout::{Position, Rect},
};
use tokio::sync::mpsc;

use super::{state::Key, view::Frame};

/// How often the input thread checks whether the receiver was dropped.
const KEY_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// An input event of the terminal.
#[derive(Clone, Copy, Debug)]
pub(super) enum Input {
    Key(Key),
    Resized,
}

/// A terminal in raw mode on the alternate screen; restored on drop.
pub(super) struct TerminalSession {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    hook: Arc<Hook>,
}

type Hook = dyn Fn(&panic::PanicHookInfo<'_>) + Send + Sync;

/// Leaves the alternate screen and raw mode. Tries both, even if one fails.
fn leave() -> io::Result<()> {
    let left = execute!(io::stdout(), LeaveAlternateScreen, Show);
    disable_raw_mode().and(left)
}

fn enter() -> io::Result<Terminal<CrosstermBackend<Stdout>>> {
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen)?;
    Terminal::new(CrosstermBackend::new(io::stdout()))
}

/// Restores the terminal and the panic hook.
fn restore(hook: &Arc<Hook>) {
    drop(leave());
    let hook = Arc::clone(hook);
    if !std::thread::panicking() {
        panic::set_hook(Box::new(move |info| hook(info)));
    }
}

impl TerminalSession {
    pub(super) fn start() -> io::Result<Self> {
        // Leave the alternate screen before a panic message is printed.
        let hook: Arc<Hook> = Arc::from(panic::take_hook());
        let after = Arc::clone(&hook);
        panic::set_hook(Box::new(move |info| {
            drop(leave());
            after(info);
        }));
        let terminal = enter().inspect_err(|_| restore(&hook))?;
        Ok(Self { terminal, hook })
    }

    pub(super) fn area(&self) -> io::Result<Rect> {
        Ok(Rect::from((Position::ORIGIN, self.terminal.size()?)))
    }

    /// Draws a frame. Only changed cells are written, to avoid flicker.
    pub(super) fn draw(&mut self, frame_data: &Frame<'_>) -> io::Result<()> {
        self.terminal.draw(|frame| {
            let area = frame.area();
            frame_data.draw(area, frame.buffer_mut());
        })?;
        Ok(())
    }
}

impl Drop for TerminalSession {
    fn drop(&mut self) {
        restore(&self.hook);
    }
}

/// Starts a thread that reads keys, since reading a terminal blocks. It ends soon after the receiver is dropped.
pub(super) fn spawn_input_thread() -> mpsc::Receiver<Input> {
    let (sender, receiver) = mpsc::channel(64);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            let result = match event::poll(KEY_POLL_INTERVAL) {
                Ok(true) => event::read(),
                Ok(false) => continue,
                Err(error) => Err(error),
            };
            // The terminal is gone if it cannot be read.
            let Ok(event) = result else { return };
            if let Some(input) = input(&event)
                && sender.blocking_send(input).is_err()
            {
                return;
            }
        }
    });
    receiver
}

fn input(event: &Event) -> Option<Input> {
    let key = match event {
        Event::Resize(..) => return Some(Input::Resized),
        Event::Key(key) if key.kind != KeyEventKind::Release => key,
        _ => return None,
    };
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(Input::Key(match key.code {
        KeyCode::Char('c') if control => Key::Interrupt,
        KeyCode::Char(_) if control => return None,
        KeyCode::Char(typed) => Key::Char(typed),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Tab => Key::Tab,
        KeyCode::BackTab => Key::BackTab,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    }))
}
