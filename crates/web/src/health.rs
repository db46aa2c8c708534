//! `/livez` (the process answers), `/readyz` (it can do its work, and if not, why) and `/metrics`.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use store::redis;
use tokio::time::Instant;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::app::App;
use crate::auth::require;
use crate::error::ApiError;
use crate::extract::Json;
use crate::metrics::Exposition;
use crate::routes::Routes;
use crate::{keys, metrics};

/// Time the store may take to answer before the process calls itself not ready.
const STORE_DEADLINE: Duration = Duration::from_secs(1);

/// Time the outcome of a write counts, however often `/readyz` is asked.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// TTL of the probe's key.
const PROBE_TTL: Duration = Duration::from_secs(60);

/// The last try whether the store takes writes.
#[derive(Debug, Default)]
pub struct WriteProbe(tokio::sync::Mutex<Option<(Instant, Check)>>);

/// One thing that must hold for the process to do its work.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = HealthCheck)]
pub struct Check {
    /// The subject of the check.
    #[schema(example = "store")]
    pub name: String,
    /// True if it holds.
    pub ok: bool,
    /// The reason and what to do if it does not hold, otherwise a short word.
    pub reason: String,
}

impl Check {
    /// A check that holds.
    pub fn ok(name: &str, reason: impl Into<String>) -> Check {
        Check { name: name.to_owned(), ok: true, reason: reason.into() }
    }

    /// A check that fails.
    pub fn failed(name: &str, reason: impl Into<String>) -> Check {
        Check { name: name.to_owned(), ok: false, reason: reason.into() }
    }
}

/// Status of a process that answers, in the document.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "the schema of Liveness::status")]
enum LivenessStatus {
    /// It answers.
    Alive,
}

/// Status of a process, in the document.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "the schema of Readiness::status")]
enum ReadinessStatus {
    /// It can do its work.
    Ready,
    /// It cannot, for the reasons in `checks`.
    NotReady,
}

/// The readiness of the process.
#[derive(Debug, Serialize, ToSchema)]
pub struct Readiness {
    /// Its status.
    #[schema(value_type = ReadinessStatus)]
    pub status: &'static str,
    /// All checks.
    pub checks: Vec<Check>,
}

/// The process is alive.
#[derive(Debug, Serialize, ToSchema)]
struct Liveness {
    /// Its status.
    #[schema(value_type = LivenessStatus)]
    status: &'static str,
    /// Version of the program.
    version: &'static str,
}

/// The routes.
pub fn routes() -> Routes {
    Routes {
        public: OpenApiRouter::new()
            .routes(routes!(livez))
            .routes(routes!(readyz))
            .routes(routes!(metrics_text)),
        excluded: ["/livez", "/readyz", "/metrics"].map(str::to_owned).to_vec(),
        ..Routes::default()
    }
}

/// Check that the process is alive. Asks nothing of the store.
#[utoipa::path(get, path = "/livez", tag = "health", operation_id = "get_liveness",
    responses((status = 200, description = "It is.", body = Liveness)))]
async fn livez() -> Json<Liveness> {
    Json(Liveness { status: "alive", version: env!("CARGO_PKG_VERSION") })
}

/// Check that the process can do its work. Lists every reason why not.
#[utoipa::path(get, path = "/readyz", tag = "health", operation_id = "get_readiness",
    responses((status = 200, description = "It can.", body = Readiness),
        (status = 503, description = "It cannot, for these reasons.", body = Readiness)))]
async fn readyz(State(app): State<App>) -> Response {
    let checks = readiness(&app).await;
    let ready = checks.iter().all(|check| check.ok);
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let word = if ready { "ready" } else { "not_ready" };
    (status, Json(Readiness { status: word, checks })).into_response()
}

/// All checks: the store answers and takes writes, what the services need, and that the server is
/// not stopping.
pub async fn readiness(app: &App) -> Vec<Check> {
    let store = store_check(app).await;
    let writes = if store.ok {
        write_check(app).await
    } else {
        Check::failed("writes", "not tried, because the store does not answer")
    };
    let mut checks = vec![store, writes];
    for open in app.services() {
        checks.extend(open.running.health().await);
    }
    checks.push(if app.stopping() {
        Check::failed("serving", "the server is stopping")
    } else {
        Check::ok("serving", "accepting requests")
    });
    checks
}

pub(crate) async fn store_check(app: &App) -> Check {
    let mut store = app.store().clone();
    let ping = redis::cmd("PING");
    let ping = ping.query_async::<String>(&mut store);
    match tokio::time::timeout(STORE_DEADLINE, ping).await {
        Ok(Ok(_)) => Check::ok("store", "answers"),
        Ok(Err(error)) => match store::Error::from(error) {
            // A disk that cannot be written makes PING an error too, as in Redis. It is an answer,
            // and the next check says what is wrong.
            store::Error::ReadOnly { .. } => Check::ok("store", "answers"),
            error => {
                let error = crate::error::chain(&error);
                Check::failed("store", format!("the store answered: {error}"))
            }
        },
        Err(_) => Check::failed("store", "the store did not answer within a second"),
    }
}

/// Tries a write, at most once in [`PROBE_EVERY`]. In a cluster it goes to one of the nodes.
pub(crate) async fn write_check(app: &App) -> Check {
    // Held while the store is asked, so that of many at once only one asks.
    let mut last = app.write_probe().0.lock().await;
    if let Some((at, check)) = last.as_ref()
        && at.elapsed() < PROBE_EVERY
    {
        return check.clone();
    }
    let mut store = app.store().relaxed();
    let mut set = redis::cmd("SET");
    set.arg(keys::write_probe()).arg(app.store().now().0);
    set.arg("PX").arg(u64::try_from(PROBE_TTL.as_millis()).unwrap_or(u64::MAX));
    let check = match tokio::time::timeout(STORE_DEADLINE, set.query_async::<()>(&mut store)).await
    {
        Ok(Ok(())) => Check::ok("writes", "taken"),
        Ok(Err(error)) => Check::failed("writes", write_failure(&store::Error::from(error))),
        Err(_) => Check::failed("writes", "the store did not take a write within a second"),
    };
    *last = Some((Instant::now(), check.clone()));
    check
}

/// Says why a write failed, and what to do.
fn write_failure(error: &store::Error) -> String {
    match error {
        store::Error::Oom => "the store is out of memory and refuses writes; raise its limit \
            (store.max_memory, or maxmemory of Redis) or remove data"
            .to_owned(),
        store::Error::ReadOnly { message } => {
            let next = if message.contains("NOREPLICAS") {
                "bring its replicas back, or lower its min-replicas-to-write"
            } else if message.contains("READONLY") || message.contains("replica") {
                "name the primary in store.url"
            } else {
                "see to its disk and folder"
            };
            format!("the store refuses writes: {message}; {next}")
        }
        error => format!("a write failed: {}", crate::error::chain(error)),
    }
}

/// Get the metrics for Prometheus. Needs a credential unless the setting `http.open_metrics` is on.
#[utoipa::path(get, path = "/metrics", tag = "health", operation_id = "get_metrics", security((), ("token" = [])),
    responses((status = 200, description = "Prometheus text format, or OpenMetrics if the `Accept` header asks for it.", content(
            (String = "text/plain"), (String = "application/openmetrics-text"))),
        (status = 401, description = "No valid credential.", body = crate::error::ErrorBody),
        (status = 403, description = "Role not enough.", body = crate::error::ErrorBody)))]
async fn metrics_text(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    if !app.settings().open_metrics {
        let principal = require::identify(&app, request.headers(), request.method()).await?;
        if !require::Need::Viewer.met_by(principal.role) {
            return Err(ApiError::forbidden("metrics need role viewer"));
        }
    }
    let format = Exposition::accepted(request.headers());
    let readings = metrics::read(&app).await;
    let mut text = String::new();
    app.requests().own().write_metrics(&mut text, format);
    format.write(&mut text, metrics::recorder(), &readings);
    Ok(([(header::CONTENT_TYPE, format.content_type())], text).into_response())
}
