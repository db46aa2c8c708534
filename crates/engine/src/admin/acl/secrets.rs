//! Arguments that are not shown to others: MONITOR and SLOWLOG.

use crate::args;

const HIDDEN: &[u8] = b"(redacted)";

/// Settings whose values are secrets.
const SETTINGS: [&str; 3] = ["masteruser", "masterauth", "requirepass"];

/// The arguments of a command as others may see them.
pub(crate) fn shown<'a>(argv: &[&'a [u8]]) -> Vec<&'a [u8]> {
    let mut shown = argv.to_vec();
    let mut hide = |at: usize| {
        if let Some(argument) = shown.get_mut(at) {
            *argument = HIDDEN;
        }
    };
    let word = |at: usize, word: &str| argv.get(at).is_some_and(|given| args::is(given, word));
    let end = argv.len();
    match () {
        () if word(0, "AUTH") => (1..end).for_each(hide),
        () if word(0, "ACL") && word(1, "SETUSER") => (2..end).for_each(hide),
        () if word(0, "HELLO") => {
            let login = (2..end).find(|at| word(*at, "AUTH"));
            login.into_iter().flat_map(|at| [at + 1, at + 2]).for_each(hide);
        }
        () if word(0, "CONFIG") && word(1, "SET") => {
            let names = (2..end).step_by(2);
            let secret = names.filter(|at| SETTINGS.iter().any(|name| word(*at, name)));
            secret.for_each(|at| hide(at + 1));
        }
        () if word(0, "MIGRATE") => {
            let mut at = 6;
            while at < end {
                let count = match () {
                    () if word(at, "AUTH") => 1,
                    () if word(at, "AUTH2") => 2,
                    () if word(at, "KEYS") => break,
                    () => 0,
                };
                (at + 1..=at + count).for_each(&mut hide);
                at += count + 1;
            }
        }
        () => {}
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expected: &str) {
        let argv: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let shown = shown(&argv).join(&b' ');
        assert_eq!(String::from_utf8_lossy(&shown), expected);
    }

    #[test]
    fn secrets_are_hidden_and_nothing_else() {
        check("auth pw", "auth (redacted)");
        check("AUTH user pw", "AUTH (redacted) (redacted)");
        check("acl setuser u on >pw", "acl setuser (redacted) (redacted) (redacted)");
        check("acl getuser u", "acl getuser u");
        check("hello 3 AUTH u p SETNAME x", "hello 3 AUTH (redacted) (redacted) SETNAME x");
        check("hello 3 SETNAME x", "hello 3 SETNAME x");
        check("config set port 1 masterauth p", "config set port 1 masterauth (redacted)");
        check("config get requirepass", "config get requirepass");
        check("migrate h 1 k 0 9 COPY AUTH p", "migrate h 1 k 0 9 COPY AUTH (redacted)");
        check(
            "migrate h 1 k 0 9 auth2 u p keys auth b",
            "migrate h 1 k 0 9 auth2 (redacted) (redacted) keys auth b",
        );
        check("set auth pw", "set auth pw");
    }
}
