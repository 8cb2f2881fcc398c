//! Parses YAML into a tree, with limits on depth and size.

use std::collections::HashMap;

use granit_parser::{Event, Marker, Parser, ScalarStyle, Span, Tag};

use super::tree::{Entry, Fault, Node, Position, Scalar, ScalarKind, Value};

/// Nodes of one file, including those that aliases repeat.
const MAX_NODES: usize = 20_000;
/// Bytes of text that aliases may add.
const MAX_REPEATED_TEXT: usize = 64 * 1024;
const MAX_DEPTH: usize = 64;

/// Parses one document; `None` if it is empty. `lines_before` is added to all positions.
pub(crate) fn parse(text: &str, lines_before: usize) -> Result<Option<Node>, Fault> {
    let mut builder = Builder {
        lines_before,
        open: Vec::new(),
        root: None,
        documents: 0,
        anchors: HashMap::new(),
        nodes: 0,
        text: 0,
        max_text: text.len() + MAX_REPEATED_TEXT,
    };
    let mut options = granit_parser::options! { disallow_directives: true };
    options.set_emit_comments(false);
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|error| {
            let message = format!("is not valid YAML: {}", error.info().replace('\n', " "));
            Fault::new(builder.position(*error.marker()), message)
        })?;
        builder.handle(event, span)?;
    }
    Ok(builder.root.filter(|root| !root.is_null()))
}

struct Builder {
    lines_before: usize,
    open: Vec<OpenCollection>,
    root: Option<Node>,
    documents: usize,
    anchors: HashMap<usize, AnchoredNode>,
    nodes: usize,
    text: usize,
    max_text: usize,
}

/// A node that aliases can repeat, with its size.
struct AnchoredNode {
    node: Node,
    nodes: usize,
    text: usize,
}

/// A list or map whose end has not been reached.
struct OpenCollection {
    at: Position,
    anchor: usize,
    /// The counters at its start.
    nodes_before: usize,
    text_before: usize,
    collection: CollectionBuilder,
}

enum CollectionBuilder {
    List(Vec<Node>),
    Map { entries: Vec<Entry>, key: Option<(String, Position)> },
}

impl Builder {
    fn position(&self, marker: Marker) -> Position {
        Position { line: marker.line() + self.lines_before, column: marker.col() + 1 }
    }

    fn handle(&mut self, event: Event<'_>, span: Span) -> Result<(), Fault> {
        let at = self.position(span.start);
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(Fault::new(at, "expected one YAML document, found another one"));
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                let plain = plain_unless_tagged(style == ScalarStyle::Plain, tag.as_deref(), at)?;
                self.scalar(Scalar { text: text.into_owned(), plain, from_env: false }, anchor, at)?;
            }
            Event::SequenceStart(_, anchor, tag) => {
                plain_unless_tagged(false, tag.as_deref(), at)?;
                self.begin(CollectionBuilder::List(Vec::new()), anchor, at)?;
            }
            Event::MappingStart(_, anchor, tag) => {
                plain_unless_tagged(false, tag.as_deref(), at)?;
                self.begin(CollectionBuilder::Map { entries: Vec::new(), key: None }, anchor, at)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.end()?,
            Event::Alias(anchor) => self.alias(anchor, at)?,
            _ => {}
        }
        Ok(())
    }

    fn count(&mut self, nodes: usize, text: usize, at: Position) -> Result<(), Fault> {
        self.nodes += nodes;
        self.text += text;
        if self.nodes > MAX_NODES || self.text > self.max_text {
            return Err(Fault::new(
                at,
                format!("holds more than {MAX_NODES} values, or values that are too long"),
            ));
        }
        Ok(())
    }

    fn scalar(&mut self, scalar: Scalar, anchor: usize, at: Position) -> Result<(), Fault> {
        let size = scalar.text.len();
        self.count(1, size, at)?;
        if self.expects_key() {
            return self.key(scalar, at);
        }
        let node = Node { at, value: Value::Scalar(scalar) };
        if anchor > 0 {
            self.anchors.insert(anchor, AnchoredNode { node: node.clone(), nodes: 1, text: size });
        }
        self.attach(node);
        Ok(())
    }

    fn expects_key(&self) -> bool {
        matches!(
            self.open.last(),
            Some(OpenCollection { collection: CollectionBuilder::Map { key: None, .. }, .. })
        )
    }

    fn key(&mut self, scalar: Scalar, at: Position) -> Result<(), Fault> {
        let found = match scalar.kind() {
            ScalarKind::Text(_) => None,
            ScalarKind::Null => Some("expected text as a key, found nothing".to_owned()),
            ScalarKind::Number(_) | ScalarKind::Boolean(_) => {
                Some(format!("expected text as a key, found {}: put it in quotes", scalar.text))
            }
        };
        if let Some(message) = found {
            return Err(Fault::new(at, message));
        }
        if scalar.plain && scalar.text == "<<" {
            return Err(Fault::new(at, "merge keys (<<) are not supported: write the keys out"));
        }
        let Some(OpenCollection { collection: CollectionBuilder::Map { entries, key }, .. }) =
            self.open.last_mut()
        else {
            return Ok(());
        };
        if let Some(twin) = entries.iter().find(|entry| entry.key == scalar.text) {
            let key = super::tree::quoted(&scalar.text);
            return Err(Fault::new(at, format!("duplicate key {key}, already set in line {}", twin.at.line)));
        }
        *key = Some((scalar.text, at));
        Ok(())
    }

    fn begin(&mut self, collection: CollectionBuilder, anchor: usize, at: Position) -> Result<(), Fault> {
        if self.expects_key() {
            return Err(Fault::new(at, "expected text as a key, found a list or a map"));
        }
        if self.open.len() >= MAX_DEPTH {
            return Err(Fault::new(at, format!("is nested more than {MAX_DEPTH} levels deep")));
        }
        let (nodes_before, text_before) = (self.nodes, self.text);
        self.count(1, 0, at)?;
        self.open.push(OpenCollection { at, anchor, nodes_before, text_before, collection });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Fault> {
        let Some(frame) = self.open.pop() else {
            return Err(Fault::new(Position::FILE, "is not valid YAML: unexpected end of a list or map"));
        };
        let value = match frame.collection {
            CollectionBuilder::List(items) => Value::List(items),
            CollectionBuilder::Map { entries, .. } => Value::Map(entries),
        };
        let node = Node { at: frame.at, value };
        if frame.anchor > 0 {
            let (nodes, text) = (self.nodes - frame.nodes_before, self.text - frame.text_before);
            // The stored copy counts as well.
            self.count(nodes, 0, frame.at)?;
            self.anchors.insert(frame.anchor, AnchoredNode { node: node.clone(), nodes, text });
        }
        self.attach(node);
        Ok(())
    }

    fn alias(&mut self, anchor: usize, at: Position) -> Result<(), Fault> {
        if self.expects_key() {
            return Err(Fault::new(at, "expected text as a key, found an alias"));
        }
        let Some(AnchoredNode { nodes, text, .. }) = self.anchors.get(&anchor) else {
            return Err(Fault::new(at, "an alias refers to a value that contains it"));
        };
        self.count(*nodes, *text, at)?;
        if let Some(anchored) = self.anchors.get(&anchor) {
            let node = Node { at, ..anchored.node.clone() };
            self.attach(node);
        }
        Ok(())
    }

    fn attach(&mut self, node: Node) {
        match self.open.last_mut().map(|frame| &mut frame.collection) {
            None => self.root = Some(node),
            Some(CollectionBuilder::List(items)) => items.push(node),
            Some(CollectionBuilder::Map { entries, key }) => {
                if let Some((key, at)) = key.take() {
                    entries.push(Entry { key, at, value: node });
                }
            }
        }
    }
}

/// `!!str` makes any scalar text. Other core tags are ignored; all others are errors.
fn plain_unless_tagged(plain: bool, tag: Option<&Tag>, at: Position) -> Result<bool, Fault> {
    match tag {
        None => Ok(plain),
        Some(tag) if tag.is_yaml_core_schema_tag("str") => Ok(false),
        Some(tag) if tag.is_yaml_core_schema() => Ok(plain),
        Some(_) => Err(Fault::new(at, "tags are not supported")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> (usize, String) {
        let fault = parse(text, 0).unwrap_err();
        (fault.at.line, fault.message)
    }

    #[test]
    fn values_have_positions() {
        let root = parse("a: 1\nb:\n  - x\n  - {c: y}\n", 10).unwrap().unwrap();
        let Value::Map(entries) = &root.value else { panic!() };
        assert_eq!((entries[0].key.as_str(), entries[0].at), ("a", Position { line: 11, column: 1 }));
        assert_eq!(entries[0].value.at, Position { line: 11, column: 4 });
        let Value::List(items) = &entries[1].value.value else { panic!() };
        assert_eq!(items[1].at.line, 14);
        assert_eq!(root.to_json().to_string(), r#"{"a":1,"b":["x",{"c":"y"}]}"#);
    }

    #[test]
    fn empty_document_is_none() {
        for text in ["", "# only a comment\n", "~\n", "---\n"] {
            assert!(parse(text, 0).unwrap().is_none(), "{text:?}");
        }
    }

    #[test]
    fn aliases_are_expanded_within_limits() {
        let root = parse("a: &x [1, 2]\nb: *x\n", 0).unwrap().unwrap();
        assert_eq!(root.to_json().to_string(), r#"{"a":[1,2],"b":[1,2]}"#);

        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..12 {
            let before = level - 1;
            let refs = vec![format!("*a{before}"); 10].join(", ");
            bomb.push_str(&format!("a{level}: &a{level} [{refs}]\n"));
        }
        assert!(fault(&bomb).1.contains("more than 20000 values"));

        let long = "x".repeat(1 << 20);
        let many = ["*a"; 8].join(", ");
        assert!(fault(&format!("a: &a {long}\nb: [{many}]\n")).1.contains("too long"));
        assert!(fault("a: &a [*a]\n").1.contains("contains it"));
    }

    #[test]
    fn ambiguous_yaml_is_an_error() {
        assert_eq!(fault("a: 1\nb: 2\na: 3\n"), (3, "duplicate key `a`, already set in line 1".to_owned()));
        assert!(fault("a: 1\n2: x\n").1.contains("put it in quotes"));
        assert!(fault("[a, b]: x\n").1.contains("as a key"));
        assert!(fault("a: !x y\n").1.contains("tags"));
        assert!(fault("a: 1\n---\nb: 2\n").1.contains("one YAML document"));
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        assert!(fault(&deep).1.contains("levels deep"));
        assert_eq!(fault("a:\n\tb: 1\n").0, 2);
    }
}
