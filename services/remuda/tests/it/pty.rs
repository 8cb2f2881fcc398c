//! Runs `remuda` on a pseudo-terminal and reads its screen.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::fd::OwnedFd,
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex},
    thread,
};

use nix::{
    pty::{Winsize, openpty},
    sys::{
        signal::Signal,
        termios::{LocalFlags, tcgetattr},
    },
};
use remuda_testkit::{Child, wait_for};

use crate::harness::TIMEOUT;

pub(crate) const ROWS: u16 = 24;
pub(crate) const COLUMNS: u16 = 80;

/// A `remuda` process on a pseudo-terminal.
pub(crate) struct TerminalProcess {
    child: Child,
    keyboard: File,
    /// The process's end, used to read the terminal settings.
    slave: OwnedFd,
    screen: Arc<Mutex<Screen>>,
}

impl TerminalProcess {
    pub(crate) fn start(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let size = Winsize { ws_row: ROWS, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        let (stdin, stdout, stderr) = (end(), end(), end());
        let child = Child::start(Path::new(env!("CARGO_BIN_EXE_remuda")), None, |command| {
            command.args(arguments).env_clear().env("TERM", "xterm-256color").env("HOME", "/nonexistent");
            command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
            command.envs(variables.iter().copied());
            command.stdin(stdin).stdout(stdout).stderr(stderr);
        });
        let keyboard = File::from(pty.master);
        let mut output = keyboard.try_clone().unwrap();
        let screen = Arc::new(Mutex::new(Screen::default()));
        let shared = Arc::clone(&screen);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = output.read(&mut bytes) {
                shared.lock().unwrap().feed(&bytes[..read]);
            }
        });
        Self { child: child.unwrap(), keyboard, slave: pty.slave, screen }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        self.child.signal(signal).unwrap();
    }

    pub(crate) fn text(&self) -> String {
        self.screen.lock().unwrap().text()
    }

    /// Everything the process has written.
    pub(crate) fn raw(&self) -> String {
        self.screen.lock().unwrap().raw.clone()
    }

    /// Waits until the text of the screen fulfils the condition.
    pub(crate) async fn wait_for_screen(&self, what: &str, wanted: impl Fn(&str) -> bool) {
        let shown = wait_for(what, TIMEOUT, || std::future::ready(wanted(&self.text())));
        tokio::pin!(shown);
        tokio::select! {
            () = &mut shown => {}
            () = tokio::time::sleep(TIMEOUT / 2) => {
                println!("--- the screen after half of the timeout ---\n{}", self.text());
                shown.await;
            }
        }
    }

    pub(crate) async fn exit_code(&mut self) -> i32 {
        let child = &mut self.child;
        let ended =
            wait_for("the program on a terminal to end", TIMEOUT, || std::future::ready(child.ended()));
        ended.await.code().unwrap_or(-1)
    }

    /// Waits until the terminal is restored: the last output of a process may be read only after its end.
    pub(crate) async fn wait_until_restored(&self) {
        wait_for("the terminal to be restored", TIMEOUT, || std::future::ready(self.is_restored())).await;
    }

    /// Whether the terminal is back in the state a shell expects: line editing and echo on, main screen, visible cursor.
    pub(crate) fn is_restored(&self) -> bool {
        let flags = tcgetattr(&self.slave).unwrap().local_flags;
        let screen = self.screen.lock().unwrap();
        flags.contains(LocalFlags::ECHO | LocalFlags::ICANON) && !screen.alternate && !screen.hidden_cursor
    }
}

/// A minimal terminal emulator: cursor positions, text, clearing, the alternate screen and cursor visibility.
#[derive(Default)]
struct Screen {
    cells: Vec<Vec<char>>,
    row: usize,
    column: usize,
    alternate: bool,
    hidden_cursor: bool,
    /// The bytes of an incomplete escape sequence or character.
    rest: Vec<u8>,
    raw: String,
}

impl Screen {
    fn text(&self) -> String {
        let line = |line: &Vec<char>| line.iter().collect::<String>().trim_end().to_owned();
        self.cells.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    fn feed(&mut self, bytes: &[u8]) {
        self.rest.extend(bytes);
        let whole = match std::str::from_utf8(&self.rest) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        let text = String::from_utf8(self.rest[..whole].to_vec()).unwrap();
        // An incomplete sequence stays in the buffer.
        let cut = match text.rfind('\u{1b}') {
            Some(at) if !text[at + 1..].contains(|c: char| c.is_ascii_alphabetic()) => at,
            _ => text.len(),
        };
        self.rest.drain(..cut);
        self.raw.push_str(&text[..cut]);
        let mut characters = text[..cut].chars();
        while let Some(c) = characters.next() {
            match c {
                '\u{1b}' => {
                    let mut sequence = String::new();
                    for c in characters.by_ref() {
                        sequence.push(c);
                        if c.is_ascii_alphabetic() {
                            break;
                        }
                    }
                    self.apply_sequence(&sequence);
                }
                '\n' => self.row += 1,
                '\r' => self.column = 0,
                c => self.put(c),
            }
        }
    }

    fn put(&mut self, c: char) {
        if self.cells.len() <= self.row {
            self.cells.resize(self.row + 1, Vec::new());
        }
        let line = &mut self.cells[self.row];
        if line.len() <= self.column {
            line.resize(self.column + 1, ' ');
        }
        line[self.column] = c;
        self.column += 1;
    }

    fn apply_sequence(&mut self, sequence: &str) {
        let mut numbers = sequence
            .trim_start_matches('[')
            .trim_end_matches(|c: char| c.is_ascii_alphabetic())
            .split(';')
            .map(|number| number.parse::<usize>().unwrap_or(1));
        match sequence {
            "[?1049h" | "[?1049l" => {
                self.alternate = sequence.ends_with('h');
                self.cells.clear();
            }
            "[?25h" | "[?25l" => self.hidden_cursor = sequence.ends_with('l'),
            "[2J" => self.cells.clear(),
            _ if sequence.ends_with('H') => {
                self.row = numbers.next().unwrap_or(1) - 1;
                self.column = numbers.next().unwrap_or(1) - 1;
            }
            _ => {}
        }
    }
}
