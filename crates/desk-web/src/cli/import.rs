//! Reads the configuration of Envoy's reference rate limit service, a YAML file per domain.
//!
//! The file becomes a tree of nodes that know their lines ([`YamlNode`]), and that becomes the JSON of
//! `PUT /api/v1/ratelimit/domains/{domain}`. Whatever is not supported is told by its line. Invariants:
//! an alias cannot make the tree endless, or larger than [`NODES_MAX`]; nothing is stored of a file with
//! an error.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser};
use serde_json::{Map, Value, json};

/// Most nodes of a file once its aliases are filled in.
const NODES_MAX: usize = 200_000;
/// Most levels of nodes, far more than rules can have.
const DEPTH_MAX: usize = 100;

/// A domain read from a file.
#[derive(Debug)]
pub(crate) struct ImportedDomain {
    pub(crate) domain: String,
    /// The body of the call that stores it.
    pub(crate) body: Value,
    /// Number of rules.
    pub(crate) rules: usize,
    /// Parts that decide nothing and were left out.
    pub(crate) notes: Vec<ImportNote>,
    /// Parts that would decide, and are not supported.
    pub(crate) unsupported: Vec<ImportNote>,
}

/// Something about a line of the file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ImportNote {
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl ImportNote {
    fn new(line: usize, message: impl Into<String>) -> ImportNote {
        ImportNote { line, message: message.into() }
    }
}

/// A node of a YAML document.
#[derive(Debug, Clone)]
struct YamlNode {
    line: usize,
    value: YamlValue,
}

#[derive(Debug, Clone)]
enum YamlValue {
    Scalar { text: String, is_plain: bool },
    List(Vec<YamlNode>),
    Map(Vec<(YamlNode, YamlNode)>),
}

/// Reads a file: all of its domains.
///
/// # Errors
/// The first line that is no YAML, makes a cycle, or cannot be understood as a configuration.
pub(crate) fn read(text: &str) -> Result<Vec<ImportedDomain>, ImportNote> {
    let documents = parse(text)?;
    if documents.is_empty() {
        return Err(ImportNote::new(1, "the file is empty; it needs a domain and descriptors"));
    }
    documents.iter().map(domain_of).collect()
}

/// A list or a map that is not complete yet.
struct OpenNode {
    anchor: usize,
    line: usize,
    is_map: bool,
    items: Vec<YamlNode>,
}

fn parse(text: &str) -> Result<Vec<YamlNode>, ImportNote> {
    let mut documents = Vec::new();
    let mut open: Vec<OpenNode> = Vec::new();
    let mut anchors: HashMap<usize, (YamlNode, usize)> = HashMap::new();
    let mut count = 0;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| {
            ImportNote::new(error.marker().line(), format!("no YAML: {}", error.info()))
        })?;
        let line = span.start.line();
        let node = match event {
            Event::SequenceStart(..) | Event::MappingStart(..) if open.len() >= DEPTH_MAX => {
                return Err(ImportNote::new(line, format!("more than {DEPTH_MAX} levels")));
            }
            Event::SequenceStart(anchor, _) => {
                open.push(OpenNode { anchor, line, is_map: false, items: Vec::new() });
                continue;
            }
            Event::MappingStart(anchor, _) => {
                open.push(OpenNode { anchor, line, is_map: true, items: Vec::new() });
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(done) = open.pop() else { continue };
                let value = match done.is_map {
                    true => YamlValue::Map(pairs(done.items, done.line)?),
                    false => YamlValue::List(done.items),
                };
                let node = YamlNode { line: done.line, value };
                if done.anchor > 0 {
                    let size = size_of(&node);
                    anchors.insert(done.anchor, (node.clone(), size));
                }
                node
            }
            Event::Scalar(text, style, anchor, _) => {
                let is_plain = style == saphyr_parser::ScalarStyle::Plain;
                let value = YamlValue::Scalar { text: text.into_owned(), is_plain };
                let node = YamlNode { line, value };
                if anchor > 0 {
                    anchors.insert(anchor, (node.clone(), 1));
                }
                node
            }
            Event::Alias(anchor) => {
                if open.iter().any(|one| one.anchor == anchor) {
                    return Err(ImportNote::new(
                        line,
                        "a cycle: this alias stands inside what it names",
                    ));
                }
                let Some((node, size)) = anchors.get(&anchor) else {
                    return Err(ImportNote::new(line, "an alias without its anchor"));
                };
                count += size;
                if count > NODES_MAX {
                    break;
                }
                YamlNode { line, ..node.clone() }
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => continue,
        };
        count += 1;
        if count > NODES_MAX {
            break;
        }
        match open.last_mut() {
            Some(parent) => parent.items.push(node),
            None => documents.push(node),
        }
    }
    if count > NODES_MAX {
        let message = format!("more than {NODES_MAX} values, aliases filled in");
        return Err(ImportNote::new(1, message));
    }
    Ok(documents)
}

fn size_of(node: &YamlNode) -> usize {
    1 + match &node.value {
        YamlValue::Scalar { .. } => 0,
        YamlValue::List(items) => items.iter().map(size_of).sum(),
        YamlValue::Map(pairs) => {
            pairs.iter().map(|(key, value)| size_of(key) + size_of(value)).sum()
        }
    }
}

/// Keys and values of a map, which come one after the other. A merge key brings the pairs of another map.
fn pairs(items: Vec<YamlNode>, line: usize) -> Result<Vec<(YamlNode, YamlNode)>, ImportNote> {
    let mut pairs: Vec<(YamlNode, YamlNode)> = Vec::with_capacity(items.len() / 2);
    let mut merged: Vec<(YamlNode, YamlNode)> = Vec::new();
    let mut items = items.into_iter();
    while let (Some(key), Some(value)) = (items.next(), items.next()) {
        if key.text() == Some("<<") {
            match value.value {
                YamlValue::Map(more) => merged.extend(more),
                _ => return Err(ImportNote::new(key.line, "<< takes a map")),
            }
            continue;
        }
        let Some(name) = key.text() else {
            return Err(ImportNote::new(line, "the keys of a map are texts"));
        };
        if pairs.iter().any(|(known, _)| known.text() == Some(name)) {
            return Err(ImportNote::new(key.line, format!("{name} twice in one map")));
        }
        pairs.push((key, value));
    }
    for (key, value) in merged {
        if !pairs.iter().any(|(known, _)| known.text() == key.text()) {
            pairs.push((key, value));
        }
    }
    Ok(pairs)
}

impl YamlNode {
    fn text(&self) -> Option<&str> {
        match &self.value {
            YamlValue::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }

    fn is_null(&self) -> bool {
        matches!(&self.value, YamlValue::Scalar { text, is_plain: true }
            if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    fn string(&self, name: &str) -> Result<&str, ImportNote> {
        self.text().ok_or_else(|| ImportNote::new(self.line, format!("{name} must be a text")))
    }

    fn boolean(&self, name: &str) -> Result<bool, ImportNote> {
        match self.text() {
            Some("true" | "True" | "TRUE") => Ok(true),
            Some("false" | "False" | "FALSE") => Ok(false),
            _ => Err(ImportNote::new(self.line, format!("{name} must be true or false"))),
        }
    }

    fn number(&self, name: &str) -> Result<u64, ImportNote> {
        let number = self.text().and_then(|text| text.parse().ok());
        number.ok_or_else(|| ImportNote::new(self.line, format!("{name} must be a whole number")))
    }

    fn list(&self, name: &str) -> Result<&[YamlNode], ImportNote> {
        match &self.value {
            YamlValue::List(items) => Ok(items),
            _ if self.is_null() => Ok(&[]),
            _ => Err(ImportNote::new(self.line, format!("{name} must be a list"))),
        }
    }

    fn map(&self, name: &str) -> Result<&[(YamlNode, YamlNode)], ImportNote> {
        match &self.value {
            YamlValue::Map(pairs) => Ok(pairs),
            _ => Err(ImportNote::new(self.line, format!("{name} must be a map"))),
        }
    }
}

/// What was found besides rules.
#[derive(Default)]
struct Findings {
    rules: usize,
    notes: Vec<ImportNote>,
    unsupported: Vec<ImportNote>,
}

impl Findings {
    /// A field that only changes which metrics the reference service has.
    fn skip(&mut self, key: &YamlNode, name: &str) {
        let message = format!("{name} only names metrics there; left out");
        self.notes.push(ImportNote::new(key.line, message));
    }

    fn refuse(&mut self, key: &YamlNode, name: &str) {
        let message = format!("{name} is not supported");
        self.unsupported.push(ImportNote::new(key.line, message));
    }
}

fn domain_of(document: &YamlNode) -> Result<ImportedDomain, ImportNote> {
    let mut findings = Findings::default();
    let (mut domain, mut descriptors) = (None, Vec::new());
    for (key, value) in document.map("a configuration")? {
        match key.text().unwrap_or_default() {
            "domain" => domain = Some(value.string("domain")?.to_owned()),
            "descriptors" => descriptors = rules_of(value, &mut findings)?,
            other => findings.refuse(key, other),
        }
    }
    let Some(domain) = domain.filter(|name| !name.is_empty()) else {
        return Err(ImportNote::new(document.line, "the configuration has no domain"));
    };
    let Findings { rules, notes, unsupported } = findings;
    let body = json!({ "descriptors": descriptors });
    Ok(ImportedDomain { domain, body, rules, notes, unsupported })
}

fn rules_of(node: &YamlNode, findings: &mut Findings) -> Result<Vec<Value>, ImportNote> {
    node.list("descriptors")?.iter().map(|one| rule_of(one, findings)).collect()
}

fn rule_of(node: &YamlNode, findings: &mut Findings) -> Result<Value, ImportNote> {
    findings.rules += 1;
    let mut rule = Map::new();
    for (key, value) in node.map("a descriptor")? {
        match key.text().unwrap_or_default() {
            "key" => _ = rule.insert("key".to_owned(), json!(value.string("key")?)),
            // An empty value is none, as in the reference service.
            "value" if value.is_null() || value.text() == Some("") => {}
            "value" => _ = rule.insert("value".to_owned(), json!(value.string("value")?)),
            "shadow_mode" => {
                _ = rule.insert("shadow".to_owned(), json!(value.boolean("shadow_mode")?))
            }
            "rate_limit" => read_limit(value, &mut rule, findings)?,
            "descriptors" => {
                let below = rules_of(value, findings)?;
                rule.insert("descriptors".to_owned(), Value::Array(below));
            }
            name @ ("detailed_metric" | "value_to_metric") => findings.skip(key, name),
            other => findings.refuse(key, other),
        }
    }
    if !rule.contains_key("key") {
        return Err(ImportNote::new(node.line, "a descriptor needs a key"));
    }
    Ok(Value::Object(rule))
}

const UNITS: [&str; 7] = ["second", "minute", "hour", "day", "week", "month", "year"];

fn read_limit(
    node: &YamlNode,
    rule: &mut Map<String, Value>,
    findings: &mut Findings,
) -> Result<(), ImportNote> {
    if node.is_null() {
        return Ok(());
    }
    let (mut unit, mut requests, mut unlimited) = (None, None, false);
    for (key, value) in node.map("rate_limit")? {
        match key.text().unwrap_or_default() {
            "unit" => {
                let name = value.string("unit")?.to_lowercase();
                if !UNITS.contains(&name.as_str()) {
                    let message = format!("unit {name:?}: one of {}", UNITS.join(", "));
                    return Err(ImportNote::new(value.line, message));
                }
                unit = Some(name);
            }
            "requests_per_unit" => requests = Some(value.number("requests_per_unit")?),
            "unlimited" => unlimited = value.boolean("unlimited")?,
            "name" => _ = rule.insert("name".to_owned(), json!(value.string("name")?)),
            "replaces" => {
                let mut names = Vec::new();
                for one in value.list("replaces")? {
                    let pairs = one.map("an entry of replaces")?;
                    let name = pairs.iter().find(|(key, _)| key.text() == Some("name"));
                    let Some((_, name)) = name else {
                        return Err(ImportNote::new(one.line, "an entry of replaces needs a name"));
                    };
                    names.push(json!(name.string("name")?));
                }
                rule.insert("replaces".to_owned(), Value::Array(names));
            }
            other => findings.refuse(key, &format!("rate_limit.{other}")),
        }
    }
    match (unlimited, unit, requests) {
        (true, None, None) => _ = rule.insert("unlimited".to_owned(), json!(true)),
        (true, ..) => {
            return Err(ImportNote::new(node.line, "unlimited takes neither a unit nor a number"));
        }
        (false, Some(unit), Some(requests)) => {
            let limit = json!({ "requests_per_unit": requests, "unit": unit });
            rule.insert("limit".to_owned(), limit);
        }
        (false, ..) => {
            return Err(ImportNote::new(node.line, "rate_limit needs unit and requests_per_unit"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOP: &str = "\
domain: shop
descriptors:
  - key: remote_address
    rate_limit: &each
      unit: minute
      requests_per_unit: 60
      name: per address
  - key: path
    value: /login*
    detailed_metric: true
    descriptors:
      - key: remote_address
        shadow_mode: true
        rate_limit: {unit: HOUR, requests_per_unit: 5, replaces: [{name: per address}]}
  - key: remote_address
    value: 10.0.0.1
    rate_limit:
      unlimited: true
  - key: again
    rate_limit: *each
";

    #[test]
    fn the_files_of_the_reference_service_are_read() {
        let [shop] = read(SHOP).unwrap().try_into().unwrap();
        assert_eq!((shop.domain.as_str(), shop.rules), ("shop", 5));
        let limit = json!({ "requests_per_unit": 60, "unit": "minute" });
        assert_eq!(
            shop.body,
            json!({ "descriptors": [
                { "key": "remote_address", "limit": limit, "name": "per address" },
                { "key": "path", "value": "/login*", "descriptors": [
                    { "key": "remote_address", "shadow": true, "replaces": ["per address"],
                      "limit": { "requests_per_unit": 5, "unit": "hour" } }] },
                { "key": "remote_address", "value": "10.0.0.1", "unlimited": true },
                { "key": "again", "limit": limit, "name": "per address" },
            ] })
        );
        assert_eq!(shop.notes.len(), 1);
        assert_eq!(shop.notes[0].line, 10);
        assert_eq!(shop.unsupported, []);
        let two = format!("---\n{SHOP}---\ndomain: other\n");
        assert_eq!(read(&two).unwrap().len(), 2);
    }

    #[test]
    fn what_is_not_supported_is_told_by_its_line() {
        let text = "\
domain: shop
descriptors:
  - key: a
    share_threshold: true
    rate_limit:
      unit: minute
      requests_per_unit: 1
      quota_mode: true
colour: red
";
        let [shop] = read(text).unwrap().try_into().unwrap();
        let told: Vec<_> =
            shop.unsupported.iter().map(|note| (note.line, note.message.as_str())).collect();
        assert_eq!(
            told,
            [
                (4, "share_threshold is not supported"),
                (8, "rate_limit.quota_mode is not supported"),
                (9, "colour is not supported"),
            ]
        );
    }

    #[test]
    fn a_file_that_cannot_be_meant_is_refused_at_its_line() {
        for (text, line, told) in [
            ("", 1, "empty"),
            ("domain: [", 2, "no YAML"),
            ("descriptors: []\n", 1, "no domain"),
            ("- a\n", 1, "must be a map"),
            ("domain: a\ndescriptors:\n  - value: x\n", 3, "needs a key"),
            (
                "domain: a\ndescriptors:\n  - key: x\n    rate_limit: {unit: century, requests_per_unit: 1}\n",
                4,
                "century",
            ),
            (
                "domain: a\ndescriptors:\n  - key: x\n    rate_limit: {unit: day}\n",
                4,
                "requests_per_unit",
            ),
            (
                "domain: a\ndescriptors:\n  - key: x\n    rate_limit: {unit: day, requests_per_unit: -1}\n",
                4,
                "whole number",
            ),
            (
                "domain: a\ndescriptors:\n  - key: x\n    rate_limit: {unlimited: true, unit: day}\n",
                4,
                "neither",
            ),
            ("domain: a\ndomain: b\n", 2, "twice"),
            ("domain: a\ndescriptors: &loop\n  - key: x\n    descriptors: *loop\n", 4, "cycle"),
            ("domain: a\ndescriptors: &loop [*loop]\n", 2, "cycle"),
            ("domain: a\ndescriptors: *nobody\n", 2, ""),
        ] {
            let error = read(text).unwrap_err();
            assert_eq!(error.line, line, "{error:?} for {text:?}");
            assert!(error.message.contains(told), "{error:?} for {text:?}");
        }
    }

    #[test]
    fn aliases_cannot_blow_up_a_file() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let below = format!("*a{}", level - 1);
            let all = vec![below; 10].join(", ");
            text.push_str(&format!("a{level}: &a{level} [{all}]\n"));
        }
        let error = read(&text).unwrap_err();
        assert!(error.message.contains("more than 200000 values"), "{error:?}");
    }
}
