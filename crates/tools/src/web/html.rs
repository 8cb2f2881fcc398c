//! Converts HTML to readable text: headings, lists, links and tables in Markdown style.

use html5gum::{DefaultEmitter, Token, Tokenizer};
use reqwest::Url;

use super::text::{Document, truncate_chars};

/// Converts a page. Time and memory are linear in its size, whatever it contains: no tree is built.
pub(super) fn to_text(html: &str, base: &Url, max_chars: usize) -> Document {
    let mut emitter = DefaultEmitter::default();
    emitter.naively_switch_states(true);
    let mut page = Page::new(base);
    // A character has at most four bytes; links may become longer than they were.
    let enough = max_chars.saturating_mul(4);
    for token in Tokenizer::new_with_emitter(html, emitter) {
        let Ok(token) = token;
        match token {
            Token::StartTag(tag) => page.open(&text_of(&tag.name), |name| {
                tag.attributes.get(name.as_bytes()).map(|value| text_of(&value.value))
            }),
            Token::EndTag(tag) => page.close(&text_of(&tag.name)),
            Token::String(text) => page.add(&text_of(&text.value)),
            Token::Comment(_) | Token::Doctype(_) | Token::Error(_) => {}
        }
        if page.text.len() > enough {
            break;
        }
    }
    page.finish(max_chars)
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
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
}

impl<'a> Page<'a> {
    fn new(base: &'a Url) -> Self {
        Self {
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

    fn open(&mut self, name: &str, attribute: impl Fn(&str) -> Option<String>) {
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
                let target = attribute("href").and_then(|href| self.base.join(href.trim()).ok());
                self.link = target
                    .filter(|url| matches!(url.scheme(), "http" | "https"))
                    .map(|url| (self.text.len(), url.into()));
            }
            "img" => {
                if let Some(alt) = attribute("alt").filter(|alt| !alt.trim().is_empty()) {
                    self.add(&format!("[{}]", alt.trim()));
                }
            }
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
            // Longer than any real title.
            self.title.push_str(truncate_chars(text, 1000).0);
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
            truncated,
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
    }
}
