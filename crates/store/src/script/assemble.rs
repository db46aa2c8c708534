//! Putting a script together: the functions it uses, its names, its body.
//!
//! ```text
//! --!df flags=…                                            if the body has such a line
//! -- emit(…)                                               lib files, each after those it uses
//! local function emit(…) local events = KEYS[5]            the names a lib file says it reads
//! local now_ms = ARGV[1] -- jobs/claim -- hands …          the names the body mentions, then the body
//! ```
//!
//! Names come from the declaration in Rust, so no file counts keys or arguments. They are put on
//! lines that exist already: a line of the source is a line of one file, and
//! [`AssembledSource::locate`] says which. Only names that are used cost anything.

use std::fmt::Write as _;

use super::{Script, lexer};

/// Library files of a crate's scripts, and constants they and the scripts may use by name. Made by
/// [`script_library!`](crate::script_library!).
#[derive(Debug)]
pub struct Library {
    files: &'static [(&'static str, &'static str)],
    constants: &'static [(&'static str, &'static str)],
}

impl Library {
    #[doc(hidden)]
    pub const fn new(
        files: &'static [(&'static str, &'static str)],
        constants: &'static [(&'static str, &'static str)],
    ) -> Self {
        Self { files, constants }
    }

    /// Name and text of each constant.
    pub(super) fn constants(&self) -> &'static [(&'static str, &'static str)] {
        self.constants
    }

    /// Adds a file behind those it uses. A name without a file, or one that is being added, is left
    /// out: [`tidy`](super::tidy) finds both.
    fn include(
        &self,
        name: &str,
        open: &mut Vec<&'static str>,
        found: &mut Vec<(&'static str, &'static str)>,
    ) {
        let Some(file) = self.files.iter().find(|(known, _)| *known == name) else { return };
        if found.contains(file) || open.contains(&file.0) {
            return;
        }
        open.push(file.0);
        for used in listed(file.1, "uses:") {
            self.include(used, open, found);
        }
        open.pop();
        found.push(*file);
    }
}

/// The text of a script as it is sent.
pub(super) struct AssembledSource {
    pub(super) source: String,
    pub(super) sha: String,
    /// First line in the source, first line in the file, and the file's name.
    parts: Vec<(usize, usize, String)>,
}

impl AssembledSource {
    pub(super) fn new(script: &Script) -> Self {
        let (flags, body) = match script.body.split_once('\n') {
            Some((first, rest)) if first.starts_with("--!df") => (Some(first), rest),
            _ => (None, script.body),
        };
        let mut source = String::new();
        let mut parts = Vec::new();
        if let Some(flags) = flags {
            source.push_str(flags);
            source.push('\n');
        }
        let mut add = |source: &mut String, first: usize, file: String, text: &str| {
            parts.push((source.lines().count() + 1, first, file));
            source.push_str(text.trim_end());
            source.push('\n');
        };
        let names = names(script);
        for (name, text) in included(script) {
            let reads = listed(text, "reads:");
            let locals = locals(&names, |name| reads.contains(&name));
            let text = with_locals(text, name, &locals);
            add(&mut source, 1, format!("lib/{name}.lua"), &text);
        }
        let mentioned = lexer::tokens(body);
        let mentioned = lexer::variables(&mentioned);
        let locals = locals(&names, |name| mentioned.contains(name));
        let first = if flags.is_some() { 2 } else { 1 };
        add(&mut source, first, format!("{}.lua", script.name), &format!("{locals}{body}"));
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Self { source, sha, parts }
    }

    /// Returns a store's error message with `user_script:LINE` as the file and its line.
    pub(super) fn locate(&self, message: &str) -> String {
        const PLACE: &str = "user_script:";
        let mut located = String::new();
        let mut rest = message;
        while let Some((before, after)) = rest.split_once(PLACE) {
            let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
            let (number, after) = after.split_at(end);
            located.push_str(before);
            let line: usize = number.parse().unwrap_or(0);
            match self.parts.iter().rev().find(|(start, ..)| *start <= line) {
                Some((start, first, file)) => {
                    // Writing to a string cannot fail.
                    _ = write!(located, "{file}:{}", line - start + first);
                }
                None => located.extend([PLACE, number]),
            }
            rest = after;
        }
        located.push_str(rest);
        located
    }
}

/// Library files of a script, each behind those it uses.
pub(super) fn included(script: &Script) -> Vec<(&'static str, &'static str)> {
    let mut found = Vec::new();
    if let Some(library) = script.library {
        for name in listed(script.body, "uses:") {
            library.include(name, &mut Vec::new(), &mut found);
        }
    }
    found
}

/// Names that a script's files may use, and their meaning: a key, an argument, a constant;
/// of those that take any number, how many come before them.
pub(super) fn names(script: &Script) -> Vec<(&'static str, String)> {
    let mut names = Vec::new();
    for (table, declared) in [("KEYS", script.keys), ("ARGV", script.args)] {
        for (before, name) in declared.iter().enumerate() {
            names.push(match name.strip_prefix("..") {
                Some(name) => (name, before.to_string()),
                None => (*name, format!("{table}[{}]", before + 1)),
            });
        }
    }
    let constants = script.library.map_or(&[][..], Library::constants);
    names.extend(constants.iter().map(|(name, text)| (*name, format!("'{text}'"))));
    names
}

/// One statement that makes locals of some names; empty without any.
fn locals(names: &[(&'static str, String)], wanted: impl Fn(&str) -> bool) -> String {
    let mut left = String::new();
    let mut right = String::new();
    for (name, value) in names.iter().filter(|(name, _)| wanted(name)) {
        let comma = if left.is_empty() { "" } else { ", " };
        left.extend([comma, name]);
        right.extend([comma, value]);
    }
    if left.is_empty() { left } else { format!("local {left} = {right} ") }
}

/// The text of a library file with locals at the start of the function it is named after.
fn with_locals(text: &str, name: &str, locals: &str) -> String {
    let head = format!("local function {name}(");
    let open = text.find(&head).map(|at| at + head.len());
    match open.and_then(|open| Some(open + text[open..].find(')')? + 1)) {
        Some(at) if !locals.is_empty() => {
            format!("{} {}{}", &text[..at], locals.trim_end(), &text[at..])
        }
        _ => text.to_owned(),
    }
}

/// Names in the line `-- WORD a, b` of a header; it goes on as long as it ends with a comma.
pub(super) fn listed<'a>(text: &'a str, word: &str) -> Vec<&'a str> {
    let mut names = Vec::new();
    let mut lines = text
        .lines()
        .map_while(|line| line.strip_prefix("--"))
        .map(str::trim)
        .skip_while(|line| !line.starts_with(word));
    let mut line = lines.next().and_then(|line| line.strip_prefix(word));
    while let Some(part) = line {
        names.extend(part.split(',').map(str::trim).filter(|name| !name.is_empty()));
        line = if part.ends_with(',') { lines.next() } else { None };
    }
    names
}
