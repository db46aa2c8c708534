//! Search over everything, for the command palette: pages, settings and documents of the frame, and what each
//! service finds among its own things.

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::app::App;
use crate::auth::{Principal, Role};
use crate::error::ApiError;
use crate::extract::{Json, Query};
use crate::middleware::percent;
use crate::page::{Page, PageQuery};
use crate::pages::docs;
use crate::routes::Routes;

/// Most hits of one sort: queues, keys, settings; a service has at most twice as many in all.
pub const HITS_MAX: usize = 8;

/// Something that was found.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(example = json!({ "category": "queue", "title": "spring-sale", "note": "waiting room", "path": "/room/spring-sale" }))]
pub struct SearchHit {
    /// A word for what it is, such as `queue`.
    pub category: &'static str,
    /// Its name.
    pub title: String,
    /// A few words more.
    pub note: String,
    /// The page about it.
    pub path: String,
    /// The role that finds it.
    #[serde(skip)]
    needs: Role,
}

impl SearchHit {
    /// A hit.
    pub fn new(
        category: &'static str,
        title: impl Into<String>,
        note: impl Into<String>,
        path: impl Into<String>,
    ) -> SearchHit {
        let (title, note, path) = (title.into(), note.into(), path.into());
        SearchHit { category, title, note, path, needs: Role::Viewer }
    }

    /// Something that operators can do. The path leads to the form or the question about it, by the id of a dialog or
    /// of a button that asks before it acts: `/room#new-queue`.
    pub fn action(
        title: impl Into<String>,
        note: impl Into<String>,
        path: impl Into<String>,
    ) -> SearchHit {
        SearchHit { needs: Role::Operator, ..SearchHit::new("action", title, note, path) }
    }

    /// The same, found by admins only.
    #[must_use]
    pub fn for_admins(self) -> SearchHit {
        SearchHit { needs: Role::Admin, ..self }
    }
}

/// Tells whether every word of a text is in a title, whatever its case.
pub fn has_words(title: &str, text: &str) -> bool {
    let title = title.to_lowercase();
    text.to_lowercase().split_whitespace().all(|word| title.contains(word))
}

/// Actions of the frame, which are for admins: title, path.
const FRAME_ACTIONS: [(&str, &str); 2] =
    [("New token", "/settings#new-token"), ("New webhook", "/webhooks#new-webhook")];

/// The text to look for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SearchQuery {
    /// 2 to 100 characters.
    #[param(min_length = 2, max_length = 100, example = "sale")]
    text: String,
    /// Most items in the answer.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
    /// Position to continue from: `next_cursor` of the last answer. Left out: the beginning.
    cursor: Option<String>,
}

/// Search pages, settings, documents and the records of every service, for the command palette; those of the
/// services first. A few of each sort are found.
#[utoipa::path(get, path = "/api/v1/search", tag = "health", operation_id = "search_everything", params(SearchQuery),
    responses((status = 200, description = "What was found.", body = Page<SearchHit>)))]
async fn search(
    State(app): State<App>,
    principal: Principal,
    Query(query): Query<SearchQuery>,
) -> Result<Json<Page<SearchHit>>, ApiError> {
    let text = query.text.trim();
    let page = PageQuery { limit: query.limit, cursor: query.cursor };
    let (limit, offset) = (page.limit()?, page.offset()?);
    if !(2..=100).contains(&text.chars().count()) {
        return Err(ApiError::invalid_field("text", "look for 2 to 100 characters"));
    }
    let found = futures_util::future::join_all(
        app.services().iter().map(|open| open.running.search(&app, text)),
    );
    let mut hits: Vec<SearchHit> =
        found.await.into_iter().flat_map(|hits| hits.into_iter().take(2 * HITS_MAX)).collect();
    let fitting = FRAME_ACTIONS.into_iter().filter(|(title, _)| has_words(title, text));
    hits.extend(fitting.map(|(title, path)| SearchHit::action(title, "", path).for_admins()));
    hits.retain(|hit| principal.role >= hit.needs);
    // What can be done or looked at comes before where it is kept.
    hits.sort_by_key(|hit| hit.category == "key");
    let lower = text.to_lowercase();
    let settings = app.shown_settings();
    let named = settings.iter().filter(|setting| setting.name.to_lowercase().contains(&lower));
    hits.extend(named.take(HITS_MAX).map(|setting| {
        SearchHit::new(
            "setting",
            &setting.name,
            "",
            format!("/settings#{}", percent(&setting.name)),
        )
    }));
    hits.extend(
        docs::search(text)
            .into_iter()
            .take(HITS_MAX)
            .map(|hit| SearchHit::new("document", hit.title, hit.heading, hit.path)),
    );
    let more = hits.len() > offset.saturating_add(limit);
    let items = hits.into_iter().skip(offset).take(limit).collect();
    Ok(Json(Page::new(items, more.then_some(offset + limit))))
}

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes { viewer: OpenApiRouter::new().routes(routes!(search)), ..Routes::default() }
}
