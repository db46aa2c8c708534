//! Moments in requests and answers: RFC 3339 in UTC, with milliseconds.

use std::borrow::Cow;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use store::Millis;
use utoipa::openapi::{KnownFormat, ObjectBuilder, RefOr, Schema, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::format::{rfc3339, rfc3339_bytes};

/// A moment, written as `2026-11-17T09:30:00.000Z`. Any offset is understood in requests.
///
/// ```
/// use tidegate_web::time::Timestamp;
///
/// let at: Timestamp = serde_json::from_str("\"2026-11-17T10:30:00+01:00\"").unwrap();
/// assert_eq!(serde_json::to_string(&at).unwrap(), "\"2026-11-17T09:30:00.000Z\"");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(pub Millis);

impl From<Millis> for Timestamp {
    fn from(at: Millis) -> Timestamp {
        Timestamp(at)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = rfc3339_bytes(self.0.0);
        match text.as_ref().and_then(|text| std::str::from_utf8(text).ok()) {
            Some(text) => serializer.serialize_str(text),
            None => serializer.serialize_str(&rfc3339(self.0.0)),
        }
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        let at: jiff::Timestamp = text.parse().map_err(|_| {
            D::Error::custom(format!("{text:?} is not a time such as 2026-11-17T09:30:00Z"))
        })?;
        Ok(Timestamp(Millis(at.as_millisecond())))
    }
}

impl PartialSchema for Timestamp {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
            .examples([serde_json::json!("2026-11-17T09:30:00.000Z")])
            .into()
    }
}

impl ToSchema for Timestamp {
    fn name() -> Cow<'static, str> {
        "Timestamp".into()
    }
}
