//! Events of the chat for webhooks: in order per conversation, each with an id of its own.

use serde_json::Value;
use web::webhook::{Event, EventType};

/// The types of events.
pub(crate) const EVENTS: &[EventType] = &[
    EventType { name: "desk.conversation.created", help: "A conversation was started." },
    EventType {
        name: "desk.conversation.updated",
        help: "Priority, tags, team or subject of a conversation changed.",
    },
    EventType {
        name: "desk.conversation.assigned",
        help: "A conversation was assigned to an agent.",
    },
    EventType {
        name: "desk.conversation.unassigned",
        help: "A conversation went back into the queue.",
    },
    EventType { name: "desk.conversation.resolved", help: "A conversation was resolved." },
    EventType {
        name: "desk.conversation.reopened",
        help: "A resolved conversation is open again.",
    },
    EventType { name: "desk.conversation.rated", help: "A visitor rated a conversation." },
    EventType { name: "desk.message.created", help: "A message was sent; notes are included." },
    EventType { name: "desk.message.updated", help: "A message was changed." },
    EventType { name: "desk.message.deleted", help: "A message was deleted." },
    EventType { name: "desk.sla.warning", help: "A reply is due within a minute." },
    EventType { name: "desk.sla.breached", help: "A reply is overdue." },
];

/// The event for webhooks, if there is one of this type.
pub(crate) fn event_of(kind: &str, conversation: &str, event_no: i64, data: &str) -> Option<Event> {
    let found = EVENTS.iter().find(|known| known.name.strip_prefix("desk.") == Some(kind))?;
    Some(Event {
        id: Some(format!("{conversation}-{event_no}")),
        kind: found.name,
        subject: conversation.to_owned(),
        text: format!("{} ({conversation})", found.help.trim_end_matches('.')),
        data: serde_json::from_str(data).unwrap_or(Value::Null),
    })
}
