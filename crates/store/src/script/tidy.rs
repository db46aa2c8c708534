//! Checks that a crate's Lua files and their declarations agree, for a test in each service.
//!
//! A header is read, not trusted: its names must be the declared ones in order. The text itself is
//! only skimmed, enough to catch what scripts here must not do: ask for the time, leave something
//! to chance, write a global.

use std::{collections::BTreeSet, fs, path::Path};

use super::Script;

/// Everything that is wrong with the scripts in `folder` (a crate's `lua`), one line each; empty
/// when all is well. `service` is the word before the slash in each header.
///
/// Checked: every file is declared and every declaration listed; the header has a title, the
/// declared keys and arguments by name and in order, and a reply; libraries hold the function they
/// are named after and are used; nothing asks for the time, is random, or writes a global.
pub fn faults(service: &str, folder: &Path, scripts: &[&Script]) -> Vec<String> {
    let mut faults = Vec::new();
    let declared: BTreeSet<&str> = scripts.iter().map(|script| script.name()).collect();
    let libs: BTreeSet<&str> = scripts.iter().flat_map(|script| script.libs()).collect();
    for (part, known) in [(folder.to_owned(), &declared), (folder.join("lib"), &libs)] {
        for name in lua_files(&part) {
            if !known.contains(name.as_str()) {
                faults.push(format!("{}: declared or used nowhere", part.join(name).display()));
            }
        }
    }
    for script in scripts {
        let mut fault = |text: String| faults.push(format!("{}.lua: {text}", script.name()));
        header_faults(service, script, &mut fault);
        text_faults(script.body(), &mut fault);
        for (name, text) in script.libs {
            let mut fault = |text: String| faults.push(format!("lib/{name}.lua: {text}"));
            if !text.contains(&format!("local function {name}(")) {
                fault(format!("has no `local function {name}(`"));
            }
            if !text.starts_with(&format!("-- {name}(")) {
                fault(format!("must open with `-- {name}(ARGUMENTS) -- WHAT IT DOES`"));
            }
            text_faults(text, &mut fault);
        }
    }
    faults.dedup();
    faults
}

fn lua_files(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".lua").map(str::to_owned))
        .collect();
    names.sort();
    names
}

fn header_faults(service: &str, script: &Script, fault: &mut impl FnMut(String)) {
    let header = HeaderComment::read(script.body());
    let title = format!("{service}/{} -- ", script.name());
    if header.title.strip_prefix(&title).is_none_or(|rest| rest.trim().is_empty()) {
        fault(format!("must open with `-- {title}WHAT IT DOES`, has {:?}", header.title));
    }
    for (section, found, declared) in
        [("KEYS", &header.keys, script.keys()), ("ARGV", &header.args, script.args())]
    {
        if found.iter().map(|(_, name)| name.as_str()).ne(declared.iter().copied()) {
            let found: Vec<_> = found.iter().map(|(_, name)| name.as_str()).collect();
            fault(format!("{section} in the header are {found:?}, declared are {declared:?}"));
        }
        if !found.iter().map(|(number, _)| *number).eq(1..=found.len()) {
            fault(format!("{section} in the header are not numbered 1, 2, 3"));
        }
    }
    if !header.has_reply {
        fault("has no REPLY in the header".to_owned());
    }
}

/// The header comment of a script.
#[derive(Debug, Default)]
struct HeaderComment {
    title: String,
    keys: Vec<(usize, String)>,
    args: Vec<(usize, String)>,
    has_reply: bool,
}

impl HeaderComment {
    fn read(body: &str) -> Self {
        let lines = body.lines().skip_while(|line| line.starts_with("--!"));
        let mut lines = lines.map_while(|line| line.strip_prefix("--"));
        let title = lines.next().unwrap_or_default().trim().to_owned();
        let mut header = Self { title, ..Self::default() };
        let mut section = "";
        for line in lines {
            let text = line.trim();
            let word = text.split(' ').next().unwrap_or_default();
            let text = match word {
                "KEYS" | "ARGV" | "REPLY" => {
                    section = word;
                    text[word.len()..].trim_start()
                }
                "" => {
                    section = "";
                    continue;
                }
                _ => text,
            };
            match section {
                // One key a line: number, name, type, meaning.
                "KEYS" => header.keys.extend(numbered(text)),
                // Several arguments a line, two spaces between them.
                "ARGV" => header.args.extend(text.split("  ").filter_map(numbered)),
                "REPLY" => header.has_reply = true,
                _ => {}
            }
        }
        header
    }
}

fn numbered(text: &str) -> Option<(usize, String)> {
    let mut words = text.split_whitespace();
    let number = words.next()?.parse().ok()?;
    Some((number, words.next()?.to_owned()))
}

/// Words that scripts here must not use, each with the reason.
const BANNED: [(&str, &str); 10] = [
    ("TIME", "time is an argument"),
    ("RANDOMKEY", "nothing is left to chance"),
    ("SRANDMEMBER", "nothing is left to chance"),
    ("HRANDFIELD", "nothing is left to chance"),
    ("ZRANDMEMBER", "nothing is left to chance"),
    ("SPOP", "nothing is left to chance"),
    ("KEYS", "no scan of the whole keyspace"),
    ("random", "nothing is left to chance"),
    ("randomseed", "nothing is left to chance"),
    ("os", "scripts have no operating system"),
];

fn text_faults(text: &str, fault: &mut impl FnMut(String)) {
    let tokens = tokens(text);
    for (at, token) in tokens.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|at| tokens.get(at));
        let banned = match token {
            // A command is the first argument of redis.call or redis.pcall.
            TidyToken::Text(text) if before == Some(&TidyToken::Mark('(')) => {
                let upper = text.to_ascii_uppercase();
                BANNED[..7].iter().find(|(word, _)| *word == upper)
            }
            TidyToken::Word(word) => BANNED[7..].iter().find(|(banned, _)| banned == word),
            _ => None,
        };
        if let Some((word, reason)) = banned {
            fault(format!("uses {word}: {reason}"));
        }
    }
    for name in globals(&tokens) {
        fault(format!("writes the global {name}: locals only"));
    }
}

#[derive(Clone, Debug, PartialEq)]
enum TidyToken {
    Word(String),
    Text(String),
    Mark(char),
    /// `==`, `~=`, `<=`, `>=`, which are not assignments.
    Compare,
}

/// Enough of Lua's lexer to tell words from strings and comments.
fn tokens(source: &str) -> Vec<TidyToken> {
    let mut tokens = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        if let Some(comment) = rest.strip_prefix("--") {
            rest = match long_bracket(comment) {
                Some((_, after)) => after,
                None => comment.find('\n').map_or("", |end| &comment[end..]),
            };
        } else if let Some((text, after)) = long_bracket(rest) {
            tokens.push(TidyToken::Text(text.to_owned()));
            rest = after;
        } else if first == '"' || first == '\'' {
            let mut escaped = false;
            let inner = &rest[1..];
            let end = inner.find(|c| {
                let ends = c == first && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            });
            let end = end.unwrap_or(inner.len());
            tokens.push(TidyToken::Text(inner[..end].to_owned()));
            rest = inner.get(end + 1..).unwrap_or_default();
        } else if first.is_alphabetic() || first == '_' {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            tokens.push(TidyToken::Word(rest[..end].to_owned()));
            rest = &rest[end..];
        } else if ["==", "~=", "<=", ">="].iter().any(|mark| rest.starts_with(mark)) {
            tokens.push(TidyToken::Compare);
            rest = &rest[2..];
        } else {
            if !first.is_whitespace() {
                tokens.push(TidyToken::Mark(first));
            }
            rest = &rest[first.len_utf8()..];
        }
    }
    tokens
}

/// `[[…]]` or `[=[…]=]` at the start, and what follows it.
fn long_bracket(text: &str) -> Option<(&str, &str)> {
    let inner = text.strip_prefix('[')?;
    let level = inner.len() - inner.trim_start_matches('=').len();
    let inner = inner[level..].strip_prefix('[')?;
    let close = format!("]{}]", "=".repeat(level));
    let end = inner.find(&close).unwrap_or(inner.len());
    Some((&inner[..end], inner.get(end + close.len()..).unwrap_or_default()))
}

/// Names that are assigned to without being declared anywhere in the file.
fn globals(tokens: &[TidyToken]) -> BTreeSet<String> {
    let word = |at: usize| match tokens.get(at) {
        Some(TidyToken::Word(word)) => Some(word.as_str()),
        _ => None,
    };
    let mark = |at: usize, wanted: char| tokens.get(at) == Some(&TidyToken::Mark(wanted));
    // A list `a, b, c` from a place on, and the place after it.
    let list = |mut at: usize| {
        let mut names = Vec::new();
        while let Some(name) = word(at) {
            names.push(name);
            at += 1;
            if !mark(at, ',') {
                break;
            }
            at += 1;
        }
        (names, at)
    };
    let mut locals: BTreeSet<&str> = BTreeSet::new();
    for at in 0..tokens.len() {
        match word(at) {
            Some("local") if word(at + 1) == Some("function") => locals.extend(word(at + 2)),
            Some("local" | "for") => locals.extend(list(at + 1).0),
            Some("function") => {
                let open = (at + 1..tokens.len()).find(|at| mark(*at, '('));
                locals.extend(open.map(|open| list(open + 1).0).unwrap_or_default());
            }
            _ => {}
        }
    }
    let mut globals = BTreeSet::new();
    // Inside braces `name =` is a field; a function inside braces holds statements again.
    let mut braces = Vec::new();
    for at in 0..tokens.len() {
        let before = at.checked_sub(1).and_then(|at| tokens.get(at));
        match &tokens[at] {
            TidyToken::Mark('{') => braces.push(true),
            TidyToken::Mark('}') => drop(braces.pop()),
            TidyToken::Word(name) => match name.as_str() {
                "function" => {
                    braces.push(false);
                    let named = word(at + 1).filter(|_| word(at.wrapping_sub(1)) != Some("local"));
                    globals.extend(named.filter(|name| !locals.contains(name)).map(str::to_owned));
                }
                "if" | "do" | "repeat" => braces.push(false),
                "end" | "until" => drop(braces.pop()),
                name => {
                    let member = matches!(before, Some(TidyToken::Mark('.' | ':')));
                    let field = braces.last() == Some(&true);
                    let (names, after) = list(at);
                    if !member && !field && mark(after, '=') && !locals.contains(name) {
                        globals.extend(names.into_iter().map(str::to_owned));
                    }
                }
            },
            _ => {}
        }
    }
    globals
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let mut found = Vec::new();
        text_faults(text, &mut |fault| found.push(fault));
        found
    }

    #[test]
    fn a_header_is_read_in_sections() {
        let header = HeaderComment::read(
            "--!df flags=x\n-- jobs/claim -- hand out\n--\n-- KEYS   1 ready   list  ids 1 2\n--        2 ..more  any\n\
             -- ARGV   1 now_ms  2 most\n--        3 ..ids\n-- REPLY  {'x'}\n--\n-- Keeps: 1 thing\nlocal x\n-- KEYS 3 no",
        );
        assert_eq!(header.title, "jobs/claim -- hand out");
        assert_eq!(header.keys, [(1, "ready".to_owned()), (2, "..more".to_owned())]);
        let args: Vec<_> = header.args.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(args, ["now_ms", "most", "..ids"]);
        assert!(header.has_reply);
    }

    #[test]
    fn what_scripts_must_not_do_is_found() {
        for (text, expected) in [
            ("local t = redis.call('TIME')", "uses TIME"),
            ("redis.pcall( \"time\" )", "uses TIME"),
            ("local x = math.random()", "uses random"),
            ("redis.call('spop', k)", "uses SPOP"),
            ("redis.call('KEYS', '*')", "uses KEYS"),
            ("local t = os.time()", "uses os"),
            ("x = 1", "writes the global x"),
            ("local a\na, b = 1, 2", "writes the global b"),
            ("function f() end", "writes the global f"),
            ("local t = { a = function() y = 1 end }", "writes the global y"),
            ("if true then z = 1 end", "writes the global z"),
        ] {
            assert!(
                found(text).iter().any(|fault| fault.starts_with(expected)),
                "{text}: {:?}",
                found(text)
            );
        }
    }

    #[test]
    fn what_scripts_may_do_is_left_alone() {
        for text in [
            "-- redis.call('TIME') x = 1",
            "--[[ x = 1\n y = 2 ]] local z = 1",
            "local key = KEYS[1]",
            "local s = 'x = 1' local t = \"it\\'s = \\\" y = 2\"",
            "local s = [[x = 1]]",
            "local t = {a = 1, ['b'] = 2} t.c = 3 t['d'] = 4 t[1] = 5",
            "local a, b a, b = 1, 2 if a == b then a = 3 end",
            "for i = 1, 2 do local x = i end for k, v in pairs({}) do k = v end",
            "local function f(x, y) x = y end",
            "local kinds = {} function kinds.window(n) n = 1 end",
            "local t = { a = function(p) local q = 1 p = q return { b = p } end, c = 2 }",
            "redis.call('SET', 'TIME', 1)",
            "repeat local x = 1 until x ~= 1",
        ] {
            assert_eq!(found(text), Vec::<String>::new(), "{text}");
        }
    }
}
