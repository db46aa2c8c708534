//! Authentication and authorization of every guarded route: find the credential, check the role, refuse
//! requests that another site made a browser send, and write every change to the audit trail.
//!
//! A change runs on a task of its own together with its audit entry, so a client that hangs up cannot
//! have the one without the other. A stream ends with the credential it was opened with.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use futures_util::FutureExt;
use tracing::Instrument;

use super::credential::Credential;
use super::session::cookie_of;
use super::{Principal, Role};
use crate::app::App;
use crate::audit;
use crate::client::Client;
use crate::error::ApiError;
use crate::idempotency;
use crate::middleware::RefusalMark;
use crate::sse::EventsSlot;

const ADMIN_KEY: HeaderName = HeaderName::from_static("x-admin-key");

/// The longest a change may take; long after the store's own timeouts.
pub(crate) const CHANGE_DEADLINE: Duration = Duration::from_secs(60);

/// The permission a route asks of its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Any role.
    AnyRole,
    /// Do work: role worker, operator or admin.
    Worker,
    /// Look.
    Viewer,
    /// Run things.
    Operator,
    /// Own things.
    Admin,
}

impl Need {
    /// The word of the least role that will do.
    pub fn word(self) -> &'static str {
        match self {
            Need::AnyRole | Need::Worker => "worker",
            Need::Viewer => "viewer",
            Need::Operator => "operator",
            Need::Admin => "admin",
        }
    }

    /// Tells whether this role is enough.
    pub fn met_by(self, role: Role) -> bool {
        match self {
            Need::AnyRole => true,
            Need::Worker => matches!(role, Role::Worker | Role::Operator | Role::Admin),
            Need::Viewer => role >= Role::Viewer,
            Need::Operator => role >= Role::Operator,
            Need::Admin => role >= Role::Admin,
        }
    }
}

/// The configuration of the middleware.
#[derive(Debug, Clone)]
pub(crate) struct Requirement {
    pub(crate) app: App,
    pub(crate) need: Need,
    /// The handler writes the audit entry itself, from the one in the request's extensions.
    pub(crate) self_audited: bool,
    /// A page: send people to the login instead of an error.
    pub(crate) page: bool,
}

/// The middleware.
pub(crate) async fn check(
    State(requirement): State<Requirement>,
    mut request: Request,
    next: Next,
) -> Response {
    let Requirement { app, need, self_audited, page } = requirement;
    let principal = match identify(&app, request.headers(), request.method()).await {
        Ok(principal) => principal,
        Err(error) => {
            if let Some(entry) = wrong_credential(&request, &error) {
                audit::write_refusal(&app, entry.client.clone(), &entry).await;
            }
            if page && error.status() == StatusCode::UNAUTHORIZED {
                return to_login(&request);
            }
            return error.refusing().into_response();
        }
    };
    if !need.met_by(principal.role) {
        let mut entry = audit::Entry::of_request(&request, &principal);
        entry.set_status(StatusCode::FORBIDDEN);
        let subject = format!("{} {}", entry.token_id, entry.action);
        audit::write_refusal(&app, subject, &entry).await;
        return ApiError::forbidden(format!(
            "this needs role {}, and {} has role {}",
            need.word(),
            principal.name,
            principal.role
        ))
        .refusing()
        .into_response();
    }
    let audited = is_change(request.method())
        && match need {
            Need::Operator | Need::Admin => true,
            // What programs do there is what jobs are for; what people do is on record.
            Need::Worker => principal.role != Role::Worker,
            Need::AnyRole | Need::Viewer => false,
        };
    let entry = audited.then(|| audit::Entry::of_request(&request, &principal));
    request.extensions_mut().insert(principal);
    if request.headers().contains_key(idempotency::KEY) {
        // For `idempotency::once`, which is a layer of single routes.
        request.extensions_mut().insert(app.clone());
    }
    let credential = Credential::of(request.headers());
    if let Some(credential) = &credential {
        request.extensions_mut().insert(credential.clone());
    }
    match entry {
        Some(entry) if !self_audited => return change(app, request, next, entry).await,
        Some(entry) => _ = request.extensions_mut().insert(entry),
        None => {}
    }
    let response = next.run(request).await;
    if let (Some(credential), Some(events)) =
        (credential, response.extensions().get::<EventsSlot>())
    {
        events.until(credential.ended(app));
    }
    response
}

/// Runs a change and writes its audit entry, both or neither, whether or not the client waits.
async fn change(app: App, request: Request, next: Next, entry: audit::Entry) -> Response {
    let tasks = app.tasks().clone();
    let both = async move {
        let mut pending = match audit::begin(&app, entry).await {
            Ok(pending) => pending,
            Err(error) => return Ok(error.into_response()),
        };
        let handled = AssertUnwindSafe(next.run(request)).catch_unwind();
        let handled = match tokio::time::timeout(CHANGE_DEADLINE, handled).await {
            Ok(Ok(mut response)) => {
                pending.take_note(&mut response);
                Ok(response)
            }
            Ok(Err(panic)) => {
                pending.entry.set_status(StatusCode::INTERNAL_SERVER_ERROR);
                Err(panic)
            }
            Err(_) => {
                let error = ApiError::unavailable(
                    "TOO_SLOW",
                    "the change did not finish in time; look whether it was made before you repeat it",
                );
                pending.entry.set_status(error.status());
                Ok(error.into_response())
            }
        };
        pending.finish(&app).await;
        handled
    };
    match tasks.spawn(store::trace::carry(both.in_current_span())).await {
        Ok(Ok(response)) => response,
        // The middleware catches panics of handlers.
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(error) => ApiError::internal(&error).into_response(),
    }
}

/// The entry about a wrong token, or about a change another site made a browser send. A session that
/// has ended is neither.
fn wrong_credential(request: &Request, error: &ApiError) -> Option<audit::Entry> {
    let wrong_token =
        error.status() == StatusCode::UNAUTHORIZED && token_of(request.headers()).is_some();
    if !wrong_token && error.status() != StatusCode::FORBIDDEN {
        return None;
    }
    let mut entry = audit::Entry {
        who: "unknown".to_owned(),
        action: "auth.refused".to_owned(),
        target: format!("{} {}", request.method(), request.uri().path()),
        client: client_of(request),
        request_id: crate::middleware::request_id(request.extensions()),
        ..audit::Entry::default()
    };
    entry.set_status(error.status());
    Some(entry)
}

fn client_of(request: &Request) -> String {
    let client = request.extensions().get::<Client>();
    client.map_or_else(String::new, |client| client.ip.to_string())
}

/// Finds and checks the credential: a bearer token, `X-Admin-Key`, or the session cookie.
pub async fn identify(
    app: &App,
    headers: &HeaderMap,
    method: &Method,
) -> Result<Principal, ApiError> {
    if let Some(token) = token_of(headers) {
        return app.auth().by_token(app.store(), token).await?.ok_or_else(|| {
            ApiError::unauthorized("this token is not valid: it is wrong, revoked or expired")
        });
    }
    let Some(cookie) = cookie_of(headers) else {
        return Err(ApiError::unauthorized(
            "no credential: send Authorization: Bearer <token>, or log in to the dashboard",
        ));
    };
    if is_change(method) {
        same_origin(headers)?;
    }
    app.auth()
        .by_session(app.store(), cookie, &app.settings())
        .await?
        .ok_or_else(|| ApiError::unauthorized("this session has ended; log in again"))
}

/// Checks the credential of a request whose route is public because not every caller needs one; `None`
/// if it has none.
///
/// # Errors
/// The credential is not valid, or its role is not enough.
pub async fn identify_if_any(
    app: &App,
    headers: &HeaderMap,
    method: &Method,
    need: Need,
) -> Result<Option<Principal>, ApiError> {
    if credential(headers).is_none() {
        return Ok(None);
    }
    let principal = identify(app, headers, method).await.map_err(ApiError::refusing)?;
    if !need.met_by(principal.role) {
        let message = format!(
            "this needs role {}, and this credential has role {}",
            need.word(),
            principal.role
        );
        return Err(ApiError::forbidden(message).refusing());
    }
    Ok(Some(principal))
}

/// The credential of the product as it was sent: a token, or the session of the dashboard.
pub fn credential(headers: &HeaderMap) -> Option<&str> {
    token_of(headers).or_else(|| cookie_of(headers))
}

pub(super) fn token_of(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    bearer.or_else(|| headers.get(ADMIN_KEY)?.to_str().ok())
}

fn is_change(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// Refuses a request that another site made the browser send. Browsers say so in
/// `Sec-Fetch-Site`; older ones are known by `Origin`. A cookie without either is no browser of ours.
pub fn same_origin(headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let same = match (text("sec-fetch-site"), text("origin")) {
        (Some(site), _) => matches!(site, "same-origin" | "none"),
        (None, Some(origin)) => {
            let host = origin.split_once("://").map(|(_, host)| host);
            host.is_some() && host == text("host")
        }
        (None, None) => false,
    };
    if same {
        return Ok(());
    }
    Err(ApiError::new(
        StatusCode::FORBIDDEN,
        "CROSS_ORIGIN",
        "a change with a session cookie must come from the dashboard's own pages",
    ))
}

fn to_login(request: &Request) -> Response {
    let target = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let mut response = Redirect::to(&format!("/login?next={}", crate::middleware::percent(target)))
        .into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.extensions_mut().insert(RefusalMark);
    response
}

impl audit::Entry {
    fn of_request(request: &Request, principal: &Principal) -> audit::Entry {
        let route = request
            .extensions()
            .get::<axum::extract::MatchedPath>()
            .map_or_else(|| request.uri().path().to_owned(), |path| path.as_str().to_owned());
        audit::Entry {
            who: principal.name.clone(),
            token_id: principal.token_id.clone(),
            role: principal.role.word().to_owned(),
            action: format!("{} {route}", request.method()),
            target: request.uri().path().to_owned(),
            client: client_of(request),
            request_id: crate::middleware::request_id(request.extensions()),
            ..audit::Entry::default()
        }
    }
}
