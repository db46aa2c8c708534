//! Fields of answers, for tables; and names in paths.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

/// Letters, digits, `-` and `_` stay; everything else is encoded.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

/// Percent-encodes a name as one segment of a path.
pub fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// Returns a text field; empty when it is missing.
pub fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
}

/// Returns a number field as text; 0 when it is missing.
pub fn number(value: &Value, name: &str) -> String {
    value[name].as_u64().unwrap_or(0).to_string()
}
