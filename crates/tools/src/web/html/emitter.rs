//! Passes tags and text from the tokenizer to a page, with bounded buffers.
//!
//! The library's own emitters keep every token and every error of a text run until the run ends: a body of 5 MiB of NULs
//! becomes 800 MiB of errors. This emitter keeps neither errors, comments nor doctypes, only the attributes that the page
//! uses, and of every text and name at most a fixed number of bytes.

use std::time::Instant;

use html5gum::{Emitter, Error, State, naive_next_state};

use super::Page;

/// Longer than any tag or attribute name that matters. The rest of a name is dropped.
const MAX_NAME: usize = 32;
/// Limit of an attribute's value. Longer link targets are ignored; longer alternative texts are cut.
const MAX_VALUE: usize = 8 << 10;
/// Text is passed on in pieces of about this size.
const PIECE: usize = 8 << 10;
/// Steps of the tokenizer between two looks at the clock.
const STEPS_PER_CHECK: u32 = 1024;

/// Tells that the rest of the input need not be read.
pub(super) struct Stop;

pub(super) struct PageEmitter<'p, 'u> {
    page: &'p mut Page<'u>,
    /// The conversion ends at this time.
    until: Instant,
    steps: u32,
    text: Vec<u8>,
    is_end_tag: bool,
    tag: Bounded<MAX_NAME>,
    last_start_tag: Bounded<MAX_NAME>,
    attribute: Bounded<MAX_NAME>,
    /// What the current attribute's value is for, once its name is complete.
    current: Option<Attribute>,
    href: Bounded<MAX_VALUE>,
    alt: Bounded<MAX_VALUE>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Attribute {
    Href,
    Alt,
    Other,
}

/// The first bytes of a longer text.
#[derive(Default, PartialEq, Eq)]
struct Bounded<const MAX: usize> {
    bytes: Vec<u8>,
    is_cut: bool,
}

impl<const MAX: usize> Bounded<MAX> {
    fn push(&mut self, bytes: &[u8]) {
        let room = MAX - self.bytes.len();
        self.is_cut |= bytes.len() > room;
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.is_cut = false;
    }
}

impl<'p, 'u> PageEmitter<'p, 'u> {
    pub(super) fn new(page: &'p mut Page<'u>, until: Instant) -> Self {
        Self {
            page,
            until,
            steps: 0,
            text: Vec::with_capacity(PIECE),
            is_end_tag: false,
            tag: Bounded::default(),
            last_start_tag: Bounded::default(),
            attribute: Bounded::default(),
            current: None,
            href: Bounded::default(),
            alt: Bounded::default(),
        }
    }

    /// Passes the text on. An incomplete character at its end stays for the next piece.
    fn flush_text(&mut self) {
        let complete = match std::str::from_utf8(&self.text) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Ok(_) | Err(_) => self.text.len(),
        };
        self.page.add(&String::from_utf8_lossy(&self.text[..complete]));
        self.text.drain(..complete);
    }

    fn begin_tag(&mut self, is_end_tag: bool) {
        self.is_end_tag = is_end_tag;
        self.tag.clear();
        self.href.clear();
        self.alt.clear();
        self.current = None;
    }

    /// The first attribute of a name counts.
    fn attribute(&self) -> Attribute {
        match self.attribute.bytes.as_slice() {
            b"href" if self.href.bytes.is_empty() => Attribute::Href,
            b"alt" if self.alt.bytes.is_empty() => Attribute::Alt,
            _ => Attribute::Other,
        }
    }
}

impl Emitter for PageEmitter<'_, '_> {
    type Token = Stop;

    fn pop_token(&mut self) -> Option<Stop> {
        self.steps = self.steps.wrapping_add(1);
        if self.steps.is_multiple_of(STEPS_PER_CHECK) && Instant::now() >= self.until {
            self.page.stop();
        }
        self.page.is_full().then_some(Stop)
    }

    fn emit_string(&mut self, text: &[u8]) {
        // A single run of text may be the whole input.
        for piece in text.chunks(PIECE) {
            if self.page.is_full() {
                self.text.clear();
                return;
            }
            self.text.extend_from_slice(piece);
            if self.text.len() >= PIECE {
                self.flush_text();
            }
        }
    }

    fn emit_current_tag(&mut self) -> Option<State> {
        self.flush_text();
        let name = String::from_utf8_lossy(&self.tag.bytes);
        if self.is_end_tag {
            self.page.close(&name);
            self.last_start_tag.clear();
            return None;
        }
        let href = (!self.href.is_cut).then(|| String::from_utf8_lossy(&self.href.bytes));
        self.page.open(&name, href.as_deref().unwrap_or_default(), &String::from_utf8_lossy(&self.alt.bytes));
        drop(name);
        std::mem::swap(&mut self.tag, &mut self.last_start_tag);
        naive_next_state(&self.last_start_tag.bytes)
    }

    fn emit_eof(&mut self) {
        self.flush_text();
    }

    fn init_start_tag(&mut self) {
        self.begin_tag(false);
    }

    fn init_end_tag(&mut self) {
        self.begin_tag(true);
    }

    fn push_tag_name(&mut self, name: &[u8]) {
        self.tag.push(name);
    }

    fn init_attribute(&mut self) {
        self.attribute.clear();
        self.current = None;
    }

    fn push_attribute_name(&mut self, name: &[u8]) {
        self.attribute.push(name);
    }

    fn push_attribute_value(&mut self, value: &[u8]) {
        let current = self.current.unwrap_or_else(|| self.attribute());
        self.current = Some(current);
        match current {
            Attribute::Href => self.href.push(value),
            Attribute::Alt => self.alt.push(value),
            Attribute::Other => {}
        }
    }

    fn set_last_start_tag(&mut self, name: Option<&[u8]>) {
        self.last_start_tag.clear();
        self.last_start_tag.push(name.unwrap_or_default());
    }

    fn current_is_appropriate_end_tag_token(&mut self) -> bool {
        self.is_end_tag && !self.last_start_tag.bytes.is_empty() && self.last_start_tag == self.tag
    }

    fn should_emit_errors(&mut self) -> bool {
        false
    }

    // A page has no errors, comments and doctypes.
    fn emit_error(&mut self, _: Error) {}
    fn init_comment(&mut self) {}
    fn push_comment(&mut self, _: &[u8]) {}
    fn emit_current_comment(&mut self) {}
    fn init_doctype(&mut self) {}
    fn push_doctype_name(&mut self, _: &[u8]) {}
    fn set_doctype_public_identifier(&mut self, _: &[u8]) {}
    fn set_doctype_system_identifier(&mut self, _: &[u8]) {}
    fn push_doctype_public_identifier(&mut self, _: &[u8]) {}
    fn push_doctype_system_identifier(&mut self, _: &[u8]) {}
    fn emit_current_doctype(&mut self) {}
    fn set_self_closing(&mut self) {}
    fn set_force_quirks(&mut self) {}
}
