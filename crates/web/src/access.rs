//! The caller's identity, and the tokens of others.

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::from_fn;
use axum::response::IntoResponse;
use serde::Serialize;
use store::Millis;
use utoipa::ToSchema;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt};
use utoipa_axum::routes;

use crate::app::App;
use crate::audit::Note;
use crate::auth::{NewToken, Principal, Role, Token};
use crate::error::ApiError;
use crate::extract::{Json, Path, Query};
use crate::idempotency::{IdempotencyKey, once};
use crate::page::{Page, PageQuery};
use crate::routes::Routes;
use crate::time::Timestamp;

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes {
        worker: OpenApiRouter::new().routes(routes!(work_me)),
        viewer: OpenApiRouter::new().routes(routes!(me)),
        admin: OpenApiRouter::new()
            .routes(routes!(list, create).layer(from_fn(once)))
            .routes(routes!(revoke)),
        ..Routes::default()
    }
}

/// Show the identity behind the credential.
#[utoipa::path(get, path = "/api/v1/me", tag = "access", operation_id = "get_identity",
    responses((status = 200, description = "The one who asks.", body = Principal)))]
async fn me(principal: Principal) -> Json<Principal> {
    Json(principal)
}

/// Show the identity behind a worker's token, and its scopes.
#[utoipa::path(get, path = "/api/v1/worker/me", tag = "access", operation_id = "get_worker_identity",
    responses((status = 200, description = "The one who asks.", body = Principal)))]
async fn work_me(principal: Principal) -> Json<Principal> {
    Json(principal)
}

/// A token, without its secret.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Token)]
struct TokenView {
    /// Short id, the start of the secret's hash.
    id: String,
    /// Its name, chosen by the person who made it.
    name: String,
    /// Its role.
    role: Role,
    /// The scopes a worker's token is narrowed to; empty means no narrowing.
    scopes: Vec<String>,
    /// Time at which it was made.
    created_at: Timestamp,
    /// Name of the token it was made with.
    created_by: String,
}

impl From<Token> for TokenView {
    fn from(token: Token) -> TokenView {
        let Token { id, name, role, scopes, created_ms, created_by } = token;
        let created_at = Timestamp(Millis(created_ms));
        TokenView { id, name, role, scopes, created_at, created_by }
    }
}

/// A new token with its secret.
#[derive(Debug, Serialize, ToSchema)]
struct CreatedToken {
    /// The token.
    token: TokenView,
    /// The secret, shown this once; only its hash is kept.
    secret: String,
}

/// List the tokens, newest first, without their secrets.
#[utoipa::path(get, path = "/api/v1/tokens", tag = "access", params(PageQuery), operation_id = "list_tokens",
    responses((status = 200, description = "A page of tokens.", body = Page<TokenView>)))]
async fn list(
    State(app): State<App>,
    Query(query): Query<PageQuery>,
) -> Result<Json<Page<TokenView>>, ApiError> {
    let (limit, offset) = (query.limit()?, query.offset()?);
    let tokens = app.auth().tokens(app.store()).await?.into_iter().skip(offset).take(limit);
    Ok(Json(Page::at(offset, limit, tokens.map(TokenView::from).collect())))
}

/// Create a token.
#[utoipa::path(post, path = "/api/v1/tokens", tag = "access", operation_id = "create_token", request_body = NewToken,
    params(IdempotencyKey),
    responses((status = 201, description = "Made; the secret is shown this once.", body = CreatedToken),
        (status = 409, description = "There are as many as there may be, or the idempotency key was \
            used for another request.", body = crate::error::ErrorBody)))]
async fn create(
    State(app): State<App>,
    principal: Principal,
    Json(new): Json<NewToken>,
) -> Result<impl IntoResponse, ApiError> {
    let (token, secret) = app.auth().create_token(app.store(), new, &principal.name).await?;
    let note = Note::new("token.create", &token.id).change((), &token);
    let body = CreatedToken { token: token.into(), secret: secret.reveal().to_owned() };
    Ok((StatusCode::CREATED, Extension(note), Json(body)))
}

/// Revoke a token; its sessions end with it.
#[utoipa::path(delete, path = "/api/v1/tokens/{id}", tag = "access", operation_id = "revoke_token",
    params(("id" = String, Path, description = "Short id of the token.")),
    responses((status = 200, description = "Revoked.", body = TokenView)))]
async fn revoke(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<impl IntoResponse, ApiError> {
    let token = app
        .auth()
        .revoke_token(app.store(), &id)
        .await?
        .ok_or_else(|| ApiError::not_found("token not found"))?;
    let note = Note::new("token.revoke", &token.id).change(&token, ());
    Ok((Extension(note), Json(TokenView::from(token))))
}
