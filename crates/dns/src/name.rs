//! Domain names: wire form inside, presentation form in keys.
//!
//! A [`DomainName`] holds a valid, uncompressed name in wire form (RFC 1035 §3.1), ASCII letters in
//! lower case. Its text is the form that miekg/dns writes and that the original's keys have: no last
//! dot, `\` before a character with a meaning in zone files, `\DDD` for bytes that do not print. Two
//! different names never have the same text, and the text is read back as the same name.

use std::{fmt, str::FromStr};

/// Longest name in wire form, RFC 1035 §2.3.4.
pub(crate) const NAME_MAX_BYTES: usize = 255;

/// Longest label, RFC 1035 §2.3.4.
const LABEL_MAX_BYTES: usize = 63;

/// A domain name in lower case.
///
/// ```
/// let name: tidegate_dns::DomainName = "Ads.Example.COM.".parse()?;
/// assert_eq!(name.to_string(), "ads.example.com");
/// assert_eq!(name.as_wire(), b"\x03ads\x07example\x03com\x00");
/// # Ok::<(), tidegate_dns::NameError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomainName(Box<[u8]>);

/// Name, type and class of a query: the identity of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Question {
    /// Name.
    pub name: DomainName,
    /// Type, such as 1 for A.
    pub qtype: u16,
    /// Class; 1 is IN.
    pub qclass: u16,
}

/// Error of text or bytes that are not a domain name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// A label is empty.
    #[error("a name has no empty labels; write one dot between two labels")]
    EmptyLabel,
    /// A label is longer than 63 bytes.
    #[error("a label has at most 63 bytes")]
    LongLabel,
    /// The name is longer than 255 bytes in wire form.
    #[error("a name has at most 255 bytes")]
    LongName,
    /// A backslash is followed by neither a character nor a number up to 255.
    #[error("after a backslash comes a character or three digits up to 255")]
    Escape,
    /// The wire form ends early, has bytes after its end, or a pointer.
    #[error("the wire form of the name is damaged")]
    Wire,
}

impl DomainName {
    /// Returns the root, whose text is empty.
    pub fn root() -> Self {
        Self(Box::new([0]))
    }

    /// Reads a name in wire form: uncompressed, the whole slice.
    pub fn from_wire(wire: &[u8]) -> Result<Self, NameError> {
        if wire.len() > NAME_MAX_BYTES {
            return Err(NameError::LongName);
        }
        let mut at = 0;
        loop {
            let length = usize::from(*wire.get(at).ok_or(NameError::Wire)?);
            at += 1;
            match length {
                0 if at == wire.len() => break,
                1..=LABEL_MAX_BYTES => at += length,
                _ => return Err(NameError::Wire),
            }
        }
        // Length bytes are below `A`, so the whole name may be folded in one pass.
        Ok(Self(wire.to_ascii_lowercase().into_boxed_slice()))
    }

    /// Reads a name in presentation form, with or without the last dot. The empty text and a single
    /// dot are the root.
    pub fn parse(text: &[u8]) -> Result<Self, NameError> {
        if matches!(text, b"" | b".") {
            return Ok(Self::root());
        }
        let mut wire = vec![0];
        let mut label_start = 0;
        let mut rest = text;
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            let byte = match byte {
                b'.' => {
                    close_label(&mut wire, label_start)?;
                    label_start = wire.len();
                    wire.push(0);
                    continue;
                }
                b'\\' => {
                    let (escaped, after) = unescape(rest).ok_or(NameError::Escape)?;
                    rest = after;
                    escaped
                }
                plain => plain,
            };
            wire.push(byte.to_ascii_lowercase());
            // Checked here too, so that a long text is refused before it is copied.
            if wire.len() > NAME_MAX_BYTES {
                return Err(NameError::LongName);
            }
        }
        // After a last dot the zero that was opened is the root label already.
        if label_start + 1 != wire.len() || !text.ends_with(b".") {
            close_label(&mut wire, label_start)?;
            wire.push(0);
        }
        if wire.len() > NAME_MAX_BYTES {
            return Err(NameError::LongName);
        }
        Ok(Self(wire.into_boxed_slice()))
    }

    /// Returns the wire form.
    pub fn as_wire(&self) -> &[u8] {
        &self.0
    }

    /// Returns true for the root.
    pub fn is_root(&self) -> bool {
        self.0.len() == 1
    }

    /// Iterates over the labels from the left, without the root's.
    pub fn labels(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest: &[u8] = &self.0;
        std::iter::from_fn(move || {
            let (&length, after) = rest.split_first()?;
            if length == 0 {
                return None;
            }
            let (label, after) = after.split_at_checked(usize::from(length))?;
            rest = after;
            Some(label)
        })
    }

    /// Returns the name without its first label; the root has none.
    pub fn parent(&self) -> Option<Self> {
        let length = usize::from(*self.0.first()?);
        let rest = self.0.get(1 + length..)?;
        if length == 0 { None } else { Some(Self(rest.into())) }
    }
}

fn close_label(wire: &mut [u8], start: usize) -> Result<(), NameError> {
    match wire.len() - start - 1 {
        0 => Err(NameError::EmptyLabel),
        length @ 1..=LABEL_MAX_BYTES => {
            if let (Some(at), Ok(length)) = (wire.get_mut(start), u8::try_from(length)) {
                *at = length;
            }
            Ok(())
        }
        _ => Err(NameError::LongLabel),
    }
}

/// Reads what follows a backslash.
fn unescape(text: &[u8]) -> Option<(u8, &[u8])> {
    let (&first, after) = text.split_first()?;
    if !first.is_ascii_digit() {
        return Some((first, after));
    }
    let (digits, after) = text.split_at_checked(3)?;
    let value = digits.iter().try_fold(0_u16, |value, digit| {
        digit.is_ascii_digit().then(|| value * 10 + u16::from(digit - b'0'))
    })?;
    Some((u8::try_from(value).ok()?, after))
}

/// Characters that miekg/dns writes with a backslash.
fn has_a_meaning(byte: u8) -> bool {
    matches!(byte, b'.' | b' ' | b'\'' | b'@' | b';' | b'(' | b')' | b'"' | b'\\')
}

impl DomainName {
    /// Writes the text of a name without special characters, which nearly all are, and returns its
    /// length; none for others.
    fn write_plain(&self, text: &mut [u8; NAME_MAX_BYTES]) -> Option<usize> {
        let mut end = 0;
        for label in self.labels() {
            if end > 0 {
                *text.get_mut(end)? = b'.';
                end += 1;
            }
            if !label.iter().all(is_plain) {
                return None;
            }
            text.get_mut(end..end + label.len())?.copy_from_slice(label);
            end += label.len();
        }
        Some(end)
    }
}

/// Tells whether a byte stands for itself in text.
fn is_plain(byte: &u8) -> bool {
    matches!(byte, b' '..=b'~') && !has_a_meaning(*byte)
}

impl fmt::Display for DomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // In one piece: names are written into keys, rules and every row of the query log.
        let mut text = [0; NAME_MAX_BYTES];
        if let Some(end) = self.write_plain(&mut text)
            && let Some(Ok(text)) = text.get(..end).map(std::str::from_utf8)
        {
            return f.write_str(text);
        }
        for (index, label) in self.labels().enumerate() {
            if index > 0 {
                f.write_str(".")?;
            }
            let mut rest = label;
            while let Some(&byte) = rest.first() {
                let plain = rest.iter().position(|byte| !is_plain(byte)).unwrap_or(rest.len());
                let (run, behind) = rest.split_at(plain.max(1));
                match std::str::from_utf8(run) {
                    Ok(run) if plain > 0 => f.write_str(run)?,
                    _ if has_a_meaning(byte) => write!(f, "\\{}", char::from(byte))?,
                    _ => write!(f, "\\{byte:03}")?,
                }
                rest = behind;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for DomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DomainName({self})")
    }
}

impl FromStr for DomainName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::parse(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> DomainName {
        text.parse().unwrap()
    }

    #[test]
    fn text_is_lower_case_without_the_last_dot() {
        assert_eq!(name("WWW.Example.COM.").to_string(), "www.example.com");
        assert_eq!(name(".").to_string(), "");
        assert_eq!(name(""), DomainName::root());
    }

    #[test]
    fn characters_with_a_meaning_are_escaped_as_the_original_does() {
        let wire = b"\x09a.b c@;\"\\\x04\xc3\xa9\x00\x1f\x00";
        let name = DomainName::from_wire(wire).unwrap();
        assert_eq!(name.to_string(), r#"a\.b\ c\@\;\"\\.\195\169\000\031"#);
        assert_eq!(DomainName::parse(name.to_string().as_bytes()).unwrap(), name);
    }

    #[test]
    fn a_last_label_that_ends_in_a_dot_keeps_it() {
        let name = DomainName::from_wire(b"\x02a.\x00").unwrap();
        assert_eq!(name.to_string(), r"a\.");
        assert_eq!(DomainName::parse(br"a\.").unwrap(), name);
        assert_eq!(DomainName::parse(br"a\..").unwrap(), name);
    }

    #[test]
    fn what_is_not_a_name_is_refused() {
        for (text, error) in [
            ("a..b", NameError::EmptyLabel),
            ("..", NameError::EmptyLabel),
            (".a", NameError::EmptyLabel),
            (r"a\", NameError::Escape),
            (r"a\25", NameError::Escape),
            (r"a\256", NameError::Escape),
        ] {
            assert_eq!(DomainName::parse(text.as_bytes()), Err(error), "{text}");
        }
        assert_eq!(DomainName::parse(&[b'a'; 64]), Err(NameError::LongLabel));
        let label = "a".repeat(63);
        assert!(format!("{label}.{label}.{label}.{}", &label[2..]).parse::<DomainName>().is_ok());
        assert_eq!(
            format!("{label}.{label}.{label}.{}", &label[1..]).parse::<DomainName>(),
            Err(NameError::LongName)
        );
        for wire in [&b""[..], b"\x01", b"\x01a", b"\x00\x00", b"\xc0\x00", b"\x40a\x00"] {
            assert_eq!(DomainName::from_wire(wire), Err(NameError::Wire), "{wire:?}");
        }
    }

    #[test]
    fn labels_and_parents_go_from_left_to_right() {
        let name = name("a.b.c");
        assert_eq!(name.labels().collect::<Vec<_>>(), [b"a", b"b", b"c"]);
        let parents: Vec<_> = std::iter::successors(Some(name), DomainName::parent)
            .map(|name| name.to_string())
            .collect();
        assert_eq!(parents, ["a.b.c", "b.c", "c", ""]);
    }

    proptest! {
        /// Every byte may be in a label, and the text is read back as the same name.
        #[test]
        fn text_and_wire_form_round_trip(
            labels in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..=63), 0..4)
        ) {
            let mut wire = Vec::new();
            for label in &labels {
                wire.push(u8::try_from(label.len()).unwrap());
                wire.extend_from_slice(label);
            }
            wire.push(0);
            prop_assume!(wire.len() <= NAME_MAX_BYTES);
            let name = DomainName::from_wire(&wire).unwrap();
            let text = name.to_string();
            prop_assert_eq!(&DomainName::parse(text.as_bytes()).unwrap(), &name);
            if !name.is_root() {
                let dotted = format!("{text}.");
                prop_assert_eq!(&DomainName::parse(dotted.as_bytes()).unwrap(), &name);
            }
        }

        /// No text makes the parser fail in another way than by its error.
        #[test]
        fn any_text_is_read_or_refused(text in prop::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(name) = DomainName::parse(&text) {
                prop_assert_eq!(DomainName::from_wire(name.as_wire()), Ok(name));
            }
        }
    }
}
