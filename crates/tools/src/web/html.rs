//! Converts HTML to readable text: headings, lists, links and tables in Markdown style.

mod emitter;

use std::time::{Duration, Instant};

use html5gum::Tokenizer;
use reqwest::Url;

use self::emitter::{PageEmitter, Stop};
use super::text::{Document, truncate_chars};

/// Time limit of a conversion. What was read until then is the result. The largest page takes a fraction of it.
const MAX_TIME: Duration = Duration::from_secs(5);
/// Longer than any real title.
const MAX_TITLE_BYTES: usize = 4000;

/// Converts a page. Time is linear in its size and limited. Memory beside the page depends only on `max_chars`,
/// whatever the page contains: no tree is built, and no token is kept.
pub(super) fn to_text(html: &str, base: &Url, max_chars: usize) -> Document {
    convert(html, base, max_chars, Instant::now() + MAX_TIME)
}

fn convert(html: &str, base: &Url, max_chars: usize, until: Instant) -> Document {
    let mut page = Page::new(base, max_chars);
    let mut tokens = Tokenizer::new_with_emitter(html, PageEmitter::new(&mut page, until));
    if let Some(Ok(Stop)) = tokens.next() {
        page.stop();
    }
    page.finish(max_chars)
}

/// Elements that begin and end a line; with `true`, also an empty line.
fn block(name: &str) -> Option<bool> {
    match name {
        "p" | "h1" | "h2" | "h3" | "h4" | "h5" | "h6" | "ul" | "ol" | "dl" | "table" | "pre"
        | "blockquote" | "section" | "article" | "figure" | "hr" | "form" => Some(true),
        "div" | "li" | "tr" | "dt" | "dd" | "header" | "footer" | "main" | "nav" | "aside" | "address"
        | "body" | "option" | "fieldset" | "figcaption" | "caption" | "summary" | "details" => Some(false),
        _ => None,
    }
}

struct Page<'a> {
    base: &'a Url,
    text: String,
    title: String,
    in_title: bool,
    /// Depth of elements whose contents are not text.
    hidden: u32,
    preformatted: u32,
    /// Start of the open link's text, and its target.
    link: Option<(usize, String)>,
    /// Whitespace is pending.
    space: bool,
    /// Limit of the text in bytes, before it is tidied.
    max_bytes: usize,
    /// The rest of the page is left out.
    stopped: bool,
}

impl<'a> Page<'a> {
    fn new(base: &'a Url, max_chars: usize) -> Self {
        Self {
            // A character has at most four bytes; links may become longer than they were.
            max_bytes: max_chars.saturating_mul(4),
            stopped: false,
            base,
            text: String::new(),
            title: String::new(),
            in_title: false,
            hidden: 0,
            preformatted: 0,
            link: None,
            space: false,
        }
    }

    /// Nothing more needs to be added.
    fn is_full(&self) -> bool {
        self.stopped || self.text.len() > self.max_bytes
    }

    /// Leaves out the rest of the page.
    fn stop(&mut self) {
        self.stopped = true;
    }

    /// `href` and `alt` are attributes; empty if the tag has none.
    fn open(&mut self, name: &str, href: &str, alt: &str) {
        match name {
            "script" | "style" | "svg" | "template" => self.hidden += 1,
            "title" => self.in_title = true,
            _ => {}
        }
        if self.hidden > 0 || self.in_title {
            return;
        }
        if let Some(empty_line) = block(name) {
            self.end_line(empty_line);
        }
        match name {
            "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => {
                let level = name.bytes().last().map_or(1, |digit| usize::from(digit - b'0'));
                self.text.push_str(&"#".repeat(level));
                self.space = true;
            }
            "li" => self.mark("-"),
            "blockquote" => self.mark(">"),
            "hr" => self.text.push_str("---\n"),
            "br" => self.break_line(),
            "pre" => self.preformatted += 1,
            "td" | "th" if !self.at_line_start() => self.mark(" |"),
            "a" => {
                let href = Some(href.trim()).filter(|href| !href.is_empty());
                self.link = href
                    .and_then(|href| self.base.join(href).ok())
                    .filter(|url| matches!(url.scheme(), "http" | "https"))
                    .map(|url| (self.text.len(), url.into()));
            }
            "img" if !alt.trim().is_empty() => self.add(&format!("[{}]", alt.trim())),
            _ => {}
        }
    }

    fn close(&mut self, name: &str) {
        match name {
            "script" | "style" | "svg" | "template" => self.hidden = self.hidden.saturating_sub(1),
            "title" => self.in_title = false,
            "pre" => self.preformatted = self.preformatted.saturating_sub(1),
            "a" => self.close_link(),
            _ => {}
        }
        if self.hidden == 0
            && let Some(empty_line) = block(name)
        {
            self.end_line(empty_line);
        }
    }

    /// Writes `[text](target)`, if the link has a text.
    fn close_link(&mut self) {
        let Some((start, target)) = self.link.take() else { return };
        let Some(text) = self.text.get(start..).map(str::trim).filter(|text| !text.is_empty()) else {
            return;
        };
        let before = if self.text[start..].starts_with(char::is_whitespace) { " " } else { "" };
        let link = format!("{before}[{text}]({target})");
        self.text.truncate(start);
        self.text.push_str(&link);
    }

    fn add(&mut self, text: &str) {
        if self.in_title {
            let room = MAX_TITLE_BYTES.saturating_sub(self.title.len());
            self.title.push_str(&text[..text.floor_char_boundary(room)]);
        } else if self.hidden == 0 && self.preformatted > 0 {
            self.text.push_str(text);
        } else if self.hidden == 0 {
            for (index, word) in text.split(char::is_whitespace).enumerate() {
                self.space |= index > 0;
                if !word.is_empty() {
                    if self.space && !self.at_line_start() {
                        self.text.push(' ');
                    }
                    self.space = false;
                    self.text.push_str(word);
                }
            }
        }
    }

    fn mark(&mut self, mark: &str) {
        self.text.push_str(mark);
        self.space = true;
    }

    fn at_line_start(&self) -> bool {
        self.text.is_empty() || self.text.ends_with('\n')
    }

    fn break_line(&mut self) {
        self.text.push('\n');
        self.space = false;
    }

    fn end_line(&mut self, empty_line: bool) {
        self.space = false;
        if self.text.is_empty() {
            return;
        }
        if !self.text.ends_with('\n') {
            self.text.push('\n');
        }
        if empty_line && !self.text.ends_with("\n\n") {
            self.text.push('\n');
        }
    }

    fn finish(mut self, max_chars: usize) -> Document {
        self.close_link();
        let tidy = tidy(&self.text);
        let (text, truncated) = truncate_chars(&tidy, max_chars);
        let title = self.title.split_whitespace().collect::<Vec<_>>().join(" ").replace('\0', "\u{fffd}");
        Document {
            title: Some(truncate_chars(&title, 300).0.to_owned()).filter(|title| !title.is_empty()),
            text: text.replace('\0', "\u{fffd}"),
            truncated: truncated || self.stopped,
        }
    }
}

/// Removes trailing whitespace and repeated empty lines.
fn tidy(text: &str) -> String {
    let (mut tidy, mut empty) = (String::with_capacity(text.len()), 0);
    for line in text.trim().lines() {
        let line = line.trim_end();
        empty = if line.is_empty() { empty + 1 } else { 0 };
        if empty < 2 {
            tidy.push_str(line);
            tidy.push('\n');
        }
    }
    tidy.truncate(tidy.trim_end().len());
    tidy
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(html: &str) -> String {
        to_text(html, &Url::parse("https://example.org/a/b").unwrap(), 10_000).text
    }

    #[test]
    fn pages_become_markdown_like_text() {
        for (html, expected) in [
            ("<p>Hello,\n  <b>world</b>!</p>", "Hello, world!"),
            ("<h1>One</h1><h3> Three </h3>text", "# One\n\n### Three\n\ntext"),
            ("<ul><li>a<li>b <i>c</i></ul>d", "- a\n- b c\n\nd"),
            ("a<br>b<br/>c", "a\nb\nc"),
            ("see <a href='../c?d#e'>this</a>.", "see [this](https://example.org/c?d#e)."),
            ("<a href='javascript:alert(1)'>x</a> <a>y</a> <a href=z></a>", "x y"),
            ("<table><tr><th>a</th><th>b</th></tr><tr><td>1<td>2</table>", "a | b\n1 | 2"),
            ("<pre>a\n  b\n</pre>c", "a\n  b\n\nc"),
            ("a &lt;b&gt; &amp; &eacute;&nbsp;&#x41;", "a <b> & é\u{a0}A"),
            ("<script>if (a<b) '</p>'</script><style>p{}</style>x<!-- no -->y", "xy"),
            ("<svg><text>no</text></svg>yes<template>no</template>", "yes"),
            ("<img src=x alt='A cat'><img src=y>", "[A cat]"),
            ("<div><div><div>deep</div></div></div><div>next</div>", "deep\nnext"),
            (
                "unclosed <b>bold <p>next <a href=/q>link",
                "unclosed bold\n\nnext [link](https://example.org/q)",
            ),
            ("", ""),
            ("<", "<"),
        ] {
            let expected = expected.replace('\u{a0}', " ");
            assert_eq!(text(html), expected, "{html}");
        }
    }

    #[test]
    fn title_is_returned_separately() {
        let url = Url::parse("https://example.org/").unwrap();
        let page = to_text("<head><title> A &amp;\n B </title></head><body>text", &url, 100);
        assert_eq!((page.title.as_deref(), page.text.as_str()), (Some("A & B"), "text"));
    }

    #[test]
    fn hostile_pages_are_bounded() {
        let url = Url::parse(&format!("https://example.org/{}", "x".repeat(8000))).unwrap();
        for html in [
            "<div>".repeat(200_000),
            "<a href=y>z</a>".repeat(100_000),
            "<".repeat(500_000),
            "&".repeat(500_000),
        ] {
            let page = to_text(&html, &url, 1000);
            assert!(page.text.chars().count() <= 1000);
        }
        let page = to_text(&"word ".repeat(1000), &url, 100);
        assert!(page.truncated && page.text.len() == 100);
        let page = to_text(&format!("{}<p>end", "<br>".repeat(10_000)), &url, 1000);
        assert!(page.truncated, "the text is short only because empty lines were removed");
    }

    #[test]
    fn conversion_stops_at_its_time_limit() {
        let url = Url::parse("https://example.org/").unwrap();
        let html = format!("begin{}end", "<b>".repeat(100_000));
        let page = convert(&html, &url, 1000, Instant::now());
        assert!(page.truncated && !page.text.contains("end"), "{page:?}");
        let page = to_text(&html, &url, 1000);
        assert!(!page.truncated && page.text == "beginend", "{page:?}");
    }

    #[test]
    fn long_names_and_attributes_are_cut() {
        let long = "x".repeat(100_000);
        assert_eq!(text(&format!("<a href=/{long}>one</a> <{long}>two</{long}>")), "one two");
        assert_eq!(
            text(&format!("<a {long}=1 href=/y href=/z alt=w>one</a>")),
            "[one](https://example.org/y)"
        );
        assert_eq!(text(&format!("<script>{long}</script{long}>no</script>yes")), "yes");
        // Text is passed on in pieces, which may end within a character.
        let accents = "é".repeat(9000);
        assert_eq!(text(&format!("a{accents}")), format!("a{accents}"));
        assert_eq!(text("a&#0;\0b"), "a\u{fffd}\u{fffd}b");
    }
}
