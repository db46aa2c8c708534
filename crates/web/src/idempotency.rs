//! The `Idempotency-Key` header of calls that create something: a repeated request gets the first
//! response again, and makes nothing.
//!
//! A request with a key reserves a record in the store before it runs, and puts its response there
//! afterwards. A record without a response is a request still in flight or, when its instance went
//! down meanwhile, one whose outcome is unknown; either way the call is not made a second time.
//!
//! Records belong to the credential of the caller. Their names and the keys they are encrypted with
//! are derived from it, so a response that holds a secret, such as a new token, cannot be read out of
//! the store.
//!
//! A creating route that asks for a credential takes part by [`once`] as a layer, and says so in
//! the document by [`IdempotencyKey`]; a public one that checks its callers itself takes [`once_as`]:
//!
//! ```
//! use axum::middleware::from_fn;
//! use tidegate_web::idempotency::{IdempotencyKey, once};
//! use tidegate_web::Routes;
//! use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt};
//! use utoipa_axum::routes;
//!
//! /// Create a thing.
//! #[utoipa::path(post, path = "/api/v1/things", tag = "things", params(IdempotencyKey),
//!     responses((status = 201, description = "Created.")))]
//! async fn create() -> axum::http::StatusCode { axum::http::StatusCode::CREATED }
//!
//! pub fn routes() -> Routes {
//!     let create = routes!(create).layer(from_fn(once));
//!     Routes { admin: OpenApiRouter::new().routes(create), ..Routes::default() }
//! }
//! ```

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use ring::aead;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use store::Key;
use store::redis::{self, AsyncCommands as _};
use utoipa::IntoParams;

use crate::app::App;
use crate::audit::Silent;
use crate::auth::require::{self, CHANGE_DEADLINE};
use crate::auth::{digest, hex};
use crate::error::ApiError;
use crate::{extract, keys};

/// The header.
pub(crate) const KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Longest accepted key.
const LONGEST_KEY_BYTES: usize = 200;
/// Time for which a repeated request gets the first response.
const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// Tells a repeated response from the first one.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The `Idempotency-Key` header of a creating call, for the OpenAPI document.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Header)]
pub struct IdempotencyKey {
    /// The same request under the same key makes nothing new and gets the first response again, for a
    /// day; another request under this key is refused with 409. Counts per credential. 1 to 200 bytes.
    #[param(rename = "Idempotency-Key")]
    #[expect(dead_code, reason = "documents the header that the layer reads")]
    key: Option<String>,
}

/// Reads the header; refuses a key that is empty, too long or not printable ASCII.
pub fn key_of(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    let Some(value) = headers.get(KEY) else { return Ok(None) };
    match value.to_str() {
        Ok(key) if (1..=LONGEST_KEY_BYTES).contains(&key.len()) => Ok(Some(key)),
        _ => Err(ApiError::invalid_field(
            "Idempotency-Key",
            "an idempotency key is 1 to 200 bytes of printable ASCII",
        )),
    }
}

/// Refuses a request that differs from the first one under its key.
pub fn reused() -> ApiError {
    ApiError::conflict(
        "IDEMPOTENCY_KEY_REUSED",
        "this idempotency key was used for another request; use a new key, or repeat the request as \
         it was",
    )
}

/// The middleware: runs a request with a key once, and answers its repetitions from the record.
pub async fn once(request: Request, next: Next) -> Response {
    if !request.headers().contains_key(KEY) {
        return next.run(request).await;
    }
    let Some(app) = request.extensions().get::<App>().cloned() else {
        return ApiError::internal(&"the route asks for no credential").into_response();
    };
    let credential = require::credential(request.headers()).unwrap_or_default().to_owned();
    once_as(&app, &credential, request, next).await
}

/// Does the same for a route that checks its callers itself. Call it once the credential is known to be
/// valid; it must be all that decides who the caller is, and hold no line break besides those between its
/// parts.
pub async fn once_as(app: &App, credential: &str, request: Request, next: Next) -> Response {
    match key_of(request.headers()) {
        Ok(None) => next.run(request).await,
        Ok(Some(key)) => {
            let slot = IdempotencySlot::of(&request, credential, key);
            run(app, slot, request, next).await.unwrap_or_else(IntoResponse::into_response)
        }
        Err(error) => error.into_response(),
    }
}

async fn run(
    app: &App,
    slot: IdempotencySlot,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let body = extract::read(body).await?;
    let fingerprint = fingerprint(&parts, &body);
    if !slot.reserve(app, &fingerprint).await? {
        return slot.replay(app, &fingerprint).await;
    }
    let response = next.run(Request::from_parts(parts, Body::from(body))).await;
    let status = response.status();
    if status.is_success() {
        return slot.keep(app, &fingerprint, response).await;
    }
    // Refused: nothing was made, and a corrected request may use the key. After any other failure it
    // is not certain that nothing was made.
    if status.is_client_error() || status == StatusCode::INSUFFICIENT_STORAGE {
        slot.free(app).await;
    }
    Ok(response)
}

/// Digest of what makes a request the same as another, beyond its method and path.
fn fingerprint(parts: &axum::http::request::Parts, body: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update(parts.uri.query().unwrap_or_default());
    hash.update("\n");
    hash.update(parts.headers.get(header::IF_MATCH).map_or(&b""[..], HeaderValue::as_bytes));
    hash.update("\n");
    hash.update(body);
    hex(&hash.finalize())
}

/// A record in the store.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    fingerprint: String,
    started_ms: i64,
    /// The encrypted response, once there is one: nonce and sealed [`KeptResponse`].
    response: Option<(Vec<u8>, Vec<u8>)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct KeptResponse {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

/// The place of one key of one caller: where its record is, and the key it is encrypted with.
struct IdempotencySlot {
    name: Key,
    secret: [u8; 32],
}

impl IdempotencySlot {
    fn of(request: &Request, credential: &str, key: &str) -> IdempotencySlot {
        // None of the other parts can hold a line break, so no two callers make the same text.
        let all = format!("{credential}\n{} {}\n{key}", request.method(), request.uri().path());
        IdempotencySlot {
            name: keys::idempotency(&digest(&format!("name\n{all}"))),
            secret: Sha256::digest(format!("seal\n{all}")).into(),
        }
    }

    /// Reserves the key for a request; `false` when it has a record already.
    async fn reserve(&self, app: &App, fingerprint: &str) -> Result<bool, ApiError> {
        let fingerprint = fingerprint.to_owned();
        let record = Record { fingerprint, started_ms: app.store().now().0, response: None };
        let reserved: Option<String> = self.set(app, &record, &["NX"]).await?;
        Ok(reserved.is_some())
    }

    /// Puts the response into the record and hands it on. Without a record of the response the call
    /// was made all the same, so its caller gets it.
    async fn keep(
        &self,
        app: &App,
        fingerprint: &str,
        response: Response,
    ) -> Result<Response, ApiError> {
        let (parts, body) = response.into_parts();
        let body = extract::read(body).await?;
        let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
        let headers = parts.headers.iter();
        let kept = KeptResponse {
            status: parts.status.as_u16(),
            headers: headers
                .filter_map(|(name, value)| Some((name.to_string(), text(value)?)))
                .collect(),
            body: String::from_utf8_lossy(&body).into_owned(),
        };
        let stored = async {
            let fingerprint = fingerprint.to_owned();
            let response = Some(self.seal(&kept)?);
            let record = Record { fingerprint, started_ms: app.store().now().0, response };
            self.set(app, &record, &[]).await
        };
        if let Err(error) = stored.await {
            tracing::warn!(error = error.message(), "response under an idempotency key not kept");
        }
        Ok(Response::from_parts(parts, Body::from(body)))
    }

    /// The first response, or the reason why there is none.
    async fn replay(&self, app: &App, fingerprint: &str) -> Result<Response, ApiError> {
        let in_flight = || {
            ApiError::conflict(
                "IDEMPOTENCY_KEY_IN_USE",
                "the first request under this idempotency key is still in flight; repeat it later",
            )
            .retry_after(1)
        };
        let found: Option<Vec<u8>> =
            app.store().clone().get(&self.name).await.map_err(store::Error::from)?;
        // It expired or was given up a moment ago.
        let Some(found) = found else { return Err(in_flight()) };
        let record: Record =
            serde_json::from_slice(&found).map_err(|error| ApiError::internal(&error))?;
        if record.fingerprint != fingerprint {
            return Err(reused());
        }
        let Some(sealed) = record.response else {
            let age_ms = app.store().now().0.saturating_sub(record.started_ms);
            if u128::try_from(age_ms).unwrap_or(0) < CHANGE_DEADLINE.as_millis() {
                return Err(in_flight());
            }
            return Err(ApiError::conflict(
                "OUTCOME_UNKNOWN",
                "the first request under this idempotency key was cut off; look whether it was \
                 carried out, and use a new key if it was not",
            ));
        };
        let kept = self.unseal(sealed).ok_or_else(|| ApiError::internal(&"record not readable"))?;
        let mut response = Response::new(Body::from(kept.body));
        *response.status_mut() = StatusCode::from_u16(kept.status).unwrap_or(StatusCode::OK);
        for (name, value) in kept.headers {
            if let (Ok(name), Ok(value)) =
                (HeaderName::try_from(name), HeaderValue::try_from(value))
            {
                response.headers_mut().append(name, value);
            }
        }
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
        // Nothing was changed, so the audit trail gets no second entry.
        response.extensions_mut().insert(Silent);
        Ok(response)
    }

    /// Frees the key. If that fails, it is taken for a day.
    async fn free(&self, app: &App) {
        let gone: Result<i64, _> = app.store().clone().del(&self.name).await;
        if let Err(error) = gone {
            tracing::debug!(%error, "idempotency key not freed");
        }
    }

    async fn set(
        &self,
        app: &App,
        record: &Record,
        options: &[&str],
    ) -> Result<Option<String>, ApiError> {
        let json = serde_json::to_vec(record).map_err(|error| ApiError::internal(&error))?;
        let mut set = redis::cmd("SET");
        set.arg(&self.name).arg(json).arg("EX").arg(RETENTION.as_secs()).arg(options);
        Ok(set.query_async(&mut app.store().clone()).await.map_err(store::Error::from)?)
    }

    fn seal(&self, kept: &KeptResponse) -> Result<(Vec<u8>, Vec<u8>), ApiError> {
        let mut sealed = serde_json::to_vec(kept).map_err(|error| ApiError::internal(&error))?;
        let mut nonce = [0; aead::NONCE_LEN];
        getrandom::fill(&mut nonce).map_err(|error| ApiError::internal(&error))?;
        let unique = aead::Nonce::assume_unique_for_key(nonce);
        self.cipher()
            .and_then(|key| {
                key.seal_in_place_append_tag(unique, aead::Aad::empty(), &mut sealed).ok()
            })
            .ok_or_else(|| ApiError::internal(&"response not encrypted"))?;
        Ok((nonce.to_vec(), sealed))
    }

    fn unseal(&self, (nonce, mut sealed): (Vec<u8>, Vec<u8>)) -> Option<KeptResponse> {
        let nonce = aead::Nonce::try_assume_unique_for_key(&nonce).ok()?;
        let opened = self.cipher()?.open_in_place(nonce, aead::Aad::empty(), &mut sealed).ok()?;
        serde_json::from_slice(opened).ok()
    }

    fn cipher(&self) -> Option<aead::LessSafeKey> {
        let key = aead::UnboundKey::new(&aead::CHACHA20_POLY1305, &self.secret).ok()?;
        Some(aead::LessSafeKey::new(key))
    }
}
