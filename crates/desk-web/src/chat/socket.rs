//! The live protocol `desk.v1` over WebSocket.
//!
//! One task per socket. Its buffers are small and bounded: what it cannot send in time makes it too slow,
//! and it is closed with 4408 and resumes. The server pings every 15 s, which a background tab answers
//! without running scripts; two missed answers close the socket. An answer renews an agent's lease.

use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::{CloseFrame, Message as Frame, Utf8Bytes, WebSocket, WebSocketUpgrade};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::get;
use desk::chat::{
    CONNECTION_LEASE, Chat, Listener, LiveEncoding, LiveEvent, LiveSubscription, MessageDraft,
    PresenceStatus, Sender,
};
use desk::limit::LimitedParty;
use desk::users::{UserSessionId, UserWatch, WatchState};
use desk::{AgentId, ConversationId, UserId};
use futures_util::SinkExt;
use serde::Deserialize;
use serde_json::{Value, json};
use store::events::EventId;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::error::{Error as WireError, ProtocolError};
use web::extract::Query;
use web::time::Timestamp;
use web::{ApiError, Routes};

use super::caller::{StaffCaller, bearer, check_agent, check_visitor, may_chat};
use super::{charge, widget};
use crate::error::DeskApiError;
use crate::service::DeskState;

/// The subprotocol.
const PROTOCOL: &str = "desk.v1";
/// Largest frame of a client.
const FRAME_MOST: usize = 64 * 1024;
/// Time for the first frame.
const HELLO_TIME: Duration = Duration::from_secs(10);
/// Interval of pings.
const PING_INTERVAL: Duration = Duration::from_secs(15);
/// Time a client may leave a full buffer unread.
const SEND_TIME: Duration = Duration::from_secs(10);
/// Bytes a socket reads at once. Reserved for as long as the socket is open.
const READ_BUFFER_BYTES: usize = 512;
/// Bytes of frames that go out in one write.
const WRITE_BUFFER_BYTES: usize = 16 * 1024;
/// Most events that go out together.
const EVENTS_TOGETHER: usize = 64;
/// Frames of a client within [`FLOOD_TIME`].
const FLOOD_FRAMES: u32 = 200;
const FLOOD_TIME: Duration = Duration::from_secs(10);

pub(super) fn routes() -> Routes<DeskState> {
    let router = axum::Router::new()
        .route("/api/v1/ws", get(agent_socket))
        .route("/api/v1/widget/ws", get(visitor_socket));
    Routes { public: router.into(), ..Routes::default() }
}

/// The ticket of a browser, which cannot send headers with a socket.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SocketQuery {
    ticket: Option<String>,
}

async fn agent_socket(
    State(state): State<DeskState>,
    headers: HeaderMap,
    Query(query): Query<SocketQuery>,
    upgrade: WebSocketUpgrade,
) -> Result<Response, DeskApiError> {
    let holder = match (&query.ticket, bearer(&headers)) {
        (Some(ticket), _) => holder_of(&state, ticket, "agent").await?,
        (None, Some(token)) => match check_agent(&state, token).await? {
            StaffCaller::Agent(agent, session) => (agent.id.to_string(), session),
            _ => return Err(no_credential()),
        },
        (None, None) => return Err(no_credential()),
    };
    let agent = AgentId::parse(&holder.0)?;
    state.chat()?.agent(&agent)?;
    Ok(accept(state, upgrade, Listener::Agent(agent), holder.1))
}

async fn visitor_socket(
    State(state): State<DeskState>,
    headers: HeaderMap,
    Query(query): Query<SocketQuery>,
    upgrade: WebSocketUpgrade,
) -> Result<Response, DeskApiError> {
    widget::check_origin(&state, &headers)?;
    let (id, session) = match (&query.ticket, bearer(&headers)) {
        (Some(ticket), _) => holder_of(&state, ticket, "visitor").await?,
        (None, Some(token)) => {
            let (id, session) = check_visitor(&state, token).await?;
            (id.to_string(), session)
        }
        (None, None) => return Err(no_credential()),
    };
    let visitor = UserId::parse(&id)?;
    Ok(accept(state, upgrade, Listener::Visitor(visitor), session))
}

fn no_credential() -> DeskApiError {
    ApiError::unauthorized("a socket needs ?ticket=, or a token in the Authorization header").into()
}

/// Uses up a ticket.
pub(super) async fn holder_of(
    state: &DeskState,
    ticket: &str,
    kind: &str,
) -> Result<(String, UserSessionId), DeskApiError> {
    let bad = || ApiError::unauthorized("this ticket is wrong, used or older than 30 s");
    let holder = state.chat()?.use_ticket(ticket).await?.ok_or_else(bad)?;
    let parts: Vec<&str> = holder.split(' ').collect();
    match parts.as_slice() {
        [found, id, session] if *found == kind => {
            let session = UserSessionId::parse(session).ok_or_else(bad)?;
            Ok(((*id).to_owned(), session))
        }
        _ => Err(bad().into()),
    }
}

fn accept(
    state: DeskState,
    upgrade: WebSocketUpgrade,
    listener: Listener,
    session: UserSessionId,
) -> Response {
    let tasks = state.app.tasks().clone();
    upgrade
        .protocols([PROTOCOL])
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(WRITE_BUFFER_BYTES)
        .max_write_buffer_size(256 * 1024)
        .max_message_size(FRAME_MOST)
        .max_frame_size(FRAME_MOST)
        .on_upgrade(move |socket| async move {
            let client = SocketClient::new(state, listener, session);
            if let Ok(client) = client {
                // Known to the app, so that a stop waits for its end.
                tasks.track_future(client.run(socket)).await;
            }
        })
}

/// A client at a socket.
struct SocketClient {
    state: DeskState,
    chat: Chat,
    listener: Listener,
    session: UserSessionId,
    connection: String,
    viewed: Option<ConversationId>,
    frames: (Instant, u32),
    /// The tab is in the foreground.
    has_focus: bool,
}

/// The end of a socket: code and reason.
struct Closing(u16, &'static str);

impl SocketClient {
    fn new(
        state: DeskState,
        listener: Listener,
        session: UserSessionId,
    ) -> Result<SocketClient, DeskApiError> {
        let connection = format!("ws-{:016x}", fastrand::u64(..));
        let chat = state.chat()?.clone();
        let frames = (Instant::now(), 0);
        Ok(SocketClient {
            state,
            chat,
            listener,
            session,
            connection,
            viewed: None,
            frames,
            has_focus: false,
        })
    }

    async fn run(mut self, mut socket: WebSocket) {
        let Closing(code, reason) = match self.serve(&mut socket).await {
            Ok(closing) | Err(closing) => closing,
        };
        if let Listener::Agent(agent) = self.listener.clone() {
            self.view(&agent, None).await;
            self.focus(false).await;
            if let Err(error) = self.chat.end_connection(&agent, &self.connection).await {
                tracing::debug!(%error, "lease not ended; it runs out");
            }
        }
        if code != 0 {
            let frame = CloseFrame { code, reason: reason.into() };
            let _ = tokio::time::timeout(SEND_TIME, socket.send(Frame::Close(Some(frame)))).await;
        }
    }

    /// Serves the client until its end. What is seldom awaited is boxed: an idle socket has no room for it.
    async fn serve(&mut self, socket: &mut WebSocket) -> Result<Closing, Closing> {
        let (mut events, mut watch) = Box::pin(self.begin(socket)).await?;
        let mut ticks = tokio::time::interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
        let mut unanswered = 0;
        let stopped = self.state.app.stopped();
        tokio::pin!(stopped);
        loop {
            tokio::select! {
                event = next_event(&mut events) => match event {
                    Some(event) => self.send_events(socket, &event, &mut events).await?,
                    None => return Ok(Closing(4408, "too slow; resume")),
                },
                frame = socket.recv() => {
                    match frame {
                        None | Some(Ok(Frame::Close(_))) => return Ok(Closing(0, "")),
                        Some(Err(error)) => return Err(closing_of(error)),
                        Some(Ok(Frame::Pong(_))) => {
                            unanswered = 0;
                            Box::pin(self.renew(false)).await;
                        }
                        Some(Ok(Frame::Ping(_))) => {}
                        Some(Ok(Frame::Text(text))) => {
                            unanswered = 0;
                            self.count_frame()?;
                            Box::pin(self.take(socket, text.as_str())).await?;
                        }
                        Some(Ok(Frame::Binary(_))) => return Err(Closing(4400, "text frames only")),
                    }
                }
                _ = ticks.tick() => {
                    if unanswered >= 2 {
                        return Ok(Closing(4408, "pings unanswered"));
                    }
                    unanswered += 1;
                    Box::pin(send_frame(socket, Frame::Ping(Default::default()))).await?;
                }
                standing = changed(&mut watch) => check_watch(standing)?,
                () = &mut stopped => {
                    let event = json!({ "t": "event", "id": null, "type": "server.draining", "data": {} });
                    Box::pin(send(socket, &event)).await?;
                    return Ok(Closing(1001, "draining; reconnect"));
                }
            }
        }
    }

    /// Greets the client and sends what it missed.
    async fn begin(
        &self,
        socket: &mut WebSocket,
    ) -> Result<(LiveSubscription, UserWatch), Closing> {
        let resume = self.hello(socket).await?;
        let user = match &self.listener {
            Listener::Agent(agent) => self.chat.user_of_agent(agent).map_err(|_| gone())?,
            Listener::Visitor(visitor) => visitor.clone(),
        };
        let watch =
            self.state.desk.watcher.watch(&user, Some(&self.session)).await.map_err(|_| gone())?;
        check_watch(watch.state())?;
        let start = self
            .chat
            .listen(self.listener.clone(), resume)
            .await
            .map_err(|_| Closing(1011, "store away"))?;
        self.renew(true).await;
        let me = self.me().await;
        let ready = json!({
            "t": "ready",
            "conn": self.connection,
            "resume": start.place.to_string(),
            "resumed": start.is_resumed,
            "ping_s": PING_INTERVAL.as_secs(),
            "lease_s": CONNECTION_LEASE.as_secs(),
            "me": me,
        });
        send(socket, &ready).await?;
        for event in &start.backlog {
            self.send_event(socket, event).await?;
        }
        Ok((start.subscription, watch))
    }

    /// Waits for the first frame and returns the place to resume from.
    async fn hello(&self, socket: &mut WebSocket) -> Result<Option<EventId>, Closing> {
        let first = tokio::time::timeout(HELLO_TIME, async {
            loop {
                match socket.recv().await {
                    Some(Ok(Frame::Text(text))) => return Ok(text),
                    Some(Ok(Frame::Ping(_) | Frame::Pong(_))) => {}
                    Some(Err(error)) => return Err(closing_of(error)),
                    _ => return Err(Closing(4400, "hello first")),
                }
            }
        });
        let text = first.await.map_err(|_| Closing(4400, "no hello within 10 s"))??;
        match serde_json::from_str::<ClientFrame>(text.as_str()) {
            Ok(ClientFrame::Hello { resume, .. }) => match resume.as_deref() {
                None | Some("") => Ok(None),
                Some(id) => {
                    id.parse().map(Some).map_err(|_| Closing(4400, "resume is not an event id"))
                }
            },
            _ => Err(Closing(4400, "hello first")),
        }
    }

    async fn me(&self) -> Value {
        match &self.listener {
            Listener::Agent(agent) => {
                let presence = self.chat.presence().await.unwrap_or_default();
                let presence =
                    presence.iter().find(|one| one.agent == *agent).map(|one| one.to_json());
                let agent = self.chat.agent(agent).map(|agent| agent.to_json()).ok();
                json!({ "agent": agent, "presence": presence })
            }
            Listener::Visitor(visitor) => {
                let visitor = self.chat.visitor(visitor).await.ok();
                json!({ "visitor": visitor.as_ref().map(widget::visitor_json) })
            }
        }
    }

    /// Renews the lease of an agent's connection.
    async fn renew(&self, is_active: bool) {
        let Listener::Agent(agent) = &self.listener else { return };
        let lease = CONNECTION_LEASE;
        if let Err(error) =
            self.chat.renew_connection(agent, &self.connection, lease, is_active).await
        {
            tracing::debug!(%error, "lease not renewed; the next ping does");
        }
        self.show_focus().await;
    }

    /// Notes whether the tab is in the foreground.
    async fn focus(&mut self, is_on: bool) {
        let had = std::mem::replace(&mut self.has_focus, is_on);
        if is_on {
            self.show_focus().await;
        } else if had && let Listener::Agent(agent) = &self.listener {
            let shown = self.chat.show_foreground(agent, &self.connection, false).await;
            if let Err(error) = shown {
                tracing::debug!(%error, "the tab counts as in the foreground for a while");
            }
        }
    }

    /// Renews the mark of a tab in the foreground.
    async fn show_focus(&self) {
        let Listener::Agent(agent) = &self.listener else { return };
        if self.has_focus
            && let Err(error) = self.chat.show_foreground(agent, &self.connection, true).await
        {
            tracing::debug!(%error, "the tab does not count as in the foreground");
        }
    }

    fn count_frame(&mut self) -> Result<(), Closing> {
        let (since, count) = &mut self.frames;
        if since.elapsed() > FLOOD_TIME {
            (*since, *count) = (Instant::now(), 0);
        }
        *count += 1;
        if *count > FLOOD_FRAMES { Err(Closing(4429, "too many frames")) } else { Ok(()) }
    }

    fn sender(&self) -> Sender {
        match &self.listener {
            Listener::Agent(agent) => Sender::Agent(agent.clone()),
            Listener::Visitor(visitor) => Sender::Visitor(visitor.clone()),
        }
    }

    /// Carries out what a frame asks for.
    async fn take(&mut self, socket: &mut WebSocket, text: &str) -> Result<(), Closing> {
        let frame: ClientFrame =
            serde_json::from_str(text).map_err(|_| Closing(4400, "not a frame of desk.v1"))?;
        let (reference, outcome) = match frame {
            ClientFrame::Hello { .. } => return Err(Closing(4400, "hello once")),
            ClientFrame::Active {} => {
                self.renew(true).await;
                return Ok(());
            }
            ClientFrame::Focus { on } => {
                self.focus(on).await;
                return Ok(());
            }
            ClientFrame::Send { reference, message } => {
                (reference, self.send_message(message).await)
            }
            ClientFrame::Read { reference, conversation_id, seq } => {
                (reference, self.mark(&conversation_id, seq).await)
            }
            ClientFrame::Typing { reference, conversation_id, on, note } => {
                (reference, self.typing(&conversation_id, on, note).await)
            }
            ClientFrame::Presence { reference, status, until } => {
                (reference, self.choose(&status, until).await)
            }
            ClientFrame::View { reference, conversation_id } => {
                (reference, self.look(conversation_id.as_deref()).await)
            }
        };
        let Some(reference) = reference else { return Ok(()) };
        let answer = match outcome {
            Ok(mut answer) => {
                answer["t"] = json!("ack");
                answer["ref"] = json!(reference);
                answer
            }
            Err(error) => json!({ "t": "nack", "ref": reference, "error": error.summary() }),
        };
        send(socket, &answer).await
    }

    async fn send_message(&self, frame: SendFrame) -> Result<Value, DeskApiError> {
        if let Listener::Visitor(visitor) = &self.listener {
            may_chat(&self.state, visitor)?;
            charge(&self.state, "message", LimitedParty::user(visitor.as_str())).await?;
        }
        let draft = MessageDraft {
            sender: self.sender(),
            client_id: frame.client_id,
            is_note: frame.note,
            content: frame.content,
            attachments: frame.attachments,
        };
        let id = super::conversation_id(&frame.conversation_id)?;
        let sent = self.chat.send(&id, draft).await?;
        let names = self.chat.names();
        let conversation = match &self.listener {
            Listener::Agent(_) => sent.conversation.agent_json(&*names),
            Listener::Visitor(_) => sent.conversation.visitor_json(&*names),
        };
        Ok(json!({ "message": sent.message.to_json(), "conversation": conversation }))
    }

    async fn mark(&self, id: &str, seq: i64) -> Result<Value, DeskApiError> {
        self.chat.mark_read(&super::conversation_id(id)?, self.sender(), seq).await?;
        Ok(json!({}))
    }

    async fn typing(&self, id: &str, on: bool, note: bool) -> Result<Value, DeskApiError> {
        if let Listener::Visitor(visitor) = &self.listener {
            charge(&self.state, "typing", LimitedParty::user(visitor.as_str())).await?;
        }
        let id = super::conversation_id(id)?;
        self.chat.show_typing(&id, &self.sender(), on, note).await?;
        Ok(json!({}))
    }

    async fn choose(&self, status: &str, until: Option<Timestamp>) -> Result<Value, DeskApiError> {
        let Listener::Agent(agent) = &self.listener else {
            return Err(super::caller::not_allowed("only agents have a status").into());
        };
        let (status, until) = (PresenceStatus::parse(status)?, until.map(|at| at.0));
        let status = self.chat.choose_status(agent, status, until).await?;
        Ok(json!({ "status": status.as_str() }))
    }

    async fn look(&mut self, id: Option<&str>) -> Result<Value, DeskApiError> {
        let Listener::Agent(agent) = self.listener.clone() else {
            return Err(super::caller::not_allowed("only agents are shown as viewers").into());
        };
        let id = id.map(super::conversation_id).transpose()?;
        self.view(&agent, id).await;
        Ok(json!({}))
    }

    async fn view(&mut self, agent: &AgentId, id: Option<ConversationId>) {
        let before = std::mem::replace(&mut self.viewed, id.clone());
        if before == id && id.is_none() {
            return;
        }
        for (conversation, is_on) in
            [(before.filter(|b| Some(b) != id.as_ref()), false), (id, true)]
        {
            let Some(conversation) = conversation else { continue };
            if let Err(error) = self.chat.show_viewing(agent, &conversation, is_on).await {
                tracing::debug!(%error, "viewers not published");
            }
        }
    }

    async fn send_event(&self, socket: &mut WebSocket, event: &LiveEvent) -> Result<(), Closing> {
        match self.frame_of(event) {
            Some(frame) => send_frame(socket, frame).await,
            None => Ok(()),
        }
    }

    /// Sends an event and those that wait behind it, in one write as far as possible.
    async fn send_events(
        &self,
        socket: &mut WebSocket,
        first: &LiveEvent,
        events: &mut LiveSubscription,
    ) -> Result<(), Closing> {
        let work = async {
            if let Some(frame) = self.frame_of(first) {
                socket.feed(frame).await?;
            }
            for _ in 1..EVENTS_TOGETHER {
                let Some(event) = events.next_now() else { break };
                if let Some(frame) = self.frame_of(&event) {
                    socket.feed(frame).await?;
                }
            }
            socket.flush().await
        };
        outcome_of(tokio::time::timeout(SEND_TIME, work).await)
    }

    fn frame_of(&self, event: &LiveEvent) -> Option<Frame> {
        if event.is_resync() {
            return Some(Frame::Text(json!({ "t": "resync" }).to_string().into()));
        }
        let text = event.encoded_for(&self.listener, LiveEncoding::Socket, |data| {
            // The data is JSON already and is not parsed again.
            let (id, kind) = (event.id, &event.kind);
            format!("{{\"t\":\"event\",\"id\":\"{id}\",\"type\":\"{kind}\",\"data\":{data}}}")
                .into()
        })?;
        Utf8Bytes::try_from(text).ok().map(Frame::Text)
    }
}

fn gone() -> Closing {
    Closing(4401, "log in again")
}

/// The code for a frame that no frame of WebSocket can be, by RFC 6455 §7.4.1.
fn closing_of(error: axum::Error) -> Closing {
    match error.into_inner().downcast_ref::<WireError>() {
        Some(WireError::Capacity(_)) => Closing(1009, "a frame has at most 64 KiB"),
        Some(WireError::Utf8(_)) => Closing(1007, "not UTF-8"),
        Some(WireError::Protocol(ProtocolError::ResetWithoutClosingHandshake)) => Closing(0, ""),
        Some(WireError::Protocol(_)) => Closing(1002, "not a frame of WebSocket"),
        _ => Closing(0, ""),
    }
}

fn check_watch(state: WatchState) -> Result<(), Closing> {
    match state {
        WatchState::Valid(_) => Ok(()),
        WatchState::Blocked => Err(Closing(4403, "blocked")),
        WatchState::Ended => Err(gone()),
    }
}

async fn next_event(events: &mut LiveSubscription) -> Option<std::sync::Arc<LiveEvent>> {
    events.next().await
}

async fn changed(watch: &mut UserWatch) -> WatchState {
    watch.changed().await
}

async fn send(socket: &mut WebSocket, value: &Value) -> Result<(), Closing> {
    send_frame(socket, Frame::Text(value.to_string().into())).await
}

async fn send_frame(socket: &mut WebSocket, frame: Frame) -> Result<(), Closing> {
    outcome_of(tokio::time::timeout(SEND_TIME, socket.send(frame)).await)
}

fn outcome_of<E>(sent: Result<Result<(), axum::Error>, E>) -> Result<(), Closing> {
    match sent {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Closing(0, "")),
        Err(_) => Err(Closing(4408, "too slow; resume")),
    }
}

/// A frame of a client.
#[derive(Debug, Deserialize)]
#[serde(tag = "t", rename_all = "lowercase")]
enum ClientFrame {
    Hello {
        #[serde(default)]
        resume: Option<String>,
        #[serde(default)]
        #[expect(dead_code, reason = "for logs of proxies")]
        client: Option<String>,
    },
    Send {
        #[serde(rename = "ref")]
        reference: Option<String>,
        #[serde(flatten)]
        message: SendFrame,
    },
    Read {
        #[serde(rename = "ref", default)]
        reference: Option<String>,
        conversation_id: String,
        seq: i64,
    },
    Typing {
        #[serde(rename = "ref", default)]
        reference: Option<String>,
        conversation_id: String,
        on: bool,
        #[serde(default)]
        note: bool,
    },
    Presence {
        #[serde(rename = "ref", default)]
        reference: Option<String>,
        status: String,
        #[serde(default)]
        until: Option<Timestamp>,
    },
    View {
        #[serde(rename = "ref", default)]
        reference: Option<String>,
        #[serde(default)]
        conversation_id: Option<String>,
    },
    Active {},
    Focus {
        on: bool,
    },
}

#[derive(Debug, Deserialize)]
struct SendFrame {
    conversation_id: String,
    #[serde(default)]
    client_id: Option<String>,
    #[serde(default)]
    content: String,
    #[serde(default)]
    attachments: Vec<String>,
    #[serde(default)]
    note: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_and_others_refused() {
        for good in [
            r#"{"t":"hello","resume":null,"client":"widget/1"}"#,
            r#"{"t":"send","ref":"1","conversation_id":"c","content":"x"}"#,
            r#"{"t":"read","conversation_id":"c","seq":1}"#,
            r#"{"t":"typing","conversation_id":"c","on":true}"#,
            r#"{"t":"view","conversation_id":null}"#,
            r#"{"t":"active"}"#,
            r#"{"t":"focus","on":true}"#,
        ] {
            assert!(serde_json::from_str::<ClientFrame>(good).is_ok(), "{good}");
        }
        for bad in ["", "[]", "{}", r#"{"t":"unknown"}"#, r#"{"t":"read","seq":1}"#, "nonsense"] {
            assert!(serde_json::from_str::<ClientFrame>(bad).is_err(), "{bad}");
        }
    }
}
