//! The same events as server-sent events, for networks that let no WebSocket through.

use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use bytes::Bytes;
use desk::chat::{CONNECTION_LEASE, Listener, LiveEncoding, LiveEvent, LiveStart};
use desk::users::{UserSessionId, WatchState};
use desk::{AgentId, UserId};
use futures_util::{StreamExt, stream};
use serde::Deserialize;
use serde_json::json;
use store::events::EventId;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use web::extract::Query;
use web::sse::{self, Sse};
use web::{ApiError, Routes};

use super::caller::{StaffCaller, bearer, check_visitor};
use super::socket::holder_of;
use crate::error::DeskApiError;
use crate::service::DeskState;

/// Interval at which the lease of an agent who follows events is renewed.
const RENEWAL: Duration = Duration::from_secs(15);
/// Reconnect delay of a client that lost the stream.
const RETRY: Duration = Duration::from_secs(2);

pub(super) fn routes() -> Routes<DeskState> {
    Routes {
        public: OpenApiRouter::new().routes(routes!(visitor_events)).routes(routes!(agent_events)),
        ..Routes::default()
    }
}

/// Selects an agent's events. The session comes by cookie or header.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct AgentEventsQuery {
    /// The last event that was seen, where the header `Last-Event-ID` cannot be sent.
    last_event_id: Option<String>,
}

/// Selects a visitor's events.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct VisitorEventsQuery {
    /// A one-time ticket instead of a token.
    ticket: Option<String>,
    /// The last event that was seen, where the header `Last-Event-ID` cannot be sent.
    last_event_id: Option<String>,
}

/// Follow one's own conversations as server-sent events.
#[utoipa::path(get, path = "/api/v1/widget/events", tag = "desk", operation_id = "follow_own_events", params(VisitorEventsQuery),
    responses((status = 200, description = "Events.", content_type = "text/event-stream", body = String)))]
async fn visitor_events(
    State(state): State<DeskState>,
    headers: HeaderMap,
    Query(query): Query<VisitorEventsQuery>,
) -> Result<Sse, DeskApiError> {
    let (id, session) = match (&query.ticket, bearer(&headers)) {
        (Some(ticket), _) => holder_of(&state, ticket, "visitor").await?,
        (None, Some(token)) => {
            let (id, session) = check_visitor(&state, token).await?;
            (id.to_string(), session)
        }
        (None, None) => return Err(ApiError::unauthorized("no session").into()),
    };
    let visitor = UserId::parse(&id)?;
    let last = query.last_event_id.as_deref();
    follow(&state, Listener::Visitor(visitor.clone()), visitor, session, &headers, last).await
}

/// Follow an agent's live events as server-sent events. Like a socket, the stream keeps the agent online.
#[utoipa::path(get, path = "/api/v1/conversations/events", tag = "desk", operation_id = "follow_events", params(AgentEventsQuery),
    responses((status = 200, description = "Events.", content_type = "text/event-stream", body = String)))]
async fn agent_events(
    State(state): State<DeskState>,
    headers: HeaderMap,
    caller: StaffCaller,
    Query(query): Query<AgentEventsQuery>,
) -> Result<Sse, DeskApiError> {
    let StaffCaller::Agent(agent, session) = caller else {
        return Err(super::caller::not_allowed("events are for agents; log in to the desk").into());
    };
    let user = state.chat()?.user_of_agent(&agent.id)?;
    let last = query.last_event_id.as_deref();
    follow(&state, Listener::Agent(agent.id), user, session, &headers, last).await
}

async fn follow(
    state: &DeskState,
    listener: Listener,
    user: UserId,
    session: UserSessionId,
    headers: &HeaderMap,
    last_event_id: Option<&str>,
) -> Result<Sse, DeskApiError> {
    let chat = state.chat()?.clone();
    let given = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let given = given.or(last_event_id).filter(|text| !text.is_empty());
    let resume: Option<EventId> = given
        .map(|text| text.parse())
        .transpose()
        .map_err(|_| ApiError::invalid_field("last_event_id", "the id of an event"))?;
    let mut watch = state.desk.watcher.watch(&user, Some(&session)).await?;
    if !matches!(watch.state(), WatchState::Valid(_)) {
        return Err(ApiError::unauthorized("this session has ended").into());
    }
    let LiveStart { subscription, backlog, is_resumed, place } =
        chat.listen(listener.clone(), resume).await?;
    let ready = json!({ "resume": place.to_string(), "resumed": is_resumed });
    let mut first = vec![sse::event("ready", Some(&place.to_string()), &ready.to_string())];
    first.extend(backlog.iter().filter_map(|event| encode(event, &listener)));
    let lease = match &listener {
        Listener::Agent(agent) => Some(EventsLease::new(chat, agent.clone())),
        Listener::Visitor(_) => None,
    };
    let rest = stream::unfold(
        (subscription, listener, lease),
        async |(mut events, listener, mut lease)| {
            loop {
                tokio::select! {
                    event = events.next() => {
                        let frame = encode(&*event?, &listener);
                        if let Some(frame) = frame {
                            return Some((frame, (events, listener, lease)));
                        }
                    }
                    () = next_renewal(&mut lease) => {
                        if let Some(lease) = &lease {
                            // Boxed: a visitor's stream has no room for it.
                            Box::pin(lease.renew()).await;
                        }
                    }
                }
            }
        },
    );
    let ended = async move { while matches!(watch.changed().await, WatchState::Valid(_)) {} };
    let events = stream::iter(first).chain(rest).take_until(Box::pin(ended));
    Ok(Sse::following(&state.app, RETRY, events))
}

fn encode(event: &LiveEvent, listener: &Listener) -> Option<Bytes> {
    event.encoded_for(listener, LiveEncoding::ServerSent, |data| {
        sse::event(&event.kind, Some(&event.id.to_string()), data)
    })
}

/// Waits until the lease is to be renewed; without one, for ever.
async fn next_renewal(lease: &mut Option<EventsLease>) {
    match lease {
        Some(lease) => {
            lease.ticks.tick().await;
        }
        None => std::future::pending().await,
    }
}

/// The lease of an agent who follows events. Ended with the stream.
struct EventsLease {
    chat: desk::chat::Chat,
    agent: AgentId,
    connection: String,
    /// The first at once, then every [`RENEWAL`].
    ticks: tokio::time::Interval,
}

impl EventsLease {
    fn new(chat: desk::chat::Chat, agent: AgentId) -> EventsLease {
        let connection = format!("sse-{:016x}", fastrand::u64(..));
        EventsLease { chat, agent, connection, ticks: tokio::time::interval(RENEWAL) }
    }

    async fn renew(&self) {
        let lease = CONNECTION_LEASE;
        let renewed = self.chat.renew_connection(&self.agent, &self.connection, lease, false).await;
        if let Err(error) = renewed {
            tracing::debug!(%error, "lease not renewed; the next round does");
        }
    }
}

impl Drop for EventsLease {
    fn drop(&mut self) {
        let (chat, agent) = (self.chat.clone(), self.agent.clone());
        let connection = std::mem::take(&mut self.connection);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Err(error) = chat.end_connection(&agent, &connection).await {
                    tracing::debug!(%error, "lease not ended; it runs out");
                }
            });
        }
    }
}
