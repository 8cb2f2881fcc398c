//! What a person has chosen, and what keys do about it. Nothing here asks or draws.

use std::time::Duration;

use super::data::{Look, Order, Panel};

/// What was pressed, whatever the terminal calls it.
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

/// What is to be done about a key beyond the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Quit,
    Explain(String),
    Cancel(String),
    /// Ask now rather than at the next tick.
    Refresh,
}

/// What has the keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    #[default]
    Lists,
    /// The filter is being typed.
    Filter,
    /// Cancel this run?
    Confirm(String),
    Help,
    Popup(Popup),
}

/// A text over the lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Popup {
    pub(crate) title: String,
    pub(crate) lines: Vec<String>,
    pub(crate) scroll: u16,
}

/// Whether the server answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Link {
    #[default]
    Live,
    /// It was asked and has not answered for so long.
    Silent(Duration),
    /// It does not answer since then.
    Lost { for_: Duration, error: String },
}

#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) mode: Mode,
    panel: usize,
    /// What is selected in each panel: by name, because rows come and go.
    selected: [Option<String>; 4],
    orders: [usize; 4],
    pub(crate) filter: String,
    pub(crate) paused: bool,
    pub(crate) link: Link,
    /// What became of the last action.
    pub(crate) notice: Option<String>,
}

impl State {
    /// The lists of runs are what most people look for.
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

    pub(crate) fn keys(&self, panel: Panel, look: &Look) -> Vec<String> {
        look.keys(panel, self.order(panel), &self.filter)
    }

    /// The row of a panel that is selected; the first when that is gone.
    pub(crate) fn selected(&self, panel: Panel, keys: &[String]) -> usize {
        let chosen = self.selected[panel as usize].as_ref();
        chosen.and_then(|chosen| keys.iter().position(|key| key == chosen)).unwrap_or(0)
    }

    /// The run that keys act on.
    fn run(&self, look: &Look) -> Option<String> {
        let panel = self.panel();
        let keys = self.keys(panel, look);
        let at = self.selected(panel, &keys);
        keys.into_iter().nth(at).filter(|_| matches!(panel, Panel::Running | Panel::Waiting))
    }

    pub(crate) fn press(&mut self, key: Key, look: &Look) -> Option<Action> {
        if key == Key::Interrupt {
            return Some(Action::Quit);
        }
        match std::mem::take(&mut self.mode) {
            Mode::Lists => self.in_lists(key, look),
            Mode::Filter => {
                self.in_filter(key);
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
                self.in_popup(key, popup);
                None
            }
        }
    }

    fn in_lists(&mut self, key: Key, look: &Look) -> Option<Action> {
        self.notice = None;
        let count = Panel::ALL.len();
        match key {
            Key::Char('q') => return Some(Action::Quit),
            Key::Char('j') | Key::Down => self.go(look, 1),
            Key::Char('k') | Key::Up => self.go(look, -1),
            Key::PageDown => self.go(look, 10),
            Key::PageUp => self.go(look, -10),
            Key::Char('g') | Key::Home => self.go(look, isize::MIN),
            Key::Char('G') | Key::End => self.go(look, isize::MAX),
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
            Key::Enter => match self.run(look) {
                Some(run) => return Some(Action::Explain(run)),
                None => {
                    self.notice =
                        Some("select a run to have it explained: tab goes to the lists of runs".into())
                }
            },
            Key::Char('c') => match self.run(look) {
                Some(run) => self.mode = Mode::Confirm(run),
                None => self.notice = Some("select a run to cancel it: tab goes to the lists of runs".into()),
            },
            Key::Char(_) | Key::Backspace | Key::Interrupt => {}
        }
        None
    }

    fn go(&mut self, look: &Look, by: isize) {
        let panel = self.panel();
        let keys = self.keys(panel, look);
        let last = keys.len().saturating_sub(1);
        let to = self.selected(panel, &keys).saturating_add_signed(by).min(last);
        self.selected[self.panel] = keys.into_iter().nth(to);
    }

    fn in_filter(&mut self, key: Key) {
        match key {
            Key::Enter => return,
            Key::Escape => return self.filter.clear(),
            Key::Backspace => drop(self.filter.pop()),
            Key::Char(typed) if self.filter.chars().count() < 60 => self.filter.push(typed),
            _ => {}
        }
        self.mode = Mode::Filter;
    }

    fn in_popup(&mut self, key: Key, mut popup: Popup) {
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

    /// Keeps a text over the lists from being scrolled too far; how far that is depends on the screen.
    pub(crate) fn scroll_at_most(&mut self, last: u16) {
        if let Mode::Popup(popup) = &mut self.mode {
            popup.scroll = popup.scroll.min(last);
        }
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
