//! Compression of responses with Brotli or, for clients that do not take it, gzip. Our own files were compressed
//! while the program was built, as well as Brotli can; answers are compressed quickly.
//!
//! Not every response is compressed. One that holds a secret beside text a stranger can choose tells the secret by
//! its length (BREACH). So there are three ways in, and no others: files and documents, which hold no secret, are
//! compressed once and kept; [`handle`] is put around routes whose answers never hold one: the dashboard's pages
//! (a session is a cookie, forms need no token) and the numbers of the history; and [`handle_marked`] is put around
//! routes some of whose answers hold none and say so: the waiting page of a visitor whose token is a cookie. Calls
//! that answer with a token, a position or a job's payload are sent as they are.

use std::io::Write;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use http_body::Body as _;
use http_body_util::BodyExt;

/// Smaller bodies gain nothing.
const LEAST_BYTES: u64 = 860;
/// Larger bodies are sent as they are.
const MOST_BYTES: u64 = 4 * 1024 * 1024;

/// A way to compress, as in `Content-Encoding`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentCoding {
    Brotli,
    Gzip,
}

impl ContentCoding {
    fn word(self) -> &'static str {
        match self {
            ContentCoding::Brotli => "br",
            ContentCoding::Gzip => "gzip",
        }
    }
}

/// Tells whether the client takes a coding.
pub(crate) fn accepts(headers: &HeaderMap, coding: ContentCoding) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).into_iter();
    let mut offers = values.filter_map(|value| value.to_str().ok()).flat_map(|v| v.split(','));
    offers.any(|offer| {
        let mut parts = offer.split(';').map(str::trim);
        let is_named = parts.next().is_some_and(|word| word.eq_ignore_ascii_case(coding.word()));
        // q=0, q=0.0 … mean: not this one.
        let refused =
            |part: &str| part.strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0_f32));
        is_named && !parts.any(refused)
    })
}

/// Compresses some bytes with gzip: quickly for one answer, or well for a file that is sent many times. `None` when
/// nothing is gained.
pub(crate) fn gzip(content: &[u8], well: bool) -> Option<Vec<u8>> {
    let level = flate2::Compression::new(if well { 9 } else { 5 });
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), level);
    writer.write_all(content).ok()?;
    writer.finish().ok().filter(|packed| packed.len() < content.len())
}

/// Compresses some bytes with Brotli, quickly. `None` when nothing is gained.
fn brotli(content: &[u8]) -> Option<Vec<u8>> {
    let options = brotli::enc::BrotliEncoderParams {
        // Of eleven: pages are made and compressed for each request.
        quality: 5,
        // 256 KiB: pages are smaller, and the encoder's memory grows with it.
        lgwin: 18,
        size_hint: content.len(),
        ..Default::default()
    };
    let mut packed = Vec::new();
    brotli::BrotliCompress(&mut &content[..], &mut packed, &options).ok()?;
    Some(packed).filter(|packed| packed.len() < content.len())
}

/// Says in the headers of a response that it is compressed.
pub(crate) fn mark(headers: &mut HeaderMap, coding: ContentCoding) {
    headers.remove(header::CONTENT_LENGTH);
    headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding.word()));
}

/// Says that a response depends on what the client accepts.
pub(crate) fn vary(headers: &mut HeaderMap) {
    headers.append(header::VARY, HeaderValue::from_static("accept-encoding"));
}

/// Compresses the answers of the routes it is put around.
pub(crate) async fn handle(request: Request, next: Next) -> Response {
    let codings = [ContentCoding::Brotli, ContentCoding::Gzip].into_iter();
    let accepted = codings
        .filter(|_| request.method() == Method::GET)
        .find(|coding| accepts(request.headers(), *coding));
    compressed(next.run(request).await, accepted).await
}

/// Mark in the extensions of a response whose body holds no secret.
#[derive(Clone, Copy, Debug)]
pub struct HoldsNoSecret;

/// Compresses those answers of the routes it is put around that are marked with [`HoldsNoSecret`]. With gzip only:
/// a public page may be loaded by thousands at once, and Brotli takes more time and memory for each.
pub async fn handle_marked(request: Request, next: Next) -> Response {
    let accepted =
        request.method() == Method::GET && accepts(request.headers(), ContentCoding::Gzip);
    let response = next.run(request).await;
    match response.extensions().get::<HoldsNoSecret>() {
        Some(_) => compressed(response, accepted.then_some(ContentCoding::Gzip)).await,
        None => response,
    }
}

async fn compressed(mut response: Response, accepted: Option<ContentCoding>) -> Response {
    let size = response.body().size_hint().exact().unwrap_or(0);
    let fits = response.status() == StatusCode::OK
        && (LEAST_BYTES..=MOST_BYTES).contains(&size)
        && !response.headers().contains_key(header::CONTENT_ENCODING)
        && !response.headers().contains_key(header::SET_COOKIE);
    if !fits {
        return response;
    }
    vary(response.headers_mut());
    let Some(coding) = accepted else { return response };
    let (mut parts, body) = response.into_parts();
    let Ok(content) = body.collect().await.map(http_body_util::Collected::to_bytes) else {
        return Response::from_parts(parts, Body::empty());
    };
    let packed = match coding {
        ContentCoding::Brotli => brotli(&content),
        ContentCoding::Gzip => gzip(&content, false),
    };
    match packed {
        Some(packed) => {
            mark(&mut parts.headers, coding);
            Response::from_parts(parts, Body::from(packed))
        }
        None => Response::from_parts(parts, Body::from(content)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_who_take_it_get_it() {
        for (text, gzip, brotli) in [
            ("gzip, deflate, br", true, true),
            ("br;q=0.9, GZIP;q=0.5", true, true),
            ("gzip;q=0", false, false),
            ("gzip;q=0.0, br", false, true),
            ("brotli, br;q=0", false, false),
            ("identity", false, false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(text));
            assert_eq!(accepts(&headers, ContentCoding::Gzip), gzip, "{text}");
            assert_eq!(accepts(&headers, ContentCoding::Brotli), brotli, "{text}");
        }
        assert!(!accepts(&HeaderMap::new(), ContentCoding::Gzip));
    }

    #[test]
    fn what_is_compressed_comes_back() {
        let text = "the tide comes and the tide goes ".repeat(100);
        for well in [false, true] {
            let packed = gzip(text.as_bytes(), well).unwrap();
            let mut plain = String::new();
            let mut reader = flate2::read::GzDecoder::new(packed.as_slice());
            std::io::Read::read_to_string(&mut reader, &mut plain).unwrap();
            assert_eq!(plain, text);
        }
        assert_eq!(gzip(b"x", true), None, "it would be longer");
        let packed = brotli(text.as_bytes()).unwrap();
        let mut plain = Vec::new();
        brotli::BrotliDecompress(&mut packed.as_slice(), &mut plain).unwrap();
        assert_eq!(plain, text.as_bytes());
        assert_eq!(brotli(b"x"), None, "it would be longer");
    }
}
