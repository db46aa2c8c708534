//! JSON objects as text: read field by field, changed without touching the rest.
//!
//! A stored job may hold fields, numbers and escapes that only its producer understands. So a job
//! is never decoded and written again as a whole: [`Fields`] keeps each value as the text it was,
//! and [`Fields::set`] changes one.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

/// The fields of one JSON object in their order, values as text.
#[derive(Debug)]
pub(crate) struct Fields<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Fields<'a> {
    /// Splits an object; an error is told in the parser's words.
    pub(crate) fn parse(text: &'a str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// The fields in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_ref(), value.as_ref()))
    }

    /// The value of a field; of several with one name the last, as parsers elsewhere take it.
    #[cfg(test)]
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(found, _)| found == name).map(|(_, value)| value.as_ref())
    }

    /// Gives a field another value, or adds it at the end.
    pub(crate) fn set(&mut self, name: &'static str, value: impl Into<Cow<'a, str>>) {
        match self.0.iter_mut().rev().find(|(found, _)| found == name) {
            Some((_, old)) => *old = value.into(),
            None => self.0.push((Cow::Borrowed(name), value.into())),
        }
    }

    /// Takes a field away.
    pub(crate) fn remove(&mut self, name: &str) {
        self.0.retain(|(found, _)| found != name);
    }

    /// The object as compact text.
    pub(crate) fn to_text(&self) -> String {
        let length = self.0.iter().map(|(name, value)| name.len() + value.len() + 4).sum::<usize>();
        let mut text = String::with_capacity(length + 2);
        for (name, value) in self.iter() {
            text.push(if text.is_empty() { '{' } else { ',' });
            push_str(&mut text, name);
            text.push(':');
            text.push_str(value);
        }
        if text.is_empty() {
            text.push('{');
        }
        text.push('}');
        text
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::with_capacity(16);
                while let Some(Name(name)) = map.next_key::<Name<'de>>()? {
                    let value: &'de RawValue = map.next_value()?;
                    fields.push((name, Cow::Borrowed(value.get())));
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// A field name, borrowed where it holds no escape.
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;
        impl<'de> Visitor<'de> for NameVisitor {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a field name")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(NameVisitor)
    }
}

/// Appends text as a JSON string.
pub(crate) fn push_str(out: &mut String, text: &str) {
    let plain = |byte: u8| byte >= 0x20 && byte != b'"' && byte != b'\\';
    if text.bytes().all(plain) {
        out.push('"');
        out.push_str(text);
        out.push('"');
    } else {
        // A string serialises always.
        out.push_str(&serde_json::to_string(text).unwrap_or_default());
    }
}

/// Appends a list of texts as a JSON array.
pub(crate) fn push_list<T: AsRef<str>>(out: &mut String, list: impl IntoIterator<Item = T>) {
    out.push('[');
    for (at, item) in list.into_iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        push_str(out, item.as_ref());
    }
    out.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_field_changes_and_the_rest_stays_as_it_was() {
        let text = r#"{ "a" : 1.50, "attempts":0 ,"b":"\ud800","c":[1, {"attempts":9}] }"#;
        let mut fields = Fields::parse(text).unwrap();
        fields.set("attempts", "1");
        fields.set("new", "true");
        assert_eq!(
            fields.to_text(),
            r#"{"a":1.50,"attempts":1,"b":"\ud800","c":[1, {"attempts":9}],"new":true}"#
        );
        fields.remove("c");
        assert_eq!(fields.to_text(), r#"{"a":1.50,"attempts":1,"b":"\ud800","new":true}"#);
    }

    #[test]
    fn of_two_fields_with_one_name_the_last_counts() {
        let mut fields = Fields::parse(r#"{"a":1,"a":2}"#).unwrap();
        assert_eq!(fields.get("a"), Some("2"));
        fields.set("a", "3");
        assert_eq!(fields.to_text(), r#"{"a":1,"a":3}"#);
    }

    #[test]
    fn what_is_not_an_object_is_an_error() {
        for text in ["", "[]", "1", "null", "{", r#"{"a"}"#, "{} x", "\u{0}"] {
            assert!(Fields::parse(text).is_err(), "{text:?}");
        }
        assert_eq!(Fields::parse("{}").unwrap().to_text(), "{}");
    }

    #[test]
    fn strings_are_escaped_where_needed() {
        let mut out = String::new();
        push_list(&mut out, ["a", "b\"c", "d\ne"]);
        assert_eq!(out, r#"["a","b\"c","d\ne"]"#);
    }
}
