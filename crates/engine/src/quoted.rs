//! Words in quotes, as people type them in an inline command or in the first line of a library.

/// The words of a line, where quotes keep a word together as in a shell: `"a\x20b"` knows escapes,
/// `'a b'` only `\'`. None if a quote is not closed or something follows on it. A zero byte ends
/// the line.
///
/// ```
/// let words = tidegate_engine::split_quoted(br#"lua name="a b""#);
/// assert_eq!(words, Some(vec![b"lua".to_vec(), b"name=a b".to_vec()]));
/// assert_eq!(tidegate_engine::split_quoted(b"name='a"), None);
/// ```
pub fn split_quoted(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let end = memchr::memchr(0, line).unwrap_or(line.len());
    let mut rest = line.get(..end).unwrap_or_default();
    loop {
        while let [byte, tail @ ..] = rest
            && is_space(*byte)
        {
            rest = tail;
        }
        if rest.is_empty() {
            return Some(words);
        }
        let mut word = Vec::new();
        loop {
            match rest {
                [] => break,
                [b'"', tail @ ..] => rest = double_quoted(tail, &mut word)?,
                [b'\'', tail @ ..] => rest = single_quoted(tail, &mut word)?,
                [byte, ..] if is_space(*byte) => break,
                [byte, tail @ ..] => {
                    word.push(*byte);
                    rest = tail;
                    continue;
                }
            }
            // A closing quote must end the word.
            if rest.first().is_some_and(|byte| !is_space(*byte)) {
                return None;
            }
            break;
        }
        words.push(word);
    }
}

fn double_quoted<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        match rest {
            [] => return None,
            [b'"', tail @ ..] => return Some(tail),
            [b'\\', b'x', high, low, tail @ ..]
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                let digit = |b: &u8| char::from(*b).to_digit(16).unwrap_or(0) as u8;
                word.push(digit(high) << 4 | digit(low));
                rest = tail;
            }
            [b'\\', escaped, tail @ ..] => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                rest = tail;
            }
            [byte, tail @ ..] => {
                word.push(*byte);
                rest = tail;
            }
        }
    }
}

fn single_quoted<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        match rest {
            [] => return None,
            [b'\\', b'\'', tail @ ..] => {
                word.push(b'\'');
                rest = tail;
            }
            [b'\'', tail @ ..] => return Some(tail),
            [byte, tail @ ..] => {
                word.push(*byte);
                rest = tail;
            }
        }
    }
}

/// Returns true for the bytes of C's `isspace`.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}
