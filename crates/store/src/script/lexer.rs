//! Enough of Lua's lexer to tell the names in a script from strings, numbers and comments.
//!
//! Assembling a script needs to know which of its declared names a file uses; the checks of
//! [`tidy`](super::tidy) need the same and a little more. Neither needs a parser.

use std::collections::BTreeSet;

/// One token of a Lua text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum LuaToken<'a> {
    Word(&'a str),
    /// The inside of a string, as it is written.
    Text(&'a str),
    Number,
    Mark(char),
    /// `..`, which joins; a single dot is a [`Mark`](Self::Mark).
    Concat,
    /// `==`, `~=`, `<=`, `>=`, which are not assignments.
    Compare,
}

const KEYWORDS: [&str; 21] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local",
    "nil", "not", "or", "repeat", "return", "then", "true", "until", "while",
];

/// Keywords that begin or end a statement.
const STATEMENTS: [&str; 12] = [
    "break", "do", "else", "elseif", "end", "for", "if", "local", "repeat", "return", "until",
    "while",
];

/// Tokens of a text, without comments.
pub(super) fn tokens(source: &str) -> Vec<LuaToken<'_>> {
    let mut tokens = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        if let Some(comment) = rest.strip_prefix("--") {
            rest = match long_bracket(comment) {
                Some((_, after)) => after,
                None => comment.find('\n').map_or("", |end| &comment[end..]),
            };
        } else if let Some((text, after)) = long_bracket(rest) {
            tokens.push(LuaToken::Text(text));
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
            tokens.push(LuaToken::Text(&inner[..end]));
            rest = inner.get(end + 1..).unwrap_or_default();
        } else if first.is_alphabetic() || first == '_' {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            tokens.push(LuaToken::Word(&rest[..end]));
            rest = &rest[end..];
        } else if first.is_ascii_digit() {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '.').unwrap_or(rest.len());
            // `1..x` joins; the dots are not part of the number.
            let end = rest[..end].find("..").unwrap_or(end);
            tokens.push(LuaToken::Number);
            rest = &rest[end..];
        } else if let Some(after) = rest.strip_prefix("..") {
            tokens.push(LuaToken::Concat);
            rest = after;
        } else if ["==", "~=", "<=", ">="].iter().any(|mark| rest.starts_with(mark)) {
            tokens.push(LuaToken::Compare);
            rest = &rest[2..];
        } else {
            if !first.is_whitespace() {
                tokens.push(LuaToken::Mark(first));
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

/// Variables of a text by name: every word that is neither a keyword nor the name of a field.
pub(super) fn variables<'a>(tokens: &[LuaToken<'a>]) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let braces = in_braces(tokens);
    for (at, token) in tokens.iter().enumerate() {
        let LuaToken::Word(word) = *token else { continue };
        let member = at
            .checked_sub(1)
            .is_some_and(|at| matches!(tokens[at], LuaToken::Mark('.') | LuaToken::Mark(':')));
        let field = braces[at] && mark(tokens, at + 1, '=');
        if !member && !field && !KEYWORDS.contains(&word) {
            found.insert(word);
        }
    }
    found
}

/// Names that are declared somewhere in a text: locals, loop variables and parameters.
pub(super) fn locals<'a>(tokens: &[LuaToken<'a>]) -> BTreeSet<&'a str> {
    let mut locals = BTreeSet::new();
    for at in 0..tokens.len() {
        match word(tokens, at) {
            Some("local") if word(tokens, at + 1) == Some("function") => {
                locals.extend(word(tokens, at + 2));
            }
            Some("local" | "for") => locals.extend(list(tokens, at + 1).0),
            Some("function") => {
                let open = (at + 1..tokens.len()).find(|at| mark(tokens, *at, '('));
                locals.extend(open.map(|open| list(tokens, open + 1).0).unwrap_or_default());
            }
            _ => {}
        }
    }
    locals
}

/// Names that are assigned to without being declared anywhere in the text.
pub(super) fn globals<'a>(tokens: &[LuaToken<'a>]) -> BTreeSet<&'a str> {
    let (locals, braces) = (locals(tokens), in_braces(tokens));
    let mut globals = BTreeSet::new();
    for (at, token) in tokens.iter().enumerate() {
        let LuaToken::Word(name) = *token else { continue };
        let before = at.checked_sub(1).map(|at| tokens[at]);
        if name == "function" {
            let named = word(tokens, at + 1).filter(|_| before != Some(LuaToken::Word("local")));
            globals.extend(named.filter(|name| !locals.contains(name)));
        } else if !KEYWORDS.contains(&name) {
            let member = matches!(before, Some(LuaToken::Mark('.' | ':')));
            let (names, after) = list(tokens, at);
            if !member && !braces[at] && mark(tokens, after, '=') && !locals.contains(name) {
                globals.extend(names);
            }
        }
    }
    globals
}

/// Names that a text declares again for something else. `local now_ms = tonumber(now_ms)` is the same
/// thing in another form; a loop variable or a parameter never is.
pub(super) fn shadowed<'a>(tokens: &[LuaToken<'a>], names: &[&str]) -> BTreeSet<&'a str> {
    let mut shadowed = BTreeSet::new();
    for at in 0..tokens.len() {
        let (declared, after) = match word(tokens, at) {
            Some("local") if word(tokens, at + 1) != Some("function") => list(tokens, at + 1),
            Some("for") => (list(tokens, at + 1).0, tokens.len()),
            Some("function") => {
                let open = (at + 1..tokens.len()).find(|at| mark(tokens, *at, '('));
                (open.map(|open| list(tokens, open + 1).0).unwrap_or_default(), tokens.len())
            }
            _ => continue,
        };
        // What is assigned ends at the next statement, as far as keywords tell.
        let assigned: BTreeSet<&str> = (after..tokens.len())
            .map_while(|at| match tokens[at] {
                LuaToken::Word(word) if STATEMENTS.contains(&word) => None,
                token => Some(token),
            })
            .filter_map(|token| if let LuaToken::Word(word) = token { Some(word) } else { None })
            .collect();
        let other = declared.into_iter().filter(|name| !assigned.contains(name));
        shadowed.extend(other.filter(|name| names.contains(name)));
    }
    shadowed
}

/// Says of each token whether it stands in a table constructor. There `name =` is a field; a function
/// inside braces holds statements again.
fn in_braces(tokens: &[LuaToken<'_>]) -> Vec<bool> {
    let mut open = Vec::new();
    let mut found = Vec::with_capacity(tokens.len());
    for token in tokens {
        match token {
            LuaToken::Mark('{') => open.push(true),
            LuaToken::Mark('}') | LuaToken::Word("end" | "until") => drop(open.pop()),
            LuaToken::Word("function" | "if" | "do" | "repeat") => open.push(false),
            _ => {}
        }
        found.push(open.last() == Some(&true));
    }
    found
}

fn word<'a>(tokens: &[LuaToken<'a>], at: usize) -> Option<&'a str> {
    match tokens.get(at) {
        Some(LuaToken::Word(word)) => Some(word),
        _ => None,
    }
}

fn mark(tokens: &[LuaToken<'_>], at: usize, wanted: char) -> bool {
    tokens.get(at) == Some(&LuaToken::Mark(wanted))
}

/// A list `a, b, c` from a place on, and the place after it.
fn list<'a>(tokens: &[LuaToken<'a>], mut at: usize) -> (Vec<&'a str>, usize) {
    let mut names = Vec::new();
    while let Some(name) = word(tokens, at) {
        names.push(name);
        at += 1;
        if !mark(tokens, at, ',') {
            break;
        }
        at += 1;
    }
    (names, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_neither_fields_nor_keywords_nor_parts_of_numbers() {
        for (text, expected) in [
            ("local a = b .. c.d .. 'e' .. 1e14 -- f", &["a", "b", "c"][..]),
            ("return { a = b, [c] = d, e:f() }", &["b", "c", "d", "e"]),
            ("t = { a = function() b = 1 end }", &["b", "t"]),
            ("if a then for i = 1, 2 do b(i) end end", &["a", "b", "i"]),
            ("local x = 1..y", &["x", "y"]),
        ] {
            let found: Vec<&str> = variables(&tokens(text)).into_iter().collect();
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn a_name_may_be_declared_again_for_the_same_value_only() {
        for (text, expected) in [
            ("local now = tonumber(now) local other = 1", &[][..]),
            ("local a, now = 1, now == '1' if now then f() end", &[]),
            ("local now = f() return now", &["now"]),
            ("local now local x = now", &["now"]),
            ("for now = 1, now do end", &["now"]),
            ("local function f(x, now) return now end", &["now"]),
        ] {
            let found: Vec<&str> = shadowed(&tokens(text), &["now"]).into_iter().collect();
            assert_eq!(found, expected, "{text}");
        }
    }
}
