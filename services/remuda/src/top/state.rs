//! The user's selection and how keys change it. No I/O and no drawing.

use std::time::Duration;

use super::data::{Order, Overview, Panel};

/// A pressed key, independent of the terminal library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Char(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Tab,
    BackTab,
    Enter,
    Escape,
    Backspace,
    /// Ctrl-C.
    Interrupt,
}

/// What a key requests beyond a change of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Quit,
    Explain(String),
    Cancel(String),
    /// Refresh immediately.
    Refresh,
}

/// What receives the keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    #[default]
    Panels,
    /// The filter is being typed.
    Filter,
    /// Asks for confirmation to cancel this run.
    Confirm(String),
    Help,
    Popup(Popup),
}

/// A text drawn over the panels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Popup {
    pub(crate) title: String,
    pub(crate) lines: Vec<String>,
    pub(crate) scroll: u16,
}

/// The connection to the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    #[default]
    Connected,
    /// The current request has been unanswered for this long.
    Slow(Duration),
    /// Requests have failed for this long.
    Lost { for_: Duration, error: String },
}

#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) mode: Mode,
    panel: usize,
    /// The key of the selected row of each panel. Not an index, because rows come and go.
    selected: [Option<String>; 4],
    orders: [usize; 4],
    pub(crate) filter: String,
    pub(crate) paused: bool,
    pub(crate) connection: ConnectionState,
    /// Result of the last action.
    pub(crate) notice: Option<String>,
}

impl State {
    /// Begins with the panel of running runs.
    pub(crate) fn new() -> Self {
        Self { panel: 2, ..Self::default() }
    }

    pub(crate) fn panel(&self) -> Panel {
        Panel::ALL[self.panel]
    }

    pub(crate) fn order(&self, panel: Panel) -> Order {
        let orders = panel.orders();
        orders[self.orders[panel as usize] % orders.len()]
    }

    pub(crate) fn keys(&self, panel: Panel, overview: &Overview) -> Vec<String> {
        overview.keys(panel, self.order(panel), &self.filter)
    }

    /// The index of the selected row; the first row if the selected one is gone.
    pub(crate) fn selected(&self, panel: Panel, keys: &[String]) -> usize {
        let chosen = self.selected[panel as usize].as_ref();
        chosen.and_then(|chosen| keys.iter().position(|key| key == chosen)).unwrap_or(0)
    }

    /// The selected run, if a panel of runs has the focus.
    fn selected_run(&self, overview: &Overview) -> Option<String> {
        let panel = self.panel();
        let keys = self.keys(panel, overview);
        let at = self.selected(panel, &keys);
        keys.into_iter().nth(at).filter(|_| matches!(panel, Panel::Running | Panel::Waiting))
    }

    pub(crate) fn press(&mut self, key: Key, overview: &Overview) -> Option<Action> {
        if key == Key::Interrupt {
            return Some(Action::Quit);
        }
        match std::mem::take(&mut self.mode) {
            Mode::Panels => self.press_in_panels(key, overview),
            Mode::Filter => {
                self.press_in_filter(key);
                None
            }
            Mode::Confirm(run) => match key {
                Key::Char('y' | 'Y') => Some(Action::Cancel(run)),
                Key::Char('n' | 'N' | 'q') | Key::Escape => None,
                _ => {
                    self.mode = Mode::Confirm(run);
                    None
                }
            },
            Mode::Help => None,
            Mode::Popup(popup) => {
                self.press_in_popup(key, popup);
                None
            }
        }
    }

    fn press_in_panels(&mut self, key: Key, overview: &Overview) -> Option<Action> {
        self.notice = None;
        let count = Panel::ALL.len();
        match key {
            Key::Char('q') => return Some(Action::Quit),
            Key::Char('j') | Key::Down => self.move_selection(overview, 1),
            Key::Char('k') | Key::Up => self.move_selection(overview, -1),
            Key::PageDown => self.move_selection(overview, 10),
            Key::PageUp => self.move_selection(overview, -10),
            Key::Char('g') | Key::Home => self.move_selection(overview, isize::MIN),
            Key::Char('G') | Key::End => self.move_selection(overview, isize::MAX),
            Key::Tab => self.panel = (self.panel + 1) % count,
            Key::BackTab => self.panel = (self.panel + count - 1) % count,
            Key::Char('s') => self.orders[self.panel] += 1,
            Key::Char('/') => self.mode = Mode::Filter,
            Key::Char('?') => self.mode = Mode::Help,
            Key::Escape => self.filter.clear(),
            Key::Char('p' | ' ') => {
                self.paused = !self.paused;
                return (!self.paused).then_some(Action::Refresh);
            }
            Key::Char('r') => return Some(Action::Refresh),
            Key::Enter => match self.selected_run(overview) {
                Some(run) => return Some(Action::Explain(run)),
                None => {
                    self.notice =
                        Some("select a run to explain it: press tab to reach the lists of runs".into())
                }
            },
            Key::Char('c') => match self.selected_run(overview) {
                Some(run) => self.mode = Mode::Confirm(run),
                None => {
                    self.notice =
                        Some("select a run to cancel it: press tab to reach the lists of runs".into())
                }
            },
            Key::Char(_) | Key::Backspace | Key::Interrupt => {}
        }
        None
    }

    fn move_selection(&mut self, overview: &Overview, by: isize) {
        let panel = self.panel();
        let keys = self.keys(panel, overview);
        let last = keys.len().saturating_sub(1);
        let to = self.selected(panel, &keys).saturating_add_signed(by).min(last);
        self.selected[self.panel] = keys.into_iter().nth(to);
    }

    fn press_in_filter(&mut self, key: Key) {
        match key {
            Key::Enter => return,
            Key::Escape => return self.filter.clear(),
            Key::Backspace => drop(self.filter.pop()),
            Key::Char(typed) if self.filter.chars().count() < 60 => self.filter.push(typed),
            _ => {}
        }
        self.mode = Mode::Filter;
    }

    fn press_in_popup(&mut self, key: Key, mut popup: Popup) {
        popup.scroll = match key {
            Key::Char('q') | Key::Escape | Key::Enter => return,
            Key::Char('j') | Key::Down => popup.scroll.saturating_add(1),
            Key::Char('k') | Key::Up => popup.scroll.saturating_sub(1),
            Key::PageDown | Key::Char(' ') => popup.scroll.saturating_add(10),
            Key::PageUp => popup.scroll.saturating_sub(10),
            Key::Char('g') | Key::Home => 0,
            Key::Char('G') | Key::End => u16::MAX,
            _ => popup.scroll,
        };
        self.mode = Mode::Popup(popup);
    }

    /// Limits the scroll position of the popup, which depends on the screen size.
    pub(crate) fn scroll_at_most(&mut self, last: u16) {
        if let Mode::Popup(popup) = &mut self.mode {
            popup.scroll = popup.scroll.min(last);
        }
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
