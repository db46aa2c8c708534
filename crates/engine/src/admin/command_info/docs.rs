//! Documentation of commands, for COMMAND DOCS: summary, first version, the positions of their
//! keys, arguments. The facts are in `commands.txt`.
//!
//! A command begins with its name, the version of Redis that had it first, and its group; the
//! lines behind, up to an empty one, say the rest:
//!
//! ```text
//! is SENTENCE
//! categories NAME …
//! complexity TERM
//! flags NAME …
//! deprecated VERSION REPLACEMENT
//! tip TIP
//! key FLAGS WHERE-TO-BEGIN HOW-TO-GO-ON
//! arg . . NAME TYPE ?*+ =TOKEN #KEY @SINCE !DEPRECATED
//! ```
//! Each dot before an argument's name means that it is part of the one above with a dot less.
//! `?` stands for optional, `*` for several, `+` for several with the token before each.

use std::sync::LazyLock;

use hashbrown::HashMap;

use crate::Reply;

/// Documentation of one command.
#[derive(Debug, Default)]
pub(super) struct Doc {
    since: &'static str,
    group: &'static str,
    summary: &'static str,
    /// Categories that do not follow from the command's flags.
    pub(super) categories: Vec<&'static str>,
    complexity: Option<&'static str>,
    flags: Vec<&'static str>,
    deprecated: Option<&'static str>,
    tips: Vec<&'static str>,
    keys: Vec<&'static str>,
    arguments: Vec<(usize, &'static str)>,
}

static DOCS: LazyLock<HashMap<&'static str, Doc>> = LazyLock::new(|| {
    include_str!("commands.txt").split("\n\n").filter_map(|block| read(block.trim())).collect()
});

/// Returns the documentation of the command with this full name.
pub(super) fn of(name: &str) -> Option<&'static Doc> {
    DOCS.get(name)
}

fn read(block: &'static str) -> Option<(&'static str, Doc)> {
    let mut lines = block.lines();
    let mut first = lines.next()?.split(' ');
    let name = first.next()?;
    let mut doc = Doc { since: first.next()?, group: first.next()?, ..Doc::default() };
    for line in lines {
        let (word, rest) = line.split_once(' ')?;
        match word {
            "is" => doc.summary = rest,
            "categories" => doc.categories = rest.split(' ').collect(),
            "complexity" => doc.complexity = Some(rest),
            "flags" => doc.flags = rest.split(' ').collect(),
            "deprecated" => doc.deprecated = Some(rest),
            "tip" => doc.tips.push(rest),
            "key" => doc.keys.push(rest),
            _ => {
                let name = rest.trim_start_matches(". ");
                doc.arguments.push(((rest.len() - name.len()) / 2, name));
            }
        }
    }
    Some((name, doc))
}

fn pair(name: &str, value: Reply) -> (Reply, Reply) {
    (Reply::bulk(name), value)
}

fn statuses<'a>(names: impl IntoIterator<Item = &'a str>) -> Reply {
    let status = |name: &str| Reply::Status(name.as_bytes().to_vec().into());
    Reply::Set(names.into_iter().map(status).collect())
}

impl Doc {
    /// The parts of COMMAND DOCS, without subcommands.
    pub(super) fn parts(&self) -> Vec<(Reply, Reply)> {
        let mut parts = vec![
            pair("summary", Reply::bulk(self.summary)),
            pair("since", Reply::bulk(self.since)),
            pair("group", Reply::bulk(self.group)),
        ];
        if let Some(complexity) = self.complexity {
            parts.push(pair("complexity", Reply::bulk(complexity)));
        }
        if !self.flags.is_empty() {
            parts.push(pair("doc_flags", statuses(self.flags.iter().copied())));
        }
        if let Some(deprecated) = self.deprecated {
            let (since, by) = deprecated.split_once(' ').unwrap_or((deprecated, ""));
            parts.push(pair("deprecated_since", Reply::bulk(since)));
            if !by.is_empty() {
                parts.push(pair("replaced_by", Reply::bulk(by)));
            }
        }
        if !self.arguments.is_empty() {
            parts.push(pair("arguments", arguments(&self.arguments, 0)));
        }
        parts
    }

    /// Returns the command tips for clients and proxies.
    pub(super) fn tips(&self) -> Reply {
        Reply::Set(self.tips.iter().map(Reply::bulk).collect())
    }

    /// Returns the key specifications.
    pub(super) fn key_specs(&self) -> Reply {
        Reply::Set(self.keys.iter().filter_map(|line| key_spec(line)).collect())
    }
}

/// The arguments of this depth, each with its parts.
fn arguments(lines: &[(usize, &'static str)], depth: usize) -> Reply {
    let mut found = Vec::new();
    let mut rest = lines;
    while let [(_, line), tail @ ..] = rest {
        let inner = tail.iter().position(|(d, _)| *d <= depth).unwrap_or(tail.len());
        let (inner, behind) = tail.split_at(inner);
        found.push(argument(line, inner, depth));
        rest = behind;
    }
    Reply::Array(found)
}

fn argument(line: &'static str, inner: &[(usize, &'static str)], depth: usize) -> Reply {
    let mut words = line.split(' ');
    let (name, kind) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut parts = vec![pair("name", Reply::bulk(name)), pair("type", Reply::bulk(kind))];
    let words: Vec<&str> = words.collect();
    let marked = |mark: char| words.iter().find_map(|word| word.strip_prefix(mark));
    if let Some(number) = marked('#').and_then(|number| number.parse().ok()) {
        parts.push(pair("key_spec_index", Reply::Int(number)));
    }
    for (mark, name) in [('=', "token"), ('@', "since"), ('!', "deprecated_since")] {
        if let Some(text) = marked(mark) {
            parts.push(pair(name, Reply::bulk(text)));
        }
    }
    let counts = words.iter().find(|word| word.chars().all(|c| "?*+".contains(c)));
    if let Some(counts) = counts {
        let names = [('?', "optional"), ('*', "multiple"), ('+', "multiple_token")];
        let names = names.into_iter().filter(|(mark, _)| counts.contains(*mark));
        parts.push(pair("flags", statuses(names.map(|(_, name)| name))));
    }
    if matches!(kind, "oneof" | "block") {
        parts.push(pair("arguments", arguments(inner, depth + 1)));
    }
    Reply::Map(parts)
}

/// `RW,access index:1 range:0:1:0`
fn key_spec(line: &str) -> Option<Reply> {
    let mut words = line.split(' ');
    let flags = statuses(words.next()?.split(','));
    Some(Reply::Map(vec![
        pair("flags", flags),
        pair("begin_search", search(words.next()?, &["index"], &["keyword", "startfrom"])),
        pair(
            "find_keys",
            search(
                words.next()?,
                &["lastkey", "keystep", "limit"],
                &["keynumidx", "firstkey", "keystep"],
            ),
        ),
    ]))
}

/// One step of looking for keys: of the first kind or the second, whose parts have these names.
fn search(word: &str, first: &[&str], second: &[&str]) -> Reply {
    let mut parts = word.split(':');
    let kind = parts.next().unwrap_or_default();
    let names = if matches!(kind, "index" | "range") { first } else { second };
    let value = |text: &str| text.parse().map_or_else(|_| Reply::bulk(text), Reply::Int);
    let spec = names.iter().zip(parts).map(|(name, text)| pair(name, value(text)));
    Reply::Map(vec![pair("type", Reply::bulk(kind)), pair("spec", Reply::Map(spec.collect()))])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command;

    #[test]
    fn every_command_is_described() {
        for name in command::commands().iter().map(|command| &command.full_name) {
            let doc = of(name).unwrap_or_else(|| panic!("{name} is not in commands.txt"));
            assert!(doc.summary.ends_with('.'), "{name}: {}", doc.summary);
        }
        for name in DOCS.keys() {
            let known = command::commands().iter().any(|other| other.full_name == *name);
            assert!(known, "{name} is in commands.txt and there is no such command");
        }
    }
}
