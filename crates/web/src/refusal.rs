//! Turns what serde says about wrong input into what a person can act on: the field, and what it takes.

use serde::de::DeserializeOwned;

use crate::error::ApiError;

/// Reads JSON. A refusal names the field, and says what it takes in plain words.
pub fn read_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        match inner.classify() {
            serde_json::error::Category::Data => refuse(&path, &inner.to_string()),
            // A number where one of some words belongs counts as bad syntax, in JSON that has none.
            serde_json::error::Category::Syntax if is_json(bytes) => {
                in_field(if path == "." { "" } else { &path }, "takes a text".to_owned())
            }
            _ => ApiError::invalid(format!("the body is not JSON: {inner}")),
        }
    })?;
    deserializer
        .end()
        .map_err(|error| ApiError::invalid(format!("the body is not JSON: {error}")))?;
    Ok(value)
}

fn is_json(bytes: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok()
}

/// Reads a query string.
pub(crate) fn read_query<T: DeserializeOwned>(query: &str) -> Result<T, ApiError> {
    let pairs = form_urlencoded::parse(query.as_bytes());
    let deserializer = serde_urlencoded::Deserializer::new(pairs);
    serde_path_to_error::deserialize(deserializer).map_err(|error| {
        let path = error.path().to_string();
        refuse(&path, &error.into_inner().to_string())
    })
}

/// Writes the refusal of a value at a path.
fn refuse(path: &str, told: &str) -> ApiError {
    // `… at line 1 column 9`: the path says it better.
    let told = told.split(" at line ").next().unwrap_or(told);
    let path = if path == "." { "" } else { path };
    let quoted = || told.split('`').nth(1).unwrap_or_default();
    let named = |name: &str| match path {
        "" => name.to_owned(),
        path if path.rsplit('.').next() == Some(name) => path.to_owned(),
        path => format!("{path}.{name}"),
    };
    if told.starts_with("unknown field") {
        let field = named(quoted());
        let known: Vec<&str> = told.split('`').skip(3).step_by(2).collect();
        let message = match known.as_slice() {
            [] => format!("unknown field {field}"),
            known => format!("unknown field {field}; known are {}", known.join(", ")),
        };
        return ApiError::invalid_field(&field, message);
    }
    if told.starts_with("missing field") {
        let field = named(quoted());
        return ApiError::invalid_field(&field, format!("{field} is missing"));
    }
    if told.starts_with("duplicate field") {
        let field = named(quoted());
        return ApiError::invalid_field(&field, format!("{field} is given twice"));
    }
    if told.starts_with("unknown variant") {
        let known: Vec<&str> = told.split('`').skip(3).step_by(2).collect();
        let message = format!("{:?} is not one of {}", quoted(), known.join(", "));
        return in_field(path, message);
    }
    let wrong = told.strip_prefix("invalid type: ").or(told.strip_prefix("invalid value: "));
    if let Some((got, expected)) = wrong.and_then(|text| text.rsplit_once(", expected ")) {
        return in_field(path, format!("takes {}, and got {}", taken(expected), given(got)));
    }
    let digits = ["invalid digit", "number too", "cannot parse integer"];
    if digits.iter().any(|start| told.starts_with(start)) {
        return in_field(path, "takes a whole number in its range".to_owned());
    }
    if told.starts_with("provided string was not `true` or `false`") {
        return in_field(path, "takes true or false".to_owned());
    }
    in_field(path, told.to_owned())
}

fn in_field(path: &str, message: String) -> ApiError {
    match path {
        "" => ApiError::invalid(format!("the request {message}")),
        path => {
            let message = match message.starts_with("takes ") {
                true => format!("{path} {message}"),
                false => message,
            };
            ApiError::invalid_field(path, message)
        }
    }
}

/// An expected type, in plain words.
fn taken(expected: &str) -> String {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, not negative".to_owned(),
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "a string" | "string or map" => "a text".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "an object".to_owned(),
        "unit" => "null".to_owned(),
        other if other.starts_with("struct ") || other.starts_with("internally tagged enum") => {
            "an object".to_owned()
        }
        other if other.starts_with("enum ") || other == "variant identifier" => "a text".to_owned(),
        other if other.contains("nonzero") => "a whole number above 0".to_owned(),
        other => other.replace('`', ""),
    }
}

/// A value that was sent, in plain words.
fn given(got: &str) -> String {
    let value = got.split('`').nth(1);
    match (got.split_whitespace().next(), value) {
        (Some("integer" | "floating" | "boolean"), Some(value)) => value.to_owned(),
        (Some("string"), _) => {
            let text = got.trim_start_matches("string ");
            format!("the text {}", text.chars().take(40).collect::<String>())
        }
        (Some("null" | "unit"), _) => "null".to_owned(),
        (Some("map"), _) => "an object".to_owned(),
        (Some("sequence"), _) => "a list".to_owned(),
        _ => got.replace('`', ""),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only read")]
    struct SampleOrder {
        count: u32,
        #[serde(default)]
        lines: Vec<SampleLine>,
        #[serde(default)]
        size: Option<SampleSize>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only read")]
    struct SampleLine {
        name: String,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum SampleSize {
        Small,
        Large,
    }

    #[test]
    fn a_refusal_names_the_field_and_no_rust_type() {
        for (body, field, message) in [
            (
                r#"{"count":"x"}"#,
                "count",
                "count takes a whole number, not negative, and got the text \"x\"",
            ),
            (r#"{"count":-1}"#, "count", "count takes a whole number, not negative, and got -1"),
            (
                r#"{"count":1,"cuont":2}"#,
                "cuont",
                "unknown field cuont; known are count, lines, size",
            ),
            (r"{}", "count", "count is missing"),
            (
                r#"{"count":1,"lines":[{"name":1}]}"#,
                "lines[0].name",
                "lines[0].name takes a text, and got 1",
            ),
            (r#"{"count":1,"lines":[{}]}"#, "lines[0].name", "lines[0].name is missing"),
            (r#"{"count":1,"size":"huge"}"#, "size", "\"huge\" is not one of small, large"),
            (r#"{"count":1,"size":7}"#, "size", "size takes a text"),
            (r#"{"count":1,"lines":{}}"#, "lines", "lines takes a list, and got an object"),
        ] {
            let error = read_json::<SampleOrder>(body.as_bytes()).unwrap_err();
            assert_eq!((error.field(), error.message()), (Some(field), message), "{body}");
        }
        let error = read_json::<SampleOrder>(b"7").unwrap_err();
        assert!(error.message().starts_with("the request takes an object"), "{}", error.message());
        let error = read_json::<SampleOrder>(b"{\"count\":1").unwrap_err();
        assert!(error.message().starts_with("the body is not JSON"), "{}", error.message());
    }

    #[test]
    fn a_query_is_refused_in_the_same_words() {
        let read = |query| read_query::<SampleOrder>(query).unwrap_err();
        assert_eq!(read("count=x").field(), Some("count"));
        assert_eq!(read("count=x").message(), "count takes a whole number in its range");
        assert_eq!(read("count=1&colour=red").field(), Some("colour"));
        assert_eq!(read("").message(), "count is missing");
    }
}
