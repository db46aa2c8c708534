//! OTLP: the message `ExportTraceServiceRequest` in its two encodings (opentelemetry-proto 1.x,
//! `collector/trace/v1` and `trace/v1`), and what matters of the answer.

use serde_json::{Value, json};
use store::trace::{SpanKind, SpanRecord, SpanValue};

use super::OtlpProtocol;

/// The name of what made the spans.
const SCOPE: &str = "tidegate";
/// `STATUS_CODE_ERROR`.
const ERROR: u64 = 2;

type Resource = [(&'static str, String)];

impl OtlpProtocol {
    pub(super) fn content_type(self) -> &'static str {
        match self {
            OtlpProtocol::Protobuf => "application/x-protobuf",
            OtlpProtocol::Json => "application/json",
        }
    }

    /// Encodes a request.
    pub(super) fn encode(self, resource: &Resource, spans: &[SpanRecord]) -> Vec<u8> {
        match self {
            OtlpProtocol::Protobuf => protobuf(resource, spans),
            OtlpProtocol::Json => json(resource, spans).to_string().into_bytes(),
        }
    }

    /// Returns the number of spans that an answer says were not taken.
    pub(super) fn rejected(self, body: &[u8]) -> usize {
        let rejected = match self {
            OtlpProtocol::Protobuf => {
                field(body, 1).and_then(|partial| varint_field(partial, 1)).unwrap_or(0)
            }
            OtlpProtocol::Json => {
                let answer: Value = serde_json::from_slice(body).unwrap_or_default();
                let rejected = &answer["partialSuccess"]["rejectedSpans"];
                // 64-bit numbers are texts in this encoding, and some write numbers all the same.
                let text = rejected.as_str().and_then(|text| text.parse().ok());
                text.or_else(|| rejected.as_u64()).unwrap_or(0)
            }
        };
        usize::try_from(rejected).unwrap_or(usize::MAX)
    }
}

fn kind_number(kind: SpanKind) -> u64 {
    match kind {
        SpanKind::Internal => 1,
        SpanKind::Server => 2,
        SpanKind::Client => 3,
        SpanKind::Producer => 4,
        SpanKind::Consumer => 5,
    }
}

fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn json(resource: &Resource, spans: &[SpanRecord]) -> Value {
    let text = |key: &str, value: &str| json!({ "key": key, "value": { "stringValue": value } });
    let attributes: Vec<Value> = resource.iter().map(|(key, value)| text(key, value)).collect();
    let spans: Vec<Value> = spans
        .iter()
        .map(|span| {
            let attributes: Vec<Value> = span
                .attributes
                .iter()
                .map(|(key, value)| match value {
                    SpanValue::Text(value) => text(key, value),
                    SpanValue::Number(value) => {
                        json!({ "key": key, "value": { "intValue": value.to_string() } })
                    }
                })
                .collect();
            let mut encoded = json!({
                "traceId": span.context.trace_id_text(),
                "spanId": format!("{:016x}", span.context.span_id),
                "flags": 1,
                "name": span.name,
                "kind": kind_number(span.kind),
                "startTimeUnixNano": nanos(span.start).to_string(),
                "endTimeUnixNano": nanos(span.end).to_string(),
                "attributes": attributes,
            });
            if let Some(parent) = span.parent {
                encoded["parentSpanId"] = json!(format!("{parent:016x}"));
            }
            if let Some(link) = span.link {
                let span_id = format!("{:016x}", link.span_id);
                encoded["links"] = json!([{ "traceId": link.trace_id_text(), "spanId": span_id }]);
            }
            if let Some(error) = &span.error {
                encoded["status"] = json!({ "code": ERROR, "message": error });
            }
            encoded
        })
        .collect();
    json!({ "resourceSpans": [{
        "resource": { "attributes": attributes },
        "scopeSpans": [{
            "scope": { "name": SCOPE, "version": env!("CARGO_PKG_VERSION") },
            "spans": spans,
        }],
    }] })
}

fn protobuf(resource: &Resource, spans: &[SpanRecord]) -> Vec<u8> {
    let mut request = ProtobufMessage::default();
    request.message(1, |resource_spans| {
        resource_spans.message(1, |message| {
            for (key, value) in resource {
                message.message(1, |pair| pair.attribute(key, &SpanValue::from(value.clone())));
            }
        });
        resource_spans.message(2, |scope_spans| {
            scope_spans.message(1, |scope| {
                scope.bytes(1, SCOPE.as_bytes());
                scope.bytes(2, env!("CARGO_PKG_VERSION").as_bytes());
            });
            for span in spans {
                scope_spans.message(2, |message| message.span(span));
            }
        });
    });
    request.0
}

/// A message of Protocol Buffers, as far as OTLP needs it.
#[derive(Debug, Default)]
struct ProtobufMessage(Vec<u8>);

impl ProtobufMessage {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn tag(&mut self, field: u64, wire_type: u64) {
        self.varint(field << 3 | wire_type);
    }

    fn number(&mut self, field: u64, value: u64) {
        self.tag(field, 0);
        self.varint(value);
    }

    fn fixed64(&mut self, field: u64, value: u64) {
        self.tag(field, 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.tag(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u64, write: impl FnOnce(&mut ProtobufMessage)) {
        let mut inner = ProtobufMessage::default();
        write(&mut inner);
        self.bytes(field, &inner.0);
    }

    fn attribute(&mut self, key: &str, value: &SpanValue) {
        self.bytes(1, key.as_bytes());
        self.message(2, |any| match value {
            SpanValue::Text(text) => any.bytes(1, text.as_bytes()),
            SpanValue::Number(number) => any.number(3, number.cast_unsigned()),
        });
    }

    fn span(&mut self, span: &SpanRecord) {
        self.bytes(1, &span.context.trace_id.to_be_bytes());
        self.bytes(2, &span.context.span_id.to_be_bytes());
        if let Some(parent) = span.parent {
            self.bytes(4, &parent.to_be_bytes());
        }
        self.bytes(5, span.name.as_bytes());
        self.number(6, kind_number(span.kind));
        self.fixed64(7, nanos(span.start));
        self.fixed64(8, nanos(span.end));
        for (key, value) in &span.attributes {
            self.message(9, |pair| pair.attribute(key, value));
        }
        if let Some(link) = span.link {
            self.message(13, |message| {
                message.bytes(1, &link.trace_id.to_be_bytes());
                message.bytes(2, &link.span_id.to_be_bytes());
            });
        }
        if let Some(error) = &span.error {
            self.message(15, |status| {
                status.bytes(2, error.as_bytes());
                status.number(3, ERROR);
            });
        }
        // `flags`: sampled.
        self.tag(16, 5);
        self.0.extend_from_slice(&1_u32.to_le_bytes());
    }
}

/// Reads a number in Protocol Buffers' variable length, and what comes after it.
fn read_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0_u64;
    for (index, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f).checked_shl(7 * u32::try_from(index).ok()?)?;
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(index + 1..)?));
        }
    }
    None
}

/// Returns the first field of this number in a message: the number before it, and its bytes if it
/// has a length.
fn find_field(mut message: &[u8], wanted: u64) -> Option<(u64, &[u8])> {
    while !message.is_empty() {
        let (tag, rest) = read_varint(message)?;
        let (number, content, rest) = match tag & 7 {
            0 => {
                let (number, rest) = read_varint(rest)?;
                (number, &[][..], rest)
            }
            1 => (0, rest.get(..8)?, rest.get(8..)?),
            2 => {
                let (length, rest) = read_varint(rest)?;
                let length = usize::try_from(length).ok()?;
                (0, rest.get(..length)?, rest.get(length..)?)
            }
            5 => (0, rest.get(..4)?, rest.get(4..)?),
            _ => return None,
        };
        if tag >> 3 == wanted {
            return Some((number, content));
        }
        message = rest;
    }
    None
}

fn field(message: &[u8], wanted: u64) -> Option<&[u8]> {
    find_field(message, wanted).map(|(_, content)| content)
}

fn varint_field(message: &[u8], wanted: u64) -> Option<u64> {
    find_field(message, wanted).map(|(number, _)| number)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use store::trace::TraceContext;

    use super::*;

    fn span() -> SpanRecord {
        SpanRecord {
            name: "dispatch mail".into(),
            kind: SpanKind::Producer,
            context: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse().unwrap(),
            parent: Some(0x0102_0304_0506_0708),
            link: Some(TraceContext { trace_id: 7, span_id: 8, sampled: true }),
            start: Duration::from_nanos(1_700_000_000_000_000_001),
            end: Duration::from_nanos(1_700_000_000_000_000_900),
            attributes: vec![("a", SpanValue::from("text")), ("n", SpanValue::from(-5_i64))],
            error: Some("it broke".to_owned()),
        }
    }

    #[test]
    fn json_is_what_the_standard_shows() {
        let encoded = OtlpProtocol::Json.encode(&[("service.name", "t".to_owned())], &[span()]);
        let request: Value = serde_json::from_slice(&encoded).unwrap();
        let resource_spans = &request["resourceSpans"][0];
        assert_eq!(resource_spans["resource"]["attributes"][0]["value"]["stringValue"], "t");
        let span = &resource_spans["scopeSpans"][0]["spans"][0];
        assert_eq!(span["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(span["parentSpanId"], "0102030405060708");
        assert_eq!(
            (&span["kind"], &span["startTimeUnixNano"]),
            (&json!(4), &json!("1700000000000000001"))
        );
        assert_eq!(span["attributes"][1]["value"]["intValue"], "-5");
        assert_eq!(span["status"], json!({ "code": 2, "message": "it broke" }));
        assert_eq!(span["links"][0]["spanId"], "0000000000000008");
    }

    #[test]
    fn protobuf_has_the_fields_of_the_standard() {
        let encoded = OtlpProtocol::Protobuf.encode(&[("service.name", "t".to_owned())], &[span()]);
        let resource_spans = field(&encoded, 1).unwrap();
        let attribute = field(field(resource_spans, 1).unwrap(), 1).unwrap();
        assert_eq!(field(attribute, 1), Some(&b"service.name"[..]));
        assert_eq!(field(field(attribute, 2).unwrap(), 1), Some(&b"t"[..]));
        let scope_spans = field(resource_spans, 2).unwrap();
        assert_eq!(field(field(scope_spans, 1).unwrap(), 1), Some(&b"tidegate"[..]));
        let span = field(scope_spans, 2).unwrap();
        assert_eq!(
            field(span, 1).unwrap(),
            0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes()
        );
        assert_eq!(field(span, 2).unwrap(), 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes());
        assert_eq!(field(span, 4).unwrap(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(field(span, 5), Some(&b"dispatch mail"[..]));
        assert_eq!(varint_field(span, 6), Some(4));
        assert_eq!(field(span, 8).unwrap(), 1_700_000_000_000_000_900_u64.to_le_bytes());
        assert_eq!(field(field(span, 9).unwrap(), 1), Some(&b"a"[..]));
        assert_eq!(field(field(span, 13).unwrap(), 2).unwrap(), [0, 0, 0, 0, 0, 0, 0, 8]);
        let status = field(span, 15).unwrap();
        assert_eq!((field(status, 2), varint_field(status, 3)), (Some(&b"it broke"[..]), Some(2)));
        assert_eq!(field(span, 16).unwrap(), [1, 0, 0, 0]);
    }

    #[test]
    fn rejected_spans_are_read_from_the_answer() {
        let partial = [0x0a, 0x06, 0x08, 0x96, 0x01, 0x12, 0x01, b'x'];
        assert_eq!(OtlpProtocol::Protobuf.rejected(&partial), 150);
        let partial = br#"{"partialSuccess":{"rejectedSpans":"150","errorMessage":"x"}}"#;
        assert_eq!(OtlpProtocol::Json.rejected(partial), 150);
        for odd in [&b""[..], b"{}", &[0x0a, 0xff], &[0xff; 20], b"<html>"] {
            assert_eq!(OtlpProtocol::Protobuf.rejected(odd), 0);
            assert_eq!(OtlpProtocol::Json.rejected(odd), 0);
        }
    }
}
