//! A YAML or JSON document with the line of every value. JSON is YAML, so there is one reader.

use saphyr_parser::{Event, Parser, ScalarStyle};

/// Deepest nesting.
const DEPTH_MAX: usize = 40;

/// Most values of a document.
const NODES_MAX: usize = 500_000;

/// A value and its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) value: NodeValue,
}

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NodeValue {
    Null,
    Text(String),
    List(Vec<Node>),
    /// Keys as they were written, and their lines.
    Map(Vec<(String, Node)>),
}

/// Reads a document; the error names the line.
pub(super) fn read(text: &str) -> Result<Node, String> {
    let mut reader = Reader { parser: Parser::new_from_str(text), nodes: 0 };
    loop {
        match reader.next()? {
            (Event::StreamStart | Event::DocumentStart(_) | Event::Nothing, _) => {}
            (Event::StreamEnd | Event::DocumentEnd, _) => return Err("it is empty".to_owned()),
            (event, line) => return reader.node(event, line, 0),
        }
    }
}

struct Reader<'a> {
    parser: Parser<'a, saphyr_parser::StrInput<'a>>,
    nodes: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, usize), String> {
        match self.parser.next() {
            Some(Ok((event, span))) => Ok((event, span.start.line())),
            Some(Err(error)) => Err(format!("line {}: {}", error.marker().line(), error.info())),
            None => Ok((Event::StreamEnd, 0)),
        }
    }

    fn node(&mut self, event: Event<'a>, line: usize, depth: usize) -> Result<Node, String> {
        self.nodes += 1;
        if depth > DEPTH_MAX || self.nodes > NODES_MAX {
            return Err(format!("line {line}: the document is too deep or too large"));
        }
        let value = match event {
            Event::Scalar(text, style, ..) => match (style, text.as_ref()) {
                (ScalarStyle::Plain, "" | "~" | "null" | "Null" | "NULL") => NodeValue::Null,
                (_, text) => NodeValue::Text(text.to_owned()),
            },
            Event::SequenceStart(..) => {
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => break,
                        (Event::StreamEnd, at) => return Err(format!("line {at}: it breaks off")),
                        (event, line) => items.push(self.node(event, line, depth + 1)?),
                    }
                }
                NodeValue::List(items)
            }
            Event::MappingStart(..) => {
                let mut entries = Vec::new();
                loop {
                    let (event, line) = self.next()?;
                    let key = match event {
                        Event::MappingEnd => break,
                        Event::Scalar(key, ..) => key.to_string(),
                        _ => return Err(format!("line {line}: a key is not a text")),
                    };
                    let (event, at) = self.next()?;
                    let mut value = self.node(event, at, depth + 1)?;
                    // Where the key is, people look.
                    value.line = line;
                    entries.push((key, value));
                }
                NodeValue::Map(entries)
            }
            Event::Alias(_) => {
                return Err(format!("line {line}: aliases are not read; write the value itself"));
            }
            _ => return Err(format!("line {line}: the document is not a list of settings")),
        };
        Ok(Node { line, value })
    }
}

/// Keys are compared without case and underscores: the original's JSON says `GroupID` for `group_id`.
fn is_same_key(a: &str, b: &str) -> bool {
    let letters = |text: &str| {
        let kept = text.chars().filter(|c| *c != '_');
        kept.flat_map(char::to_lowercase).collect::<String>()
    };
    letters(a) == letters(b)
}

impl Node {
    /// Returns a field.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        let found = self.entries().iter().find(|(name, _)| is_same_key(name, key));
        found.map(|(_, node)| node).filter(|node| node.value != NodeValue::Null)
    }

    /// Returns a field below fields.
    pub(super) fn at(&self, path: &[&str]) -> Option<&Node> {
        path.iter().try_fold(self, |node, key| node.get(key))
    }

    pub(super) fn entries(&self) -> &[(String, Node)] {
        match &self.value {
            NodeValue::Map(entries) => entries,
            _ => &[],
        }
    }

    pub(super) fn items(&self) -> &[Node] {
        match &self.value {
            NodeValue::List(items) => items,
            _ => &[],
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            NodeValue::Text(text) => Some(text.trim()).filter(|text| !text.is_empty()),
            _ => None,
        }
    }

    /// Returns the text of a field; empty without one.
    pub(super) fn field(&self, key: &str) -> &str {
        self.get(key).and_then(Node::text).unwrap_or_default()
    }

    /// Returns a yes or no; `otherwise` if it says neither.
    pub(super) fn flag(&self, key: &str, otherwise: bool) -> bool {
        match self.field(key).to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" => true,
            "false" | "no" | "off" => false,
            _ => otherwise,
        }
    }

    pub(super) fn number(&self, key: &str) -> Option<f64> {
        self.field(key).parse().ok()
    }

    /// Returns the value in short, for a report.
    pub(super) fn summary(&self) -> String {
        match &self.value {
            NodeValue::Null => String::new(),
            NodeValue::Text(text) => text.clone(),
            NodeValue::List(items) => format!("a list of {}", items.len()),
            NodeValue::Map(entries) => {
                let keys: Vec<&str> = entries.iter().map(|(key, _)| key.as_str()).collect();
                keys.join(", ")
            }
        }
    }
}

/// Reads a duration as Go writes it (`1h30m`), or seconds.
pub(super) fn parse_duration_seconds(text: &str) -> Option<f64> {
    if let Ok(seconds) = text.parse::<f64>() {
        return Some(seconds);
    }
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest.get(..digits)?.parse().ok()?;
        rest = rest.get(digits..)?;
        let unit = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        total += number
            * match rest.get(..unit)? {
                "ms" => 0.001,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3_600.0,
                "d" => 86_400.0,
                "us" | "µs" | "ns" => 0.0,
                _ => return None,
            };
        rest = rest.get(unit..)?;
    }
    Some(total)
}
