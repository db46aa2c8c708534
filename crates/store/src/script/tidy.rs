//! Checks that a crate's Lua files and their declarations agree, for a test in each service.
//!
//! A header is read, not trusted: its names must be the declared ones in order. The text itself is
//! only skimmed, enough to catch what scripts here must not do: count keys and arguments instead of
//! naming them, use a function or a name without saying so in the header, ask for the time, leave
//! something to chance, write a global.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use super::{
    Script,
    assemble::{included, listed, names},
    lexer::{LuaToken, globals, locals, shadowed, tokens, variables},
};

/// Everything that is wrong with the scripts in `folder` (a crate's `lua`), one line each; empty
/// when all is well. `service` is the word before the slash in each header.
///
/// Checked: every file is declared and every declaration listed; the header has a title, the
/// declared keys and arguments by name and in order, and a reply; libraries hold the function they
/// are named after and are used; every name in a file is its own, declared, or from a library file
/// that its header names, and nothing is named in vain or declared again for something else; no key
/// or argument goes by its number; nothing asks for the time, is random, or writes a global.
pub fn faults(service: &str, folder: &Path, scripts: &[&Script]) -> Vec<String> {
    let mut faults = Vec::new();
    let declared: BTreeSet<&str> = scripts.iter().map(|script| script.name()).collect();
    let used: BTreeMap<&str, &str> = scripts.iter().flat_map(|script| included(script)).collect();
    let libs: BTreeSet<&str> = used.keys().copied().collect();
    for (part, known) in [(folder.to_owned(), &declared), (folder.join("lib"), &libs)] {
        for name in lua_files(&part) {
            if !known.contains(name.as_str()) {
                faults.push(format!("{}: declared or used nowhere", part.join(name).display()));
            }
        }
    }
    let exports: BTreeMap<&str, Vec<&str>> =
        used.iter().map(|(name, text)| (*name, exports(text))).collect();
    for script in scripts {
        let mut fault = |text: String| faults.push(format!("{}.lua: {text}", script.name()));
        header_faults(service, script, &mut fault);
        text_faults(script.body(), &mut fault);
        let names: Vec<&str> = names(script).into_iter().map(|(name, _)| name).collect();
        name_faults(script.body(), &names, &exports, &mut fault);
        for (at, name) in names.iter().enumerate() {
            if names[..at].contains(name) || exports.values().flatten().any(|other| other == name) {
                fault(format!("{name} is declared twice, or is a function of the library too"));
            }
        }
        for (name, text) in included(script) {
            for read in listed(text, "reads:") {
                if !names.contains(&read) {
                    fault(format!("lib/{name}.lua reads {read}, which is not declared here"));
                }
            }
        }
    }
    for (name, text) in &used {
        let mut fault = |text: String| faults.push(format!("lib/{name}.lua: {text}"));
        library_faults(name, text, &mut fault);
        text_faults(text, &mut fault);
        let reads = listed(text, "reads:");
        name_faults(text, &reads, &exports, &mut fault);
        let mentioned = tokens(text);
        let mentioned = variables(&mentioned);
        for read in reads.iter().filter(|read| !mentioned.contains(*read)) {
            fault(format!("says that it reads {read}, and does not"));
        }
    }
    faults
}

/// Names that a library file gives to those that use it: its locals at the start of a line.
fn exports(text: &str) -> Vec<&str> {
    let after = text.lines().filter_map(|line| line.strip_prefix("local "));
    let after = after.map(|rest| rest.strip_prefix("function ").unwrap_or(rest));
    after.filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()).collect()
}

fn library_faults(name: &str, text: &str, fault: &mut impl FnMut(String)) {
    let head = format!("local function {name}(");
    let Some((_, rest)) = text.split_once(&head) else {
        return fault(format!("has no `{head}`"));
    };
    if !text.starts_with(&format!("-- {name}(")) {
        fault(format!("must open with `-- {name}(ARGUMENTS) -- WHAT IT DOES`"));
    }
    let parameters = rest.split(')').next().unwrap_or_default();
    for read in listed(text, "reads:") {
        if parameters.split(',').any(|parameter| parameter.trim() == read) {
            fault(format!("reads {read}, and has a parameter of that name"));
        }
    }
}

/// Globals that scripts may use.
const KNOWN: [&str; 13] = [
    "ARGV", "KEYS", "error", "ipairs", "math", "next", "pairs", "redis", "string", "table",
    "tonumber", "tostring", "type",
];

/// Every variable must be known, and every library file that the header names must be of use.
fn name_faults(
    text: &str,
    names: &[&str],
    exports: &BTreeMap<&str, Vec<&str>>,
    fault: &mut impl FnMut(String),
) {
    let tokens = tokens(text);
    let (variables, own, uses) = (variables(&tokens), locals(&tokens), listed(text, "uses:"));
    for lib in &uses {
        match exports.get(lib) {
            None => fault(format!("uses {lib}, which is no file of the library")),
            Some(exports) if !exports.iter().any(|export| variables.contains(export)) => {
                fault(format!("says that it uses {lib}, and does not"));
            }
            Some(_) => {}
        }
    }
    for name in shadowed(&tokens, names) {
        fault(format!("declares {name} again, as something else"));
    }
    for name in variables {
        let from = exports.iter().find(|(_, exports)| exports.contains(&name));
        match from {
            _ if own.contains(name) || names.contains(&name) || KNOWN.contains(&name) => {}
            Some((lib, _)) if uses.contains(lib) => {}
            Some((lib, _)) => fault(format!("takes {name} from {lib} without `-- uses: {lib}`")),
            // The two dialects of Lua keep it in two places.
            None if name == "unpack" => {}
            None => fault(format!("knows no {name}: declare it, or name it in `-- reads:`")),
        }
    }
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
            LuaToken::Text(text) if before == Some(&LuaToken::Mark('(')) => {
                let upper = text.to_ascii_uppercase();
                BANNED[..7].iter().find(|(word, _)| *word == upper)
            }
            LuaToken::Word(word) => BANNED[7..].iter().find(|(banned, _)| banned == word),
            _ => None,
        };
        if let Some((word, reason)) = banned {
            fault(format!("uses {word}: {reason}"));
        }
        if let LuaToken::Word(table @ ("KEYS" | "ARGV")) = token
            && tokens.get(at + 1) == Some(&LuaToken::Mark('['))
            && tokens.get(at + 2) == Some(&LuaToken::Number)
        {
            fault(format!("takes from {table} by number: use the declared name"));
        }
    }
    for name in globals(&tokens) {
        fault(format!("writes the global {name}: locals only"));
    }
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
            ("local key = KEYS[1]", "takes from KEYS by number"),
            ("for n = 1, 2 do f(ARGV[2 + n]) end", "takes from ARGV by number"),
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
            "local key = KEYS[records + 1] .. ARGV[at] .. #KEYS",
            "local s = 'x = 1' local t = \"it\\'s = \\\" y = 2\"",
            "local s = [[x = 1]]",
            "local a, b f({ c = a, d = b, e = 1 })",
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
