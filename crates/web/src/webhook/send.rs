//! One attempt: connects to an address that was checked, sends, reads the status. No redirect is
//! followed, and the whole has a deadline.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{Request, StatusCode, header};
use bytes::Bytes;
use http_body_util::Full;
use ipnet::IpNet;
use ring::hmac;
use store::webhook::{AttemptOutcome, Delivery};

use super::Webhooks;
use super::address::TargetUrl;
use super::target::WebhookTarget;
use crate::auth::hex;
use crate::outbound::{self, OutboundAnswer, OutboundError};

/// Time for the whole attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(15);
/// Characters of an answer that go to the log.
const SHOWN_MAX: usize = 200;

/// The answer of a receiver.
struct ReceiverAnswer {
    status: StatusCode,
    retry_after: Option<Duration>,
    text: String,
}

impl Webhooks {
    /// Sends a delivery to its target.
    pub(super) async fn attempt(
        &self,
        target: &WebhookTarget,
        delivery: &Delivery,
        allowed: &[IpNet],
    ) -> AttemptOutcome {
        let sent =
            tokio::time::timeout(ATTEMPT_TIMEOUT, self.send(target, delivery, allowed)).await;
        let answer = match sent {
            Ok(Ok(answer)) => answer,
            Ok(Err(OutboundError::Refused(error))) => {
                return AttemptOutcome::Refused { status: None, error };
            }
            Ok(Err(OutboundError::Failed(error))) => {
                return AttemptOutcome::Failed { status: None, error, retry_after: None };
            }
            Err(_) => {
                let error = format!("no answer within {} seconds", ATTEMPT_TIMEOUT.as_secs());
                return AttemptOutcome::Failed { status: None, error, retry_after: None };
            }
        };
        let ReceiverAnswer { status, retry_after, text } = answer;
        let error = match status {
            _ if status.is_success() => {
                return AttemptOutcome::Delivered { status: status.as_u16() };
            }
            _ if status.is_redirection() => {
                format!("{status}: redirects are not followed; set the URL it points to")
            }
            _ if text.is_empty() => status.to_string(),
            _ => format!("{status}: {text}"),
        };
        let status_number = Some(status.as_u16());
        match status {
            StatusCode::GONE => AttemptOutcome::Refused { status: status_number, error },
            _ => AttemptOutcome::Failed { status: status_number, error, retry_after },
        }
    }

    async fn send(
        &self,
        target: &WebhookTarget,
        delivery: &Delivery,
        allowed: &[IpNet],
    ) -> Result<ReceiverAnswer, OutboundError> {
        let sealed = |error: crate::ApiError| OutboundError::Failed(error.message().to_owned());
        let url = self.url_of(target).map_err(sealed)?;
        let url = TargetUrl::parse(&url, allowed).map_err(OutboundError::Refused)?;
        let secret = self.secret_of(target).map_err(sealed)?;
        let body = target.format.body(delivery.body.get(), &target.context);
        let signature = sign(&secret, self.store.now().as_secs(), &body);
        let headers = [
            ("content-type", target.format.media_type()),
            ("tidegate-event", &delivery.event),
            ("tidegate-delivery", &delivery.id),
            ("tidegate-signature", &signature),
        ];
        let answer = self.post_to(&url, &headers, Bytes::from(body), allowed).await?;
        let OutboundAnswer { status, retry_after, body } = answer;
        let text = String::from_utf8_lossy(&body);
        let text = text.chars().filter(|c| !c.is_control()).take(SHOWN_MAX).collect();
        Ok(ReceiverAnswer { status, retry_after, text })
    }

    /// Posts a body to a URL that somebody else chose. Never to loopback or a private network, unless it is
    /// allowed. The caller sets the deadline.
    ///
    /// # Errors
    /// The URL is none, or nothing is sent there; the server does not answer.
    pub async fn post(
        &self,
        url: &str,
        headers: &[(&str, &str)],
        body: Bytes,
        allowed: &[IpNet],
    ) -> Result<OutboundAnswer, OutboundError> {
        let url = TargetUrl::parse(url, allowed).map_err(OutboundError::Refused)?;
        self.post_to(&url, headers, body, allowed).await
    }

    async fn post_to(
        &self,
        url: &TargetUrl,
        headers: &[(&str, &str)],
        body: Bytes,
        allowed: &[IpNet],
    ) -> Result<OutboundAnswer, OutboundError> {
        let mut request = Request::post(url.path())
            .header(header::HOST, url.authority())
            .header(header::USER_AGENT, concat!("Tidegate/", env!("CARGO_PKG_VERSION")))
            .header(header::CONNECTION, "close");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request
            .body(Full::new(body))
            .map_err(|error| OutboundError::Refused(error.to_string()))?;
        let addresses = url.resolve(allowed).await?;
        let tls = if url.is_https() { Some((url.host(), self.tls()?)) } else { None };
        // Each address was checked; no name is looked up again.
        outbound::send(&addresses, tls, request).await.map_err(OutboundError::Failed)
    }

    fn tls(&self) -> Result<Arc<rustls::ClientConfig>, OutboundError> {
        if let Some(config) = self.tls.get() {
            return Ok(Arc::clone(config));
        }
        let config = crate::serve::tls::client(None).map_err(failed)?;
        Ok(Arc::clone(self.tls.get_or_init(|| Arc::new(config))))
    }
}

/// Signs a body: `t=…,v1=…`, HMAC-SHA256 of the time in seconds, a dot and the body.
fn sign(secret: &str, seconds: i64, body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let tag = hmac::sign(&key, format!("{seconds}.{body}").as_bytes());
    format!("t={seconds},v1={}", hex(tag.as_ref()))
}

fn failed(error: impl std::error::Error) -> OutboundError {
    OutboundError::Failed(crate::error::chain(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_time_and_body() {
        // printf '1767225600.{"a":1}' | openssl dgst -sha256 -hmac whsec_test
        let signature = sign("whsec_test", 1_767_225_600, r#"{"a":1}"#);
        let (time, tag) = signature.split_once(",v1=").unwrap();
        assert_eq!((time, tag.len()), ("t=1767225600", 64));
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"whsec_test");
        let expected = hmac::sign(&key, br#"1767225600.{"a":1}"#);
        assert_eq!(tag, "6d204545ff126a339c00513d93603299c984074ce1331c3537c3f6c976b49019");
        assert_eq!(tag, hex(expected.as_ref()));
    }
}
