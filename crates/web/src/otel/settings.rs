//! Kinds of settings that only the export of traces has.

use axum::http::{HeaderName, HeaderValue, header};

use super::anywhere;
use crate::config::value::{Bounds, Value, items};
use crate::webhook::address::TargetUrl;

/// Most headers, and most bytes of all of them together.
const HEADERS_MAX: usize = 16;
const HEADERS_BYTES_MAX: usize = 8 * 1024;
/// Most bytes of a service's name.
const LABEL_MAX: usize = 128;

crate::words! {
    /// The encoding of what is sent to the collector.
    OtlpProtocol {
        /// Protocol Buffers, which every collector takes.
        Protobuf = "http/protobuf",
        /// JSON, which people can read.
        Json = "http/json",
    }
}

/// The URL that spans are sent to, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectorUrl(pub Option<String>);

impl Value for CollectorUrl {
    fn kind() -> &'static str {
        "`http://` or `https://` URL"
    }

    /// A URL without a path gets the standard's.
    fn parse(text: &str, _: Bounds<'_>) -> Result<CollectorUrl, String> {
        if text.is_empty() {
            return Ok(CollectorUrl(None));
        }
        // What is wrong is not shown: a URL may hold a password.
        let wrong = "not the URL of a collector: write http://127.0.0.1:4318, and what it needs to \
                     know you by in otel.headers";
        let url = TargetUrl::parse(text, &anywhere()).map_err(|_| wrong.to_owned())?;
        if text.contains('#') || text.contains('?') {
            return Err(wrong.to_owned());
        }
        let full = match url.path() {
            "" | "/" => format!("{}/v1/traces", url.origin()),
            _ => text.to_owned(),
        };
        Ok(CollectorUrl(Some(full)))
    }
}

/// Headers sent along to the collector, such as a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectorHeaders(pub Vec<(HeaderName, HeaderValue)>);

impl Value for CollectorHeaders {
    fn kind() -> &'static str {
        "list of `name=value`"
    }

    /// Values may be percent-encoded, as in `OTEL_EXPORTER_OTLP_HEADERS`. They are secrets, so no
    /// message repeats them.
    fn parse(text: &str, _: Bounds<'_>) -> Result<CollectorHeaders, String> {
        if text.len() > HEADERS_BYTES_MAX {
            return Err(format!("all headers together have at most {HEADERS_BYTES_MAX} bytes"));
        }
        let mut headers = Vec::new();
        for (index, item) in items(text).enumerate() {
            let number = index + 1;
            let wrong = || format!("header {number} is not like authorization=Bearer%20TOKEN");
            let (name, value) = item.split_once('=').ok_or_else(wrong)?;
            let name: HeaderName = name.trim().parse().map_err(|_| wrong())?;
            let ours = [header::HOST, header::CONTENT_TYPE, header::CONTENT_LENGTH];
            if ours.contains(&name) || name == header::CONNECTION {
                return Err(format!("the header {name} is set by Tidegate itself"));
            }
            let value = percent_encoding::percent_decode_str(value.trim());
            let value: Vec<u8> = value.collect();
            let mut value = HeaderValue::from_bytes(&value).map_err(|_| wrong())?;
            value.set_sensitive(true);
            headers.push((name, value));
        }
        if headers.len() > HEADERS_MAX {
            return Err(format!("at most {HEADERS_MAX} headers"));
        }
        Ok(CollectorHeaders(headers))
    }

    /// The names; values are secrets.
    fn shown(text: &str) -> String {
        let hide = |item: &str| match item.split_once('=') {
            Some((name, _)) => format!("{}=…", name.trim()),
            None => "…".to_owned(),
        };
        items(text).map(hide).collect::<Vec<_>>().join(",")
    }
}

/// A share between 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct SampleRatio(f64);

impl SampleRatio {
    /// Every trace.
    pub const ALL: SampleRatio = SampleRatio(1.0);

    /// Decides by the id of a trace, so that every instance decides alike. The last 56 bits of an
    /// id are the random ones (W3C Trace Context, level 2).
    pub(super) fn samples(self, trace_id: u128) -> bool {
        const SPAN: f64 = (1_u64 << 56) as f64;
        #[expect(clippy::cast_precision_loss, reason = "a share need not be exact to 2^-53")]
        let place = (trace_id & ((1 << 56) - 1)) as f64;
        place < self.0 * SPAN
    }
}

impl Value for SampleRatio {
    fn kind() -> &'static str {
        "number (`1`, `0.05`)"
    }

    fn parse(text: &str, bounds: Bounds<'_>) -> Result<SampleRatio, String> {
        let read = |text: &str| text.parse::<f64>().ok().filter(|ratio| ratio.is_finite());
        let ratio = read(text).ok_or_else(|| format!("{text:?} is not a number such as 0.05"))?;
        if let Some((least, most)) = bounds
            && !(read(least)..=read(most)).contains(&Some(ratio))
        {
            return Err(format!("{text} is not between {least} and {most}"));
        }
        Ok(SampleRatio(ratio))
    }
}

/// The name of a service in traces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceLabel(pub String);

impl Value for ServiceLabel {
    fn kind() -> &'static str {
        "text of 1 to 128 bytes"
    }

    fn parse(text: &str, _: Bounds<'_>) -> Result<ServiceLabel, String> {
        let text = String::parse(text, None)?;
        match text.len() {
            1..=LABEL_MAX => Ok(ServiceLabel(text)),
            _ => Err(format!("a service's name has 1 to {LABEL_MAX} bytes")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_url_and_gets_the_usual_path() {
        let url = |text| CollectorUrl::parse(text, None).map(|url| url.0);
        assert_eq!(url(""), Ok(None));
        for (text, full) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://[::1]:4318/", "http://[::1]:4318/v1/traces"),
            ("https://otel.example/custom/v1/traces", "https://otel.example/custom/v1/traces"),
        ] {
            assert_eq!(url(text), Ok(Some(full.to_owned())));
        }
        for wrong in ["127.0.0.1:4318", "grpc://h:4317", "http://", "http://a:b@h", "http://h/?x=1"]
        {
            let message = url(wrong).unwrap_err();
            assert!(message.contains("otel.headers") && !message.contains("a:b"), "{wrong}");
        }
    }

    #[test]
    fn headers_are_read_and_never_repeated() {
        let headers = CollectorHeaders::parse("Authorization=Bearer%20s3cret, x-a = 1", None);
        let headers = headers.unwrap();
        let read: Vec<(&str, &[u8])> =
            headers.0.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        assert_eq!(read, [("authorization", &b"Bearer s3cret"[..]), ("x-a", b"1")]);
        assert!(!format!("{headers:?}").contains("s3cret"));
        for wrong in ["s3cret", "a b=s3cret", "x=s3cret%0a", "host=s3cret", "=s3cret"] {
            let message = CollectorHeaders::parse(wrong, None).unwrap_err();
            assert!(!message.contains("s3cret"), "{wrong}: {message}");
        }
        let many: Vec<String> = (0..17).map(|n| format!("x-{n}=1")).collect();
        assert!(CollectorHeaders::parse(&many.join(","), None).is_err());
    }

    #[test]
    fn a_ratio_keeps_its_share_of_traces() {
        let ratio = |text| SampleRatio::parse(text, Some(("0", "1")));
        for wrong in ["", "-0.1", "1.01", "NaN", "inf", "half"] {
            assert!(ratio(wrong).is_err(), "{wrong}");
        }
        let kept = |text| {
            let ratio = ratio(text).unwrap();
            (0..10_000).filter(|_| ratio.samples(fastrand::u128(1..))).count()
        };
        assert_eq!((kept("0"), kept("1")), (0, 10_000));
        let quarter = kept("0.25");
        assert!((2_200..2_800).contains(&quarter), "{quarter}");
    }
}
