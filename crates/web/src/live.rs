//! One stream of live page parts per tab. A part is a piece of HTML with a topic's name; the server
//! renders each topic once per beat, however many tabs look at it, and sends it when it changed.
//!
//! Topics exist while somebody looks. What a topic shows is decided by the service whose fragment it names. One login may
//! follow only so many, so that it cannot use up what all share.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::SelectAll;
use parking_lot::Mutex;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tokio::sync::broadcast;
use tokio_stream::wrappers::BroadcastStream;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::app::App;
use crate::auth::require;
use crate::error::ApiError;
use crate::extract::Query;
use crate::routes::Routes;
use crate::sse::{self, Sse};

/// Time between renderings of a topic.
const EVERY: Duration = Duration::from_secs(2);
/// Most topics one tab may follow, most different ones a login may follow in all its tabs, and most
/// that exist at once.
const PER_TAB: usize = 8;
const PER_LOGIN: usize = 64;
const AT_ONCE: usize = 1024;

/// The topics somebody looks at.
#[derive(Debug, Default)]
pub struct LiveHub {
    topics: Mutex<HashMap<String, LiveTopic>>,
    /// The topics each login follows and in how many tabs, by a hash of its credential.
    logins: Mutex<HashMap<[u8; 32], HashMap<String, usize>>>,
}

/// A tab's share of what its login may follow; gives it back when dropped.
struct Share {
    app: App,
    login: [u8; 32],
    topics: Vec<String>,
}

impl Share {
    /// Counts different topics: they cost, not the number of tabs that look at one.
    fn take(app: &App, login: [u8; 32], topics: &[&str]) -> Option<Share> {
        let mut logins = app.hub().logins.lock();
        let followed = logins.entry(login).or_default();
        for topic in topics {
            *followed.entry((*topic).to_owned()).or_default() += 1;
        }
        let fits = followed.len() <= PER_LOGIN;
        drop(logins);
        let topics = topics.iter().map(|topic| (*topic).to_owned()).collect();
        let share = Share { app: app.clone(), login, topics };
        // One that does not fit is given back at once.
        fits.then_some(share)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut logins = self.app.hub().logins.lock();
        let Some(followed) = logins.get_mut(&self.login) else { return };
        for topic in &self.topics {
            if let Some(tabs) = followed.get_mut(topic) {
                *tabs = tabs.saturating_sub(1);
                if *tabs == 0 {
                    followed.remove(topic);
                }
            }
        }
        if followed.is_empty() {
            logins.remove(&self.login);
        }
    }
}

#[derive(Debug, Clone)]
struct LiveTopic {
    sender: broadcast::Sender<Bytes>,
    last: Arc<Mutex<Option<Bytes>>>,
}

impl LiveHub {
    /// Follows a topic: what it shows now, if known, and what it will show.
    fn follow(&self, app: &App, name: &str) -> Option<(Option<Bytes>, broadcast::Receiver<Bytes>)> {
        let mut topics = self.topics.lock();
        if let Some(topic) = topics.get(name) {
            let receiver = topic.sender.subscribe();
            return Some((topic.last.lock().clone(), receiver));
        }
        if topics.len() >= AT_ONCE {
            return None;
        }
        // Room for one: only the newest rendering matters to a tab that was slow.
        let (sender, receiver) = broadcast::channel(1);
        let topic = LiveTopic { sender, last: Arc::default() };
        topics.insert(name.to_owned(), topic.clone());
        app.tasks().spawn(render(app.clone(), name.to_owned(), topic));
        Some((None, receiver))
    }

    /// Removes a topic nobody looks at; says whether it did.
    fn drop_if_unseen(&self, name: &str) -> bool {
        let mut topics = self.topics.lock();
        let unseen = topics.get(name).is_none_or(|topic| topic.sender.receiver_count() == 0);
        if unseen {
            topics.remove(name);
        }
        unseen
    }
}

/// Renders a topic while somebody looks at it.
async fn render(app: App, name: String, topic: LiveTopic) {
    let mut shown = String::new();
    let mut beat = tokio::time::interval(EVERY);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = beat.tick() => {}
            () = app.stopped() => return,
        }
        if app.hub().drop_if_unseen(&name) {
            return;
        }
        let Some(part) = app.fragments().render(&app, &name).await else { continue };
        let html = part.into_string();
        if html == shown {
            continue;
        }
        let data = serde_json::json!({ "topic": name, "html": html }).to_string();
        let event = sse::event("part", None, &data);
        *topic.last.lock() = Some(event.clone());
        shown = html;
        // No receiver is no failure: the next beat removes the topic.
        let _ = topic.sender.send(event);
    }
}

/// The topics to follow.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct LiveQuery {
    /// Names of page parts, separated by spaces; at most 8.
    #[param(max_length = 1024, example = "overview")]
    topics: String,
}

/// Follow live parts of dashboard pages as server-sent events.
#[utoipa::path(get, path = "/api/v1/live", tag = "health", operation_id = "follow_live_parts", params(LiveQuery),
    responses((status = 200, description = "Events `part` with `{\"topic\", \"html\"}`.",
        content_type = "text/event-stream", body = String)))]
async fn follow(
    State(app): State<App>,
    Query(query): Query<LiveQuery>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, ApiError> {
    let names: Vec<&str> = query.topics.split(' ').filter(|name| !name.is_empty()).collect();
    if names.is_empty() || names.len() > PER_TAB || query.topics.len() > 1024 {
        return Err(ApiError::invalid_field("topics", "name 1 to 8 topics"));
    }
    let login = Sha256::digest(require::credential(&headers).unwrap_or_default()).into();
    let Some(share) = Share::take(&app, login, &names) else {
        let told = format!(
            "this login follows {PER_LOGIN} different live parts, the most one may; close some tabs"
        );
        return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_TOPICS", told)
            .retry_after(EVERY.as_secs()));
    };
    let mut all = SelectAll::new();
    let mut first = vec![Bytes::from_static(b"retry: 2000\nevent: hello\ndata: {}\n\n")];
    for name in names {
        if !app.fragments().has(name) {
            return Err(ApiError::invalid_field("topics", format!("unknown topic {name:?}")));
        }
        let Some((last, receiver)) = app.hub().follow(&app, name) else {
            return Err(ApiError::unavailable(
                "TOO_MANY_TOPICS",
                "too many different pages are being watched on this server; try again later",
            )
            .retry_after(EVERY.as_secs()));
        };
        first.extend(last);
        // A tab that was too slow gets the next rendering instead.
        all.push(BroadcastStream::new(receiver).filter_map(async |event| event.ok()).boxed());
    }
    // The share is given back with the stream.
    let events = futures_util::stream::iter(first).chain(all).map(move |event| {
        let _ = &share;
        event
    });
    Ok(Sse::new(&app, events))
}

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes { viewer: OpenApiRouter::new().routes(routes!(follow)), ..Routes::default() }
}
