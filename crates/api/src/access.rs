//! Who you are, and the tokens of others.

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::app::App;
use crate::audit::Note;
use crate::auth::{NewToken, Principal, Token};
use crate::error::ApiError;
use crate::extract::{Json, Path};
use crate::section::Section;

/// The routes.
pub(crate) fn section() -> Section {
    Section {
        worker: OpenApiRouter::new().routes(routes!(work_me)),
        viewer: OpenApiRouter::new().routes(routes!(me)),
        admin: OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(revoke)),
        ..Section::default()
    }
}

/// Who the credential stands for.
#[utoipa::path(get, path = "/api/v1/me", tag = "access",
    responses((status = 200, description = "The one who asks.", body = Principal)))]
async fn me(principal: Principal) -> Json<Principal> {
    Json(principal)
}

/// Who the worker's token stands for, and what it is narrowed to.
#[utoipa::path(get, path = "/api/v1/worker/me", tag = "access",
    responses((status = 200, description = "The one who asks.", body = Principal)))]
async fn work_me(principal: Principal) -> Json<Principal> {
    Json(principal)
}

/// All tokens, without their secrets.
#[derive(Debug, Serialize, ToSchema)]
struct Tokens {
    /// Newest first.
    tokens: Vec<Token>,
}

/// A new token with its secret.
#[derive(Debug, Serialize, ToSchema)]
struct CreatedToken {
    /// The token.
    token: Token,
    /// The secret, shown this once; only its hash is kept.
    secret: String,
}

/// All tokens.
#[utoipa::path(get, path = "/api/v1/tokens", tag = "access",
    responses((status = 200, description = "Without their secrets.", body = Tokens)))]
async fn list(State(app): State<App>) -> Result<Json<Tokens>, ApiError> {
    Ok(Json(Tokens { tokens: app.auth().tokens(app.store()).await? }))
}

/// Make a token.
#[utoipa::path(post, path = "/api/v1/tokens", tag = "access", request_body = NewToken,
    responses((status = 201, description = "Made; the secret is shown this once.", body = CreatedToken),
        (status = 409, description = "There are as many as there may be.", body = crate::error::ErrorBody)))]
async fn create(
    State(app): State<App>,
    principal: Principal,
    Json(new): Json<NewToken>,
) -> Result<impl IntoResponse, ApiError> {
    let (token, secret) = app.auth().create_token(app.store(), new, &principal.name).await?;
    let note = Note::new("token.create", &token.id).change((), &token);
    let body = CreatedToken { token, secret: secret.reveal().to_owned() };
    Ok((StatusCode::CREATED, Extension(note), Json(body)))
}

/// Revoke a token; its sessions end with it.
#[utoipa::path(delete, path = "/api/v1/tokens/{id}", tag = "access",
    params(("id" = String, Path, description = "Short id of the token.")),
    responses((status = 200, description = "Revoked.", body = Token)))]
async fn revoke(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<impl IntoResponse, ApiError> {
    let token = app
        .auth()
        .revoke_token(app.store(), &id)
        .await?
        .ok_or_else(|| ApiError::not_found("there is no token with this id"))?;
    let note = Note::new("token.revoke", &token.id).change(&token, ());
    Ok((Extension(note), Json(token)))
}
