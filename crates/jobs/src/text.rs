//! Bounds of the text that is kept with a job, so that no error message fills the store.

/// Longest reason of a cancellation: 1 KiB; longer ones are cut.
pub const REASON_MAX: usize = 1024;

/// Longest message of an error: 8 KiB; longer ones are cut. The history keeps the latest few.
pub const MESSAGE_MAX: usize = 8 * 1024;

/// Longest stack trace of an error: 16 KiB; longer ones are cut.
pub const STACK_MAX: usize = 16 * 1024;

/// Longest name of an error and longest note of a progress: 1 KiB; longer ones are cut.
pub const NOTE_MAX: usize = 1024;

/// Largest metadata of a job, and largest data of a progress: 64 KiB; larger ones are refused.
pub const METADATA_MAX: usize = 64 * 1024;

/// Deepest nesting of a payload. The Lua side of v1 reads 1000 levels, the job around it included.
pub const DEPTH_MAX: usize = 900;

/// Cuts text to at most `most` bytes, at the end of a character.
pub(crate) fn clip(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// As [`clip`], in place.
pub(crate) fn clip_owned(mut text: String, most: usize) -> String {
    let end = clip(&text, most).len();
    text.truncate(end);
    text
}

/// Says why JSON text cannot be read by every program that reads jobs, if it cannot.
///
/// The text is valid JSON already. Refused are nesting beyond [`DEPTH_MAX`] and lone surrogates
/// (`\\ud800` without its other half), which name no character and stop the Lua reader of v1.
pub(crate) fn unreadable(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let (mut at, mut depth, mut in_string) = (0, 0_usize, false);
    // The four hex digits of an escape that begins here.
    let unit = |at: usize| -> Option<u32> {
        let escape = bytes.get(at..at + 6)?;
        let digits = escape.strip_prefix(b"\\u")?;
        u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    while let Some(byte) = bytes.get(at) {
        match (in_string, byte) {
            (true, b'\\') => match unit(at) {
                Some(0xD800..=0xDBFF) if matches!(unit(at + 6), Some(0xDC00..=0xDFFF)) => at += 11,
                Some(0xD800..=0xDFFF) => {
                    return Some("it holds half a surrogate pair, which is no character".into());
                }
                _ => at += 1,
            },
            (_, b'"') => in_string = !in_string,
            (false, b'[' | b'{') => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return Some(format!("it is nested more than {DEPTH_MAX} levels deep"));
                }
            }
            (false, b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_at_the_end_of_a_character() {
        assert_eq!(clip("aé", 2), "a");
        assert_eq!(clip("aé", 3), "aé");
        assert_eq!(clip_owned("日本".to_owned(), 5), "日");
    }

    #[test]
    fn what_lua_cannot_read_is_found() {
        for fine in [
            r#"{"a":"\\ud800"}"#,
            r#""\ud83d\ude00""#,
            r#"["[[[","\"[{",1]"#,
            &format!("{}{}", "[".repeat(DEPTH_MAX), "]".repeat(DEPTH_MAX)),
        ] {
            assert_eq!(unreadable(fine), None, "{fine:.40}");
        }
        for bad in [
            r#""\ud800""#,
            r#"{"\udc00":1}"#,
            r#""\ud800\ud800""#,
            r#""\ud83dx""#,
            &format!("{}{}", "[".repeat(DEPTH_MAX + 1), "]".repeat(DEPTH_MAX + 1)),
        ] {
            assert!(unreadable(bad).is_some(), "{bad:.40}");
        }
    }
}
