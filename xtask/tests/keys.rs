//! `docs/keys.md`, read out of each service's `keys.rs`: the doc line of a key says its Redis type and
//! what it holds, the code says how it is spelled. A key that cannot be read fails the test.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Title of a service, where its keys are, and what its page says first.
const SERVICES: &[(&str, &str, &str)] = &[
    (
        "Waiting room",
        "crates/room/src/keys.rs",
        "In a cluster the queue's id is the hash tag, so all that one script touches is in one slot.",
    ),
    (
        "Jobs",
        "crates/jobs/src/keys.rs",
        "`<namespace>` is `bridge` by default. One that holds a hash tag already is left as it is.",
    ),
    (
        "Resolver",
        "crates/dns/src/keys.rs",
        "Answers and their metadata are spelled as in the original's schema; a clear deletes all of them. Names are in \
         lower case, without the last dot, a dot inside a label as `\\.`, bytes that do not print as `\\DDD`.",
    ),
    (
        "Desk",
        "crates/desk/src/keys.rs",
        "`<prefix>` is `ha:` by default. `<policy>` is empty for the default policy, and `#` with its name for \
         any other. In a cluster the identity that is limited is the hash tag, so all its policies share a slot.",
    ),
    ("HTTP side", "crates/web/src/keys.rs", "Both layouts spell these the same."),
];

const HEAD: &str = "\
<!-- Written by `cargo xtask codegen` from the services' keys.rs. Do not edit. -->
# Keys

What is in the store, under which name and as which Redis type. Names and types are part of the
interface: any program that speaks Redis may read them.

A word in angle brackets stands for a value. On the built-in store, a single server and Sentinel the
layout is standalone; on a Redis Cluster names carry a hash tag, the part in braces.
";

/// Where values are put into a name: plain text, a value, or a value that is the hash tag in a cluster.
#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    Value(String),
    Tag(String),
}

/// One row of the page.
#[derive(Debug)]
struct Row {
    group: String,
    standalone: String,
    cluster: String,
    kind: &'static str,
    holds: String,
}

#[test]
fn the_page_of_keys_is_up_to_date() {
    let path = root().join("docs/keys.md");
    let page = page();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page, "docs/keys.md is out of date: run `cargo xtask codegen`");
}

#[test]
fn names_are_read_as_the_code_builds_them() {
    let rows: Vec<Row> = SERVICES.iter().flat_map(|(_, file, _)| rows(&read(file))).collect();
    for (standalone, cluster) in [
        ("queues", "queues"),
        ("queue:<queue>:meta", "queue:{<queue>}:meta"),
        ("queue:<queue>:waiting:<0…3>", "queue:{<queue>}:waiting:<0…3>"),
        ("heartbeat:active", "heartbeat:{<queue>}:active"),
        ("position:<id>", "position:{<queue>}:<id>"),
        ("ratelimit:<identifier>:<action>", "ratelimit:{<identifier>}:<action>"),
        ("<namespace>:jobs:data:<id>", "{<namespace>}:jobs:data:<id>"),
        ("<namespace>:jobs:lane:<route>:<priority>", "{<namespace>}:jobs:lane:<route>:<priority>"),
        ("dnsmeta:expiry:index", "{dnsmeta}:expiry:index"),
        ("dnsmeta:hit:sweep:<answer>", "{dnsmeta}:hit:sweep:<answer>"),
        ("dns:<name>:<qtype>:<qclass>", "dns:<name>:<qtype>:<qclass>"),
        ("<prefix>rate_limit:<identifier><policy>", "<prefix>rate_limit:{<identifier>}<policy>"),
        ("tidegate:session:<cookie_hash>", "tidegate:session:<cookie_hash>"),
    ] {
        let row = rows.iter().find(|row| row.standalone == standalone);
        assert_eq!(row.map(|row| row.cluster.as_str()), Some(cluster), "{standalone}");
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The code of a file without its tests.
fn read(file: &str) -> String {
    let text = std::fs::read_to_string(root().join(file)).unwrap();
    text.split("#[cfg(test)]").next().unwrap().to_owned()
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    for (title, file, note) in SERVICES {
        write!(page, "\n## {title}\n\n{note}\n").unwrap();
        let mut group = None;
        for row in rows(&read(file)) {
            if group.as_ref() != Some(&row.group) {
                if !row.group.is_empty() {
                    write!(page, "\n### {}\n", row.group).unwrap();
                }
                page.push_str("\n| Standalone | Cluster | Type | Holds |\n|---|---|---|---|\n");
                group = Some(row.group.clone());
            }
            let cluster = match row.cluster == row.standalone {
                true => "the same".to_owned(),
                false => format!("`{}`", row.cluster),
            };
            let (name, kind, holds) = (row.standalone, row.kind, row.holds);
            writeln!(page, "| `{name}` | {cluster} | {kind} | {holds} |").unwrap();
        }
    }
    page
}

/// Every key a file declares: fields of type `Key` and functions that others may call.
fn rows(code: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut doc = String::new();
    let mut group = String::new();
    let mut groups: Vec<(String, String)> = Vec::new();
    let mut start = 0;
    for line in code.split_inclusive('\n') {
        let (at, text) = (start, line.trim());
        start += line.len();
        if let Some(more) = text.strip_prefix("///") {
            doc = format!("{doc} {}", more.trim()).trim().to_owned();
            continue;
        }
        if text.starts_with("#[") {
            continue;
        }
        let said = std::mem::take(&mut doc);
        let words = text.trim_start_matches("pub(crate) ").trim_start_matches("pub ");
        if let Some(rest) = words.strip_prefix("struct ").or(words.strip_prefix("impl ")) {
            let name = rest.trim_end_matches('{').trim().to_owned();
            let known = groups.iter().find(|(known, _)| *known == name);
            group = match (words.starts_with("impl "), said.is_empty(), known) {
                (true, true, Some((_, said))) => said.clone(),
                _ => said.trim_end_matches('.').to_owned(),
            };
            groups.push((name, group.clone()));
            continue;
        }
        if !text.starts_with("pub") {
            continue;
        }
        let (built, many) = if words.starts_with("fn ") && text.contains("-> Key {") {
            (braces(&code[at..]), None)
        } else if let Some((name, kind)) = words.split_once(": ")
            && !words.starts_with("fn ")
            && kind.contains("Key")
        {
            let many = kind.split_once("; ").and_then(|(_, n)| n.split(']').next()?.parse().ok());
            let needle = format!("{name}: ");
            let built = code.match_indices(&needle).map(|(at, _)| &code[at + needle.len()..]);
            let built = built.filter(|rest| {
                ["Key::raw", "std::array", "match "].iter().any(|word| rest.starts_with(word))
            });
            (item(built.last().unwrap_or_else(|| panic!("{name} is never built"))), many)
        } else {
            continue;
        };
        let (kind, holds) = meaning(&said).unwrap_or_else(|| panic!("{text}: no type in {said:?}"));
        let (standalone, cluster) = names(code, built, many);
        rows.push(Row { group: group.clone(), standalone, cluster, kind, holds });
    }
    assert!(!rows.is_empty(), "no keys found");
    rows
}

/// Redis type and meaning, out of a doc line such as `ZSET of places; score = …`.
fn meaning(doc: &str) -> Option<(&'static str, String)> {
    let (word, rest) = doc.split_once(' ')?;
    let kind = match word.trim_end_matches(':').to_lowercase().as_str() {
        "string" => "string",
        "set" => "set",
        "hash" => "hash",
        "zset" => "sorted set",
        "list" | "lists" => "list",
        "stream" => "stream",
        "channel" => "channel (published, not kept)",
        _ => return None,
    };
    let rest = rest.strip_prefix("of ").unwrap_or(rest);
    Some((kind, rest.trim_end_matches('.').replace('|', "\\|")))
}

/// How an expression spells the name, standalone and in a cluster.
fn names(code: &str, built: &str, many: Option<u32>) -> (String, String) {
    let arm = |layout: &str| built.split(&format!("Layout::{layout} =>")).nth(1);
    let (one, other) = match (arm("Standalone"), arm("Cluster")) {
        (Some(one), Some(other)) => (parts(code, one), parts(code, other)),
        _ => (parts(code, built), parts(code, built)),
    };
    let show = |parts: &[Part], cluster: bool| -> String {
        let each = parts.iter().map(|part| match part {
            Part::Text(text) => text.clone(),
            Part::Value(name) => match (name.as_str(), many) {
                ("p", Some(many)) => format!("<0…{}>", many - 1),
                _ => format!("<{name}>"),
            },
            Part::Tag(name) if cluster => format!("{{<{name}>}}"),
            Part::Tag(name) => format!("<{name}>"),
        });
        each.collect()
    };
    (show(&one, false), show(&other, true))
}

fn parts(code: &str, built: &str) -> Vec<Part> {
    // Helpers of the job queue put the namespace in front.
    if let Some((_, rest)) = built.split_once("self.of(") {
        let (group, name) = rest.split(')').next().unwrap().split_once(", ").unwrap();
        let group = constant(code, group).unwrap_or_else(|| group.trim_matches('"').to_owned());
        return vec![prefix(code), Part::Text(format!(":{group}")), Part::Value(plain(name))];
    }
    let own = built.split_once("self.key(").map(|(_, rest)| rest);
    let raw = built.split_once("Key::raw(").map(|(_, rest)| rest);
    let (text, rest) = literal(own.or(raw).unwrap());
    if own.is_none() && raw.is_some_and(|raw| raw.starts_with('"')) {
        // Not a format: braces stand for themselves.
        return vec![Part::Text(text.to_owned())];
    }
    let mut parts = match own {
        Some(_) => vec![prefix(code), Part::Text(":".to_owned())],
        None => Vec::new(),
    };
    let mut arguments = arguments(rest).into_iter();
    let mut chars = text.chars().peekable();
    let mut plain_text = String::new();
    while let Some(char) = chars.next() {
        if matches!(char, '{' | '}') && chars.peek() == Some(&char) {
            // A doubled brace stands for itself, but `{{{` is one brace and then a value.
            plain_text.push(char);
            chars.next();
        } else if char == '{' {
            let name: String = chars.by_ref().take_while(|char| *char != '}').collect();
            if let Some(text) = constant(code, &name) {
                plain_text.push_str(&text);
                continue;
            }
            parts.push(Part::Text(std::mem::take(&mut plain_text)));
            let value = if name.is_empty() { arguments.next().unwrap() } else { name };
            parts.push(value_of(code, &value));
        } else {
            plain_text.push(char);
        }
    }
    parts.push(Part::Text(plain_text));
    parts
}

/// The text of a constant, by which scripts know a group of keys too.
fn constant(code: &str, name: &str) -> Option<String> {
    let (_, rest) = code.split_once(&format!("const {name}: &str = "))?;
    Some(literal(rest).0.to_owned())
}

/// The namespace: tagged in a cluster, as `Keys::new` does it.
fn prefix(code: &str) -> Part {
    assert!(code.contains(r#"format!("{{{name}}}:")"#) && code.contains(r#"format!("{name}:")"#));
    Part::Tag("namespace".to_owned())
}

fn value_of(code: &str, value: &str) -> Part {
    let bound = code.split_once(&format!("let {value} = ")).map(|(_, rest)| rest);
    match bound.unwrap_or(value).split_once("layout.tag(") {
        Some((before, tagged)) if before.is_empty() || before == "self." => {
            Part::Tag(plain(tagged.split(')').next().unwrap()))
        }
        _ => Part::Value(plain(value)),
    }
}

/// The bare name of `&self.queue`, `queue.as_str(` and the like.
fn plain(value: &str) -> String {
    let value = value.trim().trim_start_matches('&').trim_start_matches("self.");
    value.split(['.', '(']).next().unwrap().to_owned()
}

/// The first string literal, and what follows it.
fn literal(text: &str) -> (&str, &str) {
    let rest = text.split_once('"').unwrap().1;
    rest.split_once('"').unwrap()
}

/// The arguments of a macro after its format string.
fn arguments(rest: &str) -> Vec<String> {
    let (mut depth, mut found, mut now) = (0_i32, Vec::new(), String::new());
    for char in rest.chars() {
        match char {
            ')' if depth == 0 => break,
            ',' if depth == 0 => {
                found.push(std::mem::take(&mut now).trim().to_owned());
                continue;
            }
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        now.push(char);
    }
    found.push(now.trim().to_owned());
    found.retain(|argument| !argument.is_empty());
    found
}

/// A function's body: up to the brace that closes it, at the depth of its first line.
fn braces(text: &str) -> &str {
    let indent = text.len() - text.trim_start().len();
    let end = format!("\n{}}}", &text[..indent]);
    &text[..text.find(&end).unwrap()]
}

/// One entry of a struct expression: up to the comma that ends it.
fn item(text: &str) -> &str {
    let mut depth = 0_i32;
    for (at, char) in text.char_indices() {
        match char {
            '(' | '{' => depth += 1,
            ')' | '}' if depth == 0 => return &text[..at],
            ')' | '}' => depth -= 1,
            ',' if depth == 0 => return &text[..at],
            _ => {}
        }
    }
    text
}
