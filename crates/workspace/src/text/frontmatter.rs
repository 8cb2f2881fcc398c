//! Markdown with a head of YAML between two lines of `---`.

use super::{
    tree::{Fault, Node, Position},
    yaml,
};

/// A file that was taken apart.
#[derive(Debug)]
pub(crate) struct Document {
    /// `None` if the file has none, or an empty one.
    pub head: Option<Node>,
    /// Without the space around it.
    pub body: String,
}

/// How strict the head is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Yaml,
    /// Other systems also accept `key: text: more`, which is no YAML.
    Lenient,
}

pub(crate) fn split(text: &str, style: Style) -> Result<Document, Fault> {
    let blank_lines = text.lines().take_while(|line| line.trim().is_empty()).count();
    let mut lines = text.split_inclusive('\n').skip(blank_lines);
    let opening = blank_lines + 1;
    if lines.next().is_none_or(|line| line.trim_end() != "---") {
        return Ok(Document { head: None, body: text.trim().to_owned() });
    }
    let mut head = String::new();
    loop {
        let Some(line) = lines.next() else {
            let message = "the frontmatter begins here and does not end: expected another line of ---";
            return Err(Fault::new(Position::line(opening), message));
        };
        if line.trim_end() == "---" {
            break;
        }
        head.push_str(line);
    }
    let body: String = lines.collect();
    let head = match yaml::parse(&head, opening) {
        Err(fault) if style == Style::Lenient => {
            yaml::parse(&with_quotes(&head), opening).map_err(|_| fault)?
        }
        result => result?,
    };
    Ok(Document { head, body: body.trim().to_owned() })
}

/// Puts the values of lines like `description: finds bugs: many` in quotes.
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

    fn head(text: &str, style: Style) -> String {
        split(text, style).unwrap().head.unwrap().to_json().to_string()
    }

    #[test]
    fn takes_files_apart() {
        let document = split("---\na: 1\n---\n\n# Title\n---\nmore\n", Style::Yaml).unwrap();
        assert_eq!(document.body, "# Title\n---\nmore");
        assert_eq!(document.head.unwrap().at.line, 2);

        let document = split("no head\n---\n", Style::Yaml).unwrap();
        assert!(document.head.is_none());
        assert_eq!(document.body, "no head\n---");

        let document = split("\n\n---\n---\nbody", Style::Yaml).unwrap();
        assert!(document.head.is_none());
        assert_eq!(document.body, "body");

        assert_eq!(split("\n---\na: 1\n", Style::Yaml).unwrap_err().at.line, 2);
        assert_eq!(split("", Style::Yaml).unwrap().body, "");
    }

    #[test]
    fn others_need_no_quotes() {
        let text = "---\ndescription: finds bugs: many \"small\" ones\nmode: all\nx:\n  y: 1\n---\n";
        assert!(split(text, Style::Yaml).is_err());
        let expected = r#"{"description":"finds bugs: many \"small\" ones","mode":"all","x":{"y":1}}"#;
        assert_eq!(head(text, Style::Lenient), expected);
        // What is wrong otherwise stays wrong, with the first message.
        let fault = split("---\na: b: c\nd: [\n---\n", Style::Lenient).unwrap_err();
        assert_eq!(fault.at.line, 2);
    }
}
