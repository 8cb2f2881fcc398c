//! Splits Markdown with YAML frontmatter between two lines of `---`.

use super::{
    tree::{Fault, Node, Position},
    yaml,
};

/// A Markdown file split into frontmatter and body.
#[derive(Debug)]
pub(crate) struct Document {
    /// The frontmatter; `None` if it is missing or empty.
    pub head: Option<Node>,
    /// The text after the frontmatter, trimmed.
    pub body: String,
}

/// How strictly the frontmatter is parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrontmatterStyle {
    Strict,
    /// Also accepts `key: text: more`, which is not valid YAML but which other systems accept.
    Lenient,
}

pub(crate) fn split_frontmatter(text: &str, style: FrontmatterStyle) -> Result<Document, Fault> {
    let blank_lines = text.lines().take_while(|line| line.trim().is_empty()).count();
    let mut lines = text.split_inclusive('\n').skip(blank_lines);
    let opening = blank_lines + 1;
    if lines.next().is_none_or(|line| line.trim_end() != "---") {
        return Ok(Document { head: None, body: text.trim().to_owned() });
    }
    let mut head = String::new();
    loop {
        let Some(line) = lines.next() else {
            let message = "the frontmatter is not closed: expected another line of ---";
            return Err(Fault::new(Position::line(opening), message));
        };
        if line.trim_end() == "---" {
            break;
        }
        head.push_str(line);
    }
    let body: String = lines.collect();
    let head = match yaml::parse(&head, opening) {
        Err(fault) if style == FrontmatterStyle::Lenient => {
            yaml::parse(&with_quotes(&head), opening).map_err(|_| fault)?
        }
        result => result?,
    };
    Ok(Document { head, body: body.trim().to_owned() })
}

/// Quotes the values of lines like `description: finds bugs: many`.
fn with_quotes(head: &str) -> String {
    let mut result = String::new();
    for line in head.split_inclusive('\n') {
        match line.split_once(": ") {
            Some((key, value)) if is_key(key) && needs_quotes(value.trim()) => {
                let value = value.trim().replace('\\', "\\\\").replace('"', "\\\"");
                result.push_str(&format!("{key}: \"{value}\"\n"));
            }
            _ => result.push_str(line),
        }
    }
    result
}

fn is_key(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
}

fn needs_quotes(value: &str) -> bool {
    let structured = value.starts_with(['"', '\'', '[', '{', '|', '>', '&', '!', '#']);
    !structured && (value.contains(": ") || value.ends_with(':') || value.starts_with(['*', '@', '`', '%']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str, style: FrontmatterStyle) -> String {
        split_frontmatter(text, style).unwrap().head.unwrap().to_json().to_string()
    }

    #[test]
    fn file_is_split_into_frontmatter_and_body() {
        let document =
            split_frontmatter("---\na: 1\n---\n\n# Title\n---\nmore\n", FrontmatterStyle::Strict).unwrap();
        assert_eq!(document.body, "# Title\n---\nmore");
        assert_eq!(document.head.unwrap().at.line, 2);

        let document = split_frontmatter("no head\n---\n", FrontmatterStyle::Strict).unwrap();
        assert!(document.head.is_none());
        assert_eq!(document.body, "no head\n---");

        let document = split_frontmatter("\n\n---\n---\nbody", FrontmatterStyle::Strict).unwrap();
        assert!(document.head.is_none());
        assert_eq!(document.body, "body");

        assert_eq!(split_frontmatter("\n---\na: 1\n", FrontmatterStyle::Strict).unwrap_err().at.line, 2);
        assert_eq!(split_frontmatter("", FrontmatterStyle::Strict).unwrap().body, "");
    }

    #[test]
    fn lenient_style_accepts_unquoted_colons() {
        let text = "---\ndescription: finds bugs: many \"small\" ones\nmode: all\nx:\n  y: 1\n---\n";
        assert!(split_frontmatter(text, FrontmatterStyle::Strict).is_err());
        let expected = r#"{"description":"finds bugs: many \"small\" ones","mode":"all","x":{"y":1}}"#;
        assert_eq!(head(text, FrontmatterStyle::Lenient), expected);
        // Other errors remain, with the message of the strict parser.
        let fault = split_frontmatter("---\na: b: c\nd: [\n---\n", FrontmatterStyle::Lenient).unwrap_err();
        assert_eq!(fault.at.line, 2);
    }
}
