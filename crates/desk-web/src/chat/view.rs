//! Answers of the chat, as the OpenAPI document describes them.
//!
//! The answers themselves are made in the crate `desk`, where they are stored as well; a test reads them into
//! these types, which take no field that is not described.

#![allow(dead_code, reason = "the fields are for the document; the test reads answers into them")]

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use web::time::Timestamp;

use super::people::AgentRoleName;
use super::staff::ConversationStatusName;

/// The side that wrote a message.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = SenderRole)]
pub(crate) enum SenderRoleName {
    /// The visitor.
    User,
    /// An agent.
    Admin,
    /// The desk.
    System,
    /// A program.
    Bot,
}

/// Kind of a message.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = MessageType)]
pub(crate) enum MessageTypeName {
    /// Text, with files or without.
    Text,
    /// For agents only.
    Note,
    /// Told by the desk.
    Event,
}

/// State in the queue.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = QueueState)]
pub(crate) enum QueueStateName {
    /// Waits for an agent.
    Waiting,
    /// Has an agent, and is unanswered.
    Assigned,
    /// Nothing is unanswered.
    Idle,
}

/// State of a promise.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = SlaState)]
pub(crate) enum PromiseStateName {
    /// Nothing is promised.
    None,
    /// Not due yet.
    Running,
    /// Due within a minute.
    AtRisk,
    /// Overdue.
    Breached,
}

/// Reply that is promised.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = SlaKind)]
pub(crate) enum PromiseKindName {
    /// To the first message of a conversation.
    FirstReply,
    /// To a later one.
    NextReply,
}

/// Priority of a conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ChatPriority)]
pub(crate) enum ChatPriorityName {
    /// Before all others.
    Urgent,
    /// Before normal ones.
    High,
    /// As most are.
    Normal,
    /// After all others.
    Low,
}

/// The way a conversation came.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ConversationChannel)]
pub(crate) enum ChannelName {
    /// The visitor began it in the widget, or on its full page.
    Widget,
    /// The visitor left a message while nobody was there.
    Offline,
    /// An agent or a program began it.
    Api,
    /// It was imported.
    Import,
}

/// Status of an agent.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = PresenceStatus)]
pub(crate) enum PresenceStatusName {
    /// Takes conversations.
    Online,
    /// Keeps conversations, gets no new ones.
    Away,
    /// Keeps conversations, gets no new ones.
    Busy,
    /// Is not there.
    Offline,
}

/// Whether somebody is there.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = AvailabilityState)]
pub(crate) enum AvailabilityName {
    /// Agents take conversations.
    Online,
    /// Agents are there, none takes more.
    Busy,
    /// Nobody is there.
    Offline,
}

/// An agent by name.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NamedAgent)]
pub(crate) struct AgentRef {
    /// Id.
    id: String,
    /// Name; null if the agent is gone.
    #[schema(required)]
    name: Option<String>,
}

/// A file of a message.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ChatAttachment)]
pub(crate) struct AttachmentView {
    /// Id.
    id: String,
    /// Name.
    name: String,
    /// Type, by its contents.
    mime: String,
    /// Bytes.
    size: u64,
    /// May be shown in a page.
    is_image: bool,
    /// Address of the bytes.
    url: String,
}

/// The sender of a message.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = MessageSender)]
pub(crate) struct MessageSenderView {
    /// Id; null for the desk and for bots.
    #[schema(required)]
    id: Option<String>,
    /// Name.
    #[schema(required)]
    name: Option<String>,
}

/// A message.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChatMessage {
    /// Id.
    id: String,
    /// Its conversation.
    conversation_id: String,
    /// Its number in the conversation: 1, 2, 3 …
    seq: u64,
    /// The id that the client chose.
    #[schema(required)]
    client_id: Option<String>,
    /// The side that wrote it.
    sender_role: SenderRoleName,
    /// The one who wrote it.
    sender: MessageSenderView,
    /// Its kind.
    #[serde(rename = "type")]
    kind: MessageTypeName,
    /// The text, as written; empty if deleted.
    content: String,
    /// Files.
    attachments: Vec<AttachmentView>,
    /// Time.
    created_at: Timestamp,
    /// Time of the last change.
    #[schema(required)]
    edited_at: Option<Timestamp>,
    /// It was deleted.
    deleted: bool,
}

/// A place among those that wait.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = QueuePlace)]
pub(crate) struct QueuePlaceView {
    /// 1 is next.
    position: u64,
    /// Expected time; null until something was measured.
    #[schema(required)]
    expected_wait_seconds: Option<u64>,
}

/// A conversation, as its visitor sees it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct VisitorConversation {
    /// Id.
    id: String,
    /// Status.
    status: ConversationStatusName,
    /// Waiting for an agent, unanswered, or neither.
    queue_state: QueueStateName,
    /// Subject.
    #[schema(required)]
    subject: Option<String>,
    /// The agent who has it.
    #[schema(required)]
    assignee: Option<AgentRef>,
    /// A program answers.
    bot: bool,
    /// Number of the last message.
    last_seq: u64,
    /// Messages the visitor has not read.
    unread_visitor: u64,
    /// Number of the last message that agents have read.
    agent_read_seq: u64,
    /// Number of the last message that the visitor has read.
    visitor_read_seq: u64,
    /// Time of the last message.
    last_message_at: Timestamp,
    /// 1 to 5.
    #[schema(required)]
    rating: Option<u8>,
    /// Beginning.
    created_at: Timestamp,
    /// End.
    #[schema(required)]
    resolved_at: Option<Timestamp>,
    /// The conversation it was merged into.
    #[schema(required)]
    merged_into: Option<String>,
    /// Grows with every change.
    version: u64,
    /// Its place; only where one conversation is asked for.
    queue: Option<QueuePlaceView>,
}

/// The visitor of a conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ConversationVisitor)]
pub(crate) struct ConversationVisitorView {
    /// Id.
    id: String,
    /// Name.
    #[schema(required)]
    name: Option<String>,
    /// E-mail address.
    #[schema(required)]
    email: Option<String>,
    /// The site has proved who it is.
    verified: bool,
    /// The page they are on.
    #[schema(required)]
    page_url: Option<String>,
    /// Language.
    #[schema(required)]
    locale: Option<String>,
}

/// The last message of a conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LastMessage)]
pub(crate) struct LastMessageView {
    /// Its beginning.
    preview: String,
    /// The side that wrote it; empty before the first.
    sender_role: String,
}

/// The promise to reply.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Sla)]
pub(crate) struct PromiseView {
    /// The reply that is promised.
    #[schema(required)]
    kind: Option<PromiseKindName>,
    /// The time by which it is due.
    #[schema(required)]
    due_at: Option<Timestamp>,
    /// Kept so far, or not.
    state: PromiseStateName,
}

/// A conversation, as agents see it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChatConversation {
    /// Id.
    id: String,
    /// Status.
    status: ConversationStatusName,
    /// Waiting for an agent, unanswered, or neither.
    queue_state: QueueStateName,
    /// Subject.
    #[schema(required)]
    subject: Option<String>,
    /// The agent who has it.
    #[schema(required)]
    assignee: Option<AgentRef>,
    /// A program answers.
    bot: bool,
    /// Number of the last message.
    last_seq: u64,
    /// Messages the visitor has not read.
    unread_visitor: u64,
    /// Number of the last message that agents have read.
    agent_read_seq: u64,
    /// Number of the last message that the visitor has read.
    visitor_read_seq: u64,
    /// Time of the last message.
    last_message_at: Timestamp,
    /// 1 to 5.
    #[schema(required)]
    rating: Option<u8>,
    /// Beginning.
    created_at: Timestamp,
    /// End.
    #[schema(required)]
    resolved_at: Option<Timestamp>,
    /// The conversation it was merged into.
    #[schema(required)]
    merged_into: Option<String>,
    /// Grows with every change; the number in the `ETag`.
    version: u64,
    /// Priority.
    priority: ChatPriorityName,
    /// Tags.
    tags: Vec<String>,
    /// The way it came.
    channel: ChannelName,
    /// The team that answers.
    #[schema(required)]
    team_id: Option<String>,
    /// Skills that an agent must have.
    skills: Vec<String>,
    /// The visitor.
    visitor: ConversationVisitorView,
    /// Time of the first unanswered message.
    #[schema(required)]
    waiting_since: Option<Timestamp>,
    /// Messages that agents have not read.
    unread_agent: u64,
    /// The last message.
    last_message: LastMessageView,
    /// Ids of agents who were mentioned.
    mentions: Vec<String>,
    /// The time at which a snoozed one is open again.
    #[schema(required)]
    wakes_at: Option<Timestamp>,
    /// The promise to reply.
    sla: PromiseView,
    /// Time of the first reply.
    #[schema(required)]
    first_reply_at: Option<Timestamp>,
    /// The visitor's words.
    #[schema(required)]
    rating_comment: Option<String>,
    /// Time of the assignment.
    #[schema(required)]
    assigned_at: Option<Timestamp>,
}

/// Open conversations by view.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ConversationCounts)]
pub(crate) struct ConversationCountsView {
    /// Assigned to the one who asks.
    mine: u64,
    /// Without an agent.
    unassigned: u64,
    /// All.
    all: u64,
    /// With unread messages.
    unread: u64,
    /// In which the one who asks was mentioned.
    mentions: u64,
    /// Of the teams of the one who asks.
    team: u64,
    /// Snoozed.
    snoozed: u64,
}

/// A page of conversations.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConversationsPage {
    /// The items.
    items: Vec<ChatConversation>,
    /// Cursor of the next page; null at the end.
    #[schema(required)]
    next_cursor: Option<String>,
    /// Open conversations by view.
    counts: ConversationCountsView,
}

/// A page of messages, oldest first.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MessagesPage {
    /// The items.
    items: Vec<ChatMessage>,
    /// Cursor of the next page; null at the end.
    #[schema(required)]
    next_cursor: Option<String>,
    /// Number of the last message that the reader may see.
    last_seq: u64,
    /// There are more in this direction.
    has_more: bool,
}

/// A message that was sent, and its conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SentToAgents {
    /// The message.
    message: ChatMessage,
    /// Its conversation.
    conversation: ChatConversation,
}

/// A message that was sent, and its conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SentByVisitor {
    /// The message.
    message: ChatMessage,
    /// Its conversation: another one when that was resolved too long ago.
    conversation: VisitorConversation,
}

/// A conversation that was started.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StartedByVisitor {
    /// The conversation.
    conversation: VisitorConversation,
    /// Its first message.
    message: ChatMessage,
    /// Its place among those that wait; 1 is next.
    #[schema(required)]
    position: Option<u64>,
}

/// A conversation that waits.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WaitingConversation {
    /// The conversation.
    conversation: ChatConversation,
    /// 1 is next.
    position: u64,
    /// Expected time.
    #[schema(required)]
    expected_wait_seconds: Option<u64>,
    /// Time since the first unanswered message.
    waited_ms: u64,
}

/// An agent.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChatAgent {
    /// Id.
    id: String,
    /// E-mail address.
    email: String,
    /// Name.
    name: String,
    /// Role.
    role: AgentRoleName,
    /// Most conversations at a time.
    capacity: u32,
    /// Skills.
    skills: Vec<String>,
    /// Ids of teams.
    team_ids: Vec<String>,
    /// Cannot log in, and has no conversations.
    disabled: bool,
    /// Has accepted the invitation.
    has_password: bool,
    /// Has a second factor.
    has_totp: bool,
    /// Time.
    created_at: Timestamp,
}

/// An agent and the invitation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct InvitedAgent {
    /// The agent.
    agent: ChatAgent,
    /// The secret of the invitation, shown this once.
    invitation: String,
    /// It also goes out by e-mail.
    emailed: bool,
}

/// An agent who has logged in.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoggedInAgent {
    /// The agent.
    agent: ChatAgent,
    /// The session's token, for programs.
    token: String,
}

/// Presence of an agent.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AgentPresence)]
pub(crate) struct PresenceView {
    /// The agent.
    agent: AgentRef,
    /// Status now.
    status: PresenceStatusName,
    /// Status that the agent chose.
    chosen: PresenceStatusName,
    /// The time at which that ends, and the agent is online; null: it has no end.
    #[schema(required)]
    ends_at: Option<Timestamp>,
    /// Open connections.
    connections: u64,
    /// Conversations they have.
    load: u64,
    /// Most conversations at a time.
    capacity: u32,
    /// Time of the last activity.
    #[schema(required)]
    seen_at: Option<Timestamp>,
}

/// The agent who asks.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OwnAgent {
    /// The agent.
    agent: ChatAgent,
    /// Their presence.
    #[schema(required)]
    presence: Option<PresenceView>,
}

/// The secret of a second factor.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TotpSecret {
    /// The secret in base32.
    secret: String,
    /// The same as an address, for a QR code.
    url: String,
}

/// Codes for the day when the second factor is lost.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TotpRecovery {
    /// Each is good once.
    recovery_codes: Vec<String>,
}

/// A ticket for a socket.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SocketTicket {
    /// The ticket, good once.
    ticket: String,
    /// Its end.
    expires_at: Timestamp,
}

/// Business hours.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TeamHours)]
pub(crate) struct TeamHoursView {
    /// Time zone.
    time_zone: String,
    /// Intervals by day, `mon` to `sun`; none at all mean always open.
    week: std::collections::BTreeMap<String, Vec<[String; 2]>>,
    /// Days without business.
    holidays: Vec<String>,
}

/// A team.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChatTeam {
    /// Id.
    id: String,
    /// Name.
    name: String,
    /// Business hours.
    hours: TeamHoursView,
    /// Time.
    created_at: Timestamp,
}

/// A canned response.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChatCanned {
    /// Id.
    id: String,
    /// Short code that agents type after `/`.
    short_code: String,
    /// The text.
    content: String,
    /// Time.
    created_at: Timestamp,
}

/// A visitor.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ChatVisitor)]
pub(crate) struct ChatVisitorView {
    /// Id.
    id: String,
    /// Name.
    #[schema(required)]
    name: Option<String>,
    /// E-mail address.
    #[schema(required)]
    email: Option<String>,
    /// The site has proved who it is.
    verified: bool,
    /// Notes for agents.
    notes: String,
    /// Attributes.
    #[schema(value_type = Object)]
    attributes: serde_json::Map<String, Value>,
    /// The page they are on.
    #[schema(required)]
    page_url: Option<String>,
    /// Language.
    #[schema(required)]
    locale: Option<String>,
    /// First visit.
    created_at: Timestamp,
    /// Last visit.
    seen_at: Timestamp,
    /// Is blocked; only where one visitor is asked for.
    blocked: Option<bool>,
}

/// A visitor, as they see themselves.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OwnVisitor {
    /// Id.
    id: String,
    /// Name.
    #[schema(required)]
    name: Option<String>,
    /// E-mail address.
    #[schema(required)]
    email: Option<String>,
    /// The site has proved who it is.
    verified: bool,
}

/// The session of a visitor.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct VisitorSession {
    /// The visitor.
    visitor: OwnVisitor,
}

/// A session that was opened.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OpenedVisitorSession {
    /// The token, shown this once.
    token: String,
    /// Id of the session.
    session_id: String,
    /// The visitor.
    visitor: OwnVisitor,
    /// Those that are not resolved.
    conversations: Vec<VisitorConversation>,
}

/// Availability of the team.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Availability)]
pub(crate) struct AvailabilityView {
    /// Availability of agents.
    state: AvailabilityName,
    /// Agents who take conversations.
    agents_online: u64,
    /// Visitors who wait.
    waiting: u64,
    /// Expected time; null until something was measured.
    #[schema(required)]
    expected_wait_seconds: Option<u64>,
    /// The time at which it opens next.
    #[schema(required)]
    opens_at: Option<Timestamp>,
}

/// Configuration of the widget.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WidgetConfig {
    /// Visitors without a login may chat.
    anonymous_chat: bool,
    /// Largest file.
    max_file_bytes: u64,
    /// Fields of the form before the first message.
    prechat_fields: Vec<String>,
    /// Availability of agents.
    availability: AvailabilityView,
    /// Answers follow by e-mail.
    email_replies: bool,
    /// Version of this answer.
    version: u32,
}

/// Numbers of all conversations.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DashboardTotals {
    /// Open.
    open: u64,
    /// Waiting for an agent.
    waiting: u64,
    /// With an agent.
    assigned: u64,
    /// With unread messages.
    unread: u64,
    /// Resolved since midnight, UTC.
    resolved_today: u64,
    /// Whose promise is at risk or broken.
    sla_at_risk: u64,
}

/// Numbers of the agent who asks.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DashboardOwn {
    /// With them.
    assigned: u64,
    /// With unread messages.
    unread: u64,
    /// Resolved since midnight, UTC.
    resolved_today: u64,
}

/// Numbers of the desk and of the agent who asks.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DeskDashboard)]
pub(crate) struct DashboardView {
    /// Of all conversations.
    totals: DashboardTotals,
    /// Of the agent who asks.
    me: DashboardOwn,
    /// Time that the first in the queue waits.
    #[schema(required)]
    oldest_waiting_ms: Option<u64>,
    /// Mean time to the first reply in the last 24 hours.
    #[schema(required)]
    first_reply_ms: Option<u64>,
    /// As `totals.open`, by the schema's name.
    total_active: u64,
    /// As `me.assigned`.
    assigned_to_me: u64,
    /// As `me.unread`.
    unread_count: u64,
    /// Mean minutes to a reply of the agent who asks.
    avg_response_time: f64,
    /// As `me.resolved_today`.
    resolved_today: u64,
    /// Presence of all agents.
    agents: Vec<PresenceView>,
    /// Availability of the team.
    availability: AvailabilityView,
}

/// A day or an agent in a report.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ChatReportGroup)]
pub(crate) struct ReportGroupView {
    /// The day, the id of the agent, or the tag.
    key: String,
    /// Name of the agent.
    #[schema(required)]
    name: Option<String>,
    /// Conversations started.
    created: u64,
    /// Conversations resolved.
    resolved: u64,
    /// Replies to somebody who waited.
    replies: u64,
    /// Mean time to the first reply.
    #[schema(required)]
    first_reply_ms: Option<u64>,
    /// Mean time to further replies.
    #[schema(required)]
    next_reply_ms: Option<u64>,
    /// Mean time from the first message to resolution.
    #[schema(required)]
    resolution_ms: Option<u64>,
    /// Mean time from assignment to resolution.
    #[schema(required)]
    handling_ms: Option<u64>,
    /// Ratings.
    ratings: u64,
    /// Mean rating.
    #[schema(required)]
    rating: Option<f64>,
    /// Replies within the promise.
    #[schema(required)]
    in_time_percent: Option<f64>,
}

/// A report.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ChatReport)]
pub(crate) struct ReportView {
    /// Its days, agents or tags.
    groups: Vec<ReportGroupView>,
}

/// A promise to reply; 0 seconds promise nothing.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SlaTarget)]
pub(crate) struct SlaTargetView {
    /// Seconds of business time to the first reply.
    first_reply_seconds: u32,
    /// Seconds of business time to every further one.
    next_reply_seconds: u32,
}

/// Promises to reply, by priority.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SlaTargets)]
pub(crate) struct SlaView {
    /// Of `urgent` conversations.
    urgent: SlaTargetView,
    /// Of `high` conversations.
    high: SlaTargetView,
    /// Of `normal` conversations.
    normal: SlaTargetView,
    /// Of `low` conversations.
    low: SlaTargetView,
}

/// Changes of promises to reply; what is left out stays.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "urgent": { "first_reply_seconds": 180 } }))]
pub(crate) struct SlaPatch {
    /// Of `urgent` conversations.
    #[serde(skip_serializing_if = "Option::is_none")]
    urgent: Option<SlaTargetPatch>,
    /// Of `high` conversations.
    #[serde(skip_serializing_if = "Option::is_none")]
    high: Option<SlaTargetPatch>,
    /// Of `normal` conversations.
    #[serde(skip_serializing_if = "Option::is_none")]
    normal: Option<SlaTargetPatch>,
    /// Of `low` conversations.
    #[serde(skip_serializing_if = "Option::is_none")]
    low: Option<SlaTargetPatch>,
}

/// Changes of a promise; what is left out stays.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SlaTargetPatch {
    /// Seconds of business time to the first reply; 0 promises nothing.
    #[schema(maximum = 2592000)]
    #[serde(skip_serializing_if = "Option::is_none")]
    first_reply_seconds: Option<u32>,
    /// Seconds of business time to every further one; 0 promises nothing.
    #[schema(maximum = 2592000)]
    #[serde(skip_serializing_if = "Option::is_none")]
    next_reply_seconds: Option<u32>,
}

#[cfg(test)]
mod tests {
    use desk::chat::{
        AgentRole, Chat, ChatPriority, MessageDraft, NewAgent, NewConversation, ReportGroup, Sender,
    };
    use serde::de::DeserializeOwned;
    use serde_json::json;

    use super::*;

    /// Reads an answer as the document describes it.
    #[track_caller]
    fn read<T: DeserializeOwned>(answer: Value) -> T {
        match serde_json::from_value(answer.clone()) {
            Ok(read) => read,
            Err(error) => panic!("{error}: {answer}"),
        }
    }

    async fn open(store: &store::Store, folder: &std::path::Path) -> Chat {
        use desk::archive::{Archive, ArchivePlace, ArchiveSync};
        let prefix = desk::Prefix::default();
        let place = ArchivePlace::Sqlite(folder.join("desk.sqlite3"));
        let users = desk::users::Users::new(store, &prefix, desk::users::UserOptions::default());
        Chat::open(desk::chat::ChatParts {
            store: store.clone(),
            prefix,
            archive: Archive::open(&place, ArchiveSync::Never).await.unwrap(),
            users: users.unwrap(),
            instance: desk::InstanceId::parse("i1").unwrap(),
            files: folder.join("files"),
            options: desk::chat::ChatOptions::default(),
        })
        .await
        .unwrap()
    }

    #[test]
    fn answers_are_as_the_document_describes_them() {
        testkit::each_store::on_embedded(|t| async move {
            let folder = tempfile::tempdir().unwrap();
            let chat = open(&t.store, folder.path()).await;
            let hours = desk::chat::BusinessHours::parse(
                &json!({ "time_zone": "Europe/Berlin", "week": { "mon": [["09:00", "12:00"]] } }),
            );
            let team = chat.put_team(None, "Billing", hours.unwrap()).await.unwrap();
            let new = NewAgent {
                email: "anna@example.org".to_owned(),
                name: "Anna".to_owned(),
                role: AgentRole::Supervisor,
                capacity: None,
                skills: vec!["refunds".to_owned()],
                teams: vec![team.id.clone()],
            };
            let (agent, _) = chat.add_agent(new).await.unwrap();
            let eva = desk::UserId::parse("eva").unwrap();
            let file = chat.put_file("eva", "a.txt", b"text".to_vec()).await.unwrap();
            let mut message = MessageDraft::text(Sender::Visitor(eva.clone()), "hello");
            message.attachments = vec![file.id.clone()];
            let sent = chat
                .start_conversation(NewConversation {
                    visitor: eva.clone(),
                    message,
                    priority: ChatPriority::Urgent,
                    subject: Some("subject".to_owned()),
                    team: Some(team.id.clone()),
                    skills: Vec::new(),
                    channel: desk::chat::ConversationChannel::Widget,
                    bot: false,
                    is_offline: false,
                })
                .await
                .unwrap();
            chat.settle().await;
            let names = chat.names();
            let message: ChatMessage = read(sent.message.to_json());
            assert_eq!(message.attachments.len(), 1);
            let _: AttachmentView = read(file.to_json());
            let _: ChatConversation = read(sent.conversation.agent_json(&*names));
            let _: VisitorConversation = read(sent.conversation.visitor_json(&*names));
            let one: VisitorConversation =
                read(super::super::visitor_view(&chat, &sent.conversation).await.ok().unwrap());
            assert!(one.queue.is_some());
            let reply = MessageDraft::text(Sender::Agent(agent.id.clone()), "hello back");
            let replied = chat.send(&sent.conversation.id, reply).await.unwrap();
            let _: ChatConversation = read(replied.conversation.agent_json(&*names));
            let _: ChatAgent = read(agent.to_json());
            let _: ChatTeam = read(team.to_json());
            let _: ChatCanned = read(chat.put_canned(None, "hi", "Hi").await.unwrap().to_json());
            let _: ChatVisitorView = read(chat.visitor(&eva).await.unwrap().to_json());
            let _: AvailabilityView = read(chat.availability(None).await.unwrap());
            for presence in chat.presence().await.unwrap() {
                let _: PresenceView = read(presence.to_json());
            }
            let counts = chat.counts(Some(&agent.id)).await.unwrap();
            let _: ConversationCountsView = read(counts.to_json());
            let mut numbers = chat.dashboard(Some(&agent.id)).await.unwrap().to_json();
            numbers["agents"] = json!([]);
            numbers["availability"] = chat.availability(None).await.unwrap();
            let _: DashboardView = read(numbers);
            let now = t.store.now();
            let from = store::Millis(now.0 - 86_400_000);
            let to = store::Millis(now.0 + 1_000);
            let tags = Some(vec!["refund".to_owned()]);
            let change = desk::chat::ConversationChange { tags, ..Default::default() };
            let id = &sent.conversation.id;
            chat.change_conversation(id, change, None, None).await.unwrap();
            let by_tag = chat.report(from, to, ReportGroup::Tag).await.unwrap();
            assert_eq!(by_tag.iter().map(|row| row.key.as_str()).collect::<Vec<_>>(), ["refund"]);
            let rows = chat.report(from, to, ReportGroup::Agent).await.unwrap();
            assert!(!rows.is_empty());
            for row in &rows {
                let _: ReportGroupView = read(row.to_json());
            }
            let _: SlaView = read(chat.sla_targets().to_json());
        });
    }
}
