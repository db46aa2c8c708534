//! The waiting page as it would look with the settings that are being edited.

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use room::QueueId;
use serde::Deserialize;
use serde_json::Value;

use crate::error::api_error;
use crate::service::RoomState;
use crate::waiting_page::brand::{self, Brand};
use crate::waiting_page::{self, i18n};
use web::ApiError;
use web::extract::{Path, Query};

/// Values of the form. A value that is not valid yet is left out, as while somebody is typing.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WaitingPreviewQuery {
    name: Option<String>,
    color: Option<String>,
    logo: Option<String>,
    message: Option<String>,
    lang: Option<String>,
}

/// Serves the page.
pub(crate) async fn page(
    State(state): State<RoomState>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Query(query): Query<WaitingPreviewQuery>,
) -> Result<Response, ApiError> {
    let id = QueueId::parse(&id).map_err(|_| ApiError::not_found("queue not found"))?;
    let mut queue = state.room.queue(&id).await.map_err(api_error)?;
    if let Some(name) = query.name {
        queue.config.name = name.chars().filter(|c| !c.is_control()).take(200).collect();
    }
    if let Some(text) = query.message {
        queue.config.message.clear();
        let text: String = text.chars().take(1_000).collect();
        if !text.trim().is_empty() {
            queue.config.message.insert("en".to_owned(), Value::String(text));
        }
    }
    let mut brand = Brand::of(&queue.config);
    if let Some(Ok(color)) = query.color.as_deref().map(brand::check_color) {
        brand.color = Some(color).filter(|color| !color.is_empty());
    }
    if let Some(Ok(logo)) = query.logo.as_deref().map(brand::check_logo) {
        brand.logo = Some(logo).filter(|logo| !logo.is_empty());
    }
    let style = brand
        .color
        .as_deref()
        .map(|color| format!("/room/{id}/preview.css?color={}", web::middleware::percent(color)));
    let words = i18n::pick(query.lang.as_deref(), &headers);
    Ok(waiting_page::preview(&queue, brand, style, words, state.app.store().now()))
}

/// Serves the colours of the page.
pub(crate) async fn style(Query(query): Query<WaitingPreviewQuery>) -> Response {
    let color = query.color.as_deref().and_then(|color| brand::check_color(color).ok());
    let brand = Brand { color: color.filter(|color| !color.is_empty()), logo: None };
    let mut response = brand.style();
    let private = HeaderValue::from_static("private, max-age=600");
    response.headers_mut().insert(header::CACHE_CONTROL, private);
    response.into_response()
}
