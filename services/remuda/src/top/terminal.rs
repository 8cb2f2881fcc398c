//! The terminal: taken, and given back as it was, whatever ends the program.

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

use super::{state::Key, view::Screen};

/// How soon the thread that waits for keys notices that nobody wants them any more.
const KEY_WAIT: Duration = Duration::from_millis(100);

/// What comes from the terminal.
#[derive(Clone, Copy, Debug)]
pub(super) enum Input {
    Key(Key),
    Resized,
}

/// A terminal that belongs to the view until this is dropped.
pub(super) struct Held {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    hook: Arc<Hook>,
}

type Hook = dyn Fn(&panic::PanicHookInfo<'_>) + Send + Sync;

/// Each half is tried, whatever becomes of the other.
fn give_back() -> io::Result<()> {
    let left = execute!(io::stdout(), LeaveAlternateScreen, Show);
    disable_raw_mode().and(left)
}

fn enter() -> io::Result<Terminal<CrosstermBackend<Stdout>>> {
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen)?;
    Terminal::new(CrosstermBackend::new(io::stdout()))
}

/// Makes everything as it was before.
fn restore(hook: &Arc<Hook>) {
    drop(give_back());
    let hook = Arc::clone(hook);
    if !std::thread::panicking() {
        panic::set_hook(Box::new(move |info| hook(info)));
    }
}

impl Held {
    pub(super) fn take() -> io::Result<Self> {
        // A message about a panic has to land on the screen that stays.
        let hook: Arc<Hook> = Arc::from(panic::take_hook());
        let after = Arc::clone(&hook);
        panic::set_hook(Box::new(move |info| {
            drop(give_back());
            after(info);
        }));
        let terminal = enter().inspect_err(|_| restore(&hook))?;
        Ok(Self { terminal, hook })
    }

    pub(super) fn area(&self) -> io::Result<Rect> {
        Ok(Rect::from((Position::ORIGIN, self.terminal.size()?)))
    }

    /// Only what changed is written, so nothing flickers.
    pub(super) fn draw(&mut self, screen: &Screen<'_>) -> io::Result<()> {
        self.terminal.draw(|frame| {
            let area = frame.area();
            screen.draw(area, frame.buffer_mut());
        })?;
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        restore(&self.hook);
    }
}

/// Keys, from a thread of their own: reading a terminal blocks. It ends soon after the receiver is dropped.
pub(super) fn inputs() -> mpsc::Receiver<Input> {
    let (sender, receiver) = mpsc::channel(64);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            let came = match event::poll(KEY_WAIT) {
                Ok(true) => event::read(),
                Ok(false) => continue,
                Err(error) => Err(error),
            };
            // A terminal that cannot be read is gone.
            let Ok(event) = came else { return };
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
