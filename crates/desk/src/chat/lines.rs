//! The lines of an export: one JSON object each, with `kind`. `docs/desk.md` describes them.
//!
//! What can be computed from a conversation's messages (its last number, preview, unread counts) is not
//! in its line. An import computes it, so that a line cannot contradict the messages that follow it.

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::{Map, Value};
use store::Millis;

use super::rfc3339;

/// The name of the format, in the first line.
pub const LINES_FORMAT: &str = "tidegate-desk";

/// The version of the format, in the first line.
pub const LINES_VERSION: u32 = 1;

/// A time as JSON has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LineTime(pub(crate) Millis);

impl Serialize for LineTime {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&rfc3339(self.0))
    }
}

impl<'de> Deserialize<'de> for LineTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let time = text.parse::<jiff::Timestamp>().map_err(|_| {
            D::Error::custom(format!("{text:?} is not a time such as 2026-11-17T12:00:00Z"))
        })?;
        Ok(Self(Millis(time.as_millisecond())))
    }
}

/// Tells a field that is null from one that is missing.
fn nullable<'de, T, D>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Option::<T>::deserialize(deserializer).map(Some)
}

/// The first line.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HeaderLine {
    pub(crate) format: String,
    pub(crate) version: u32,
    #[serde(default)]
    pub(crate) exported_at: Option<LineTime>,
    /// The person whose data it is; everything if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AgentLine {
    pub(crate) id: String,
    pub(crate) email: String,
    pub(crate) name: String,
    #[serde(default = "agent_role")]
    pub(crate) role: String,
    #[serde(default)]
    pub(crate) capacity: Option<u32>,
    #[serde(default)]
    pub(crate) skills: Vec<String>,
    #[serde(default)]
    pub(crate) team_ids: Vec<String>,
    #[serde(default)]
    pub(crate) disabled: bool,
    pub(crate) created_at: LineTime,
}

fn agent_role() -> String {
    "agent".to_owned()
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TeamLine {
    pub(crate) id: String,
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) hours: Map<String, Value>,
    pub(crate) created_at: LineTime,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CannedLine {
    pub(crate) id: String,
    pub(crate) short_code: String,
    pub(crate) content: String,
    pub(crate) created_at: LineTime,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VisitorLine {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) name: Option<String>,
    #[serde(default)]
    pub(crate) email: Option<String>,
    /// Follows from the id, and must agree with it.
    #[serde(default)]
    pub(crate) verified: Option<bool>,
    #[serde(default)]
    pub(crate) notes: String,
    #[serde(default)]
    pub(crate) attributes: Map<String, Value>,
    #[serde(default)]
    pub(crate) page_url: Option<String>,
    #[serde(default)]
    pub(crate) locale: Option<String>,
    pub(crate) created_at: LineTime,
    #[serde(default)]
    pub(crate) seen_at: Option<LineTime>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConversationLine {
    pub(crate) id: String,
    pub(crate) visitor_id: String,
    pub(crate) status: String,
    #[serde(default = "normal")]
    pub(crate) priority: String,
    #[serde(default)]
    pub(crate) subject: Option<String>,
    #[serde(default)]
    pub(crate) tags: Vec<String>,
    #[serde(default = "import_channel")]
    pub(crate) channel: String,
    #[serde(default)]
    pub(crate) team_id: Option<String>,
    #[serde(default)]
    pub(crate) skills: Vec<String>,
    #[serde(default)]
    pub(crate) assignee: Option<String>,
    #[serde(default)]
    pub(crate) last_agent: Option<String>,
    #[serde(default)]
    pub(crate) missed: Vec<String>,
    #[serde(default)]
    pub(crate) bot: bool,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) waiting_since: Option<Option<LineTime>>,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) queued_since: Option<Option<LineTime>>,
    #[serde(default)]
    pub(crate) agent_read_seq: Option<i64>,
    #[serde(default)]
    pub(crate) visitor_read_seq: Option<i64>,
    #[serde(default)]
    pub(crate) mentions: Vec<String>,
    #[serde(default)]
    pub(crate) wakes_at: Option<LineTime>,
    #[serde(default)]
    pub(crate) sla: Option<SlaLine>,
    #[serde(default)]
    pub(crate) first_reply_at: Option<LineTime>,
    #[serde(default)]
    pub(crate) rating: Option<i64>,
    #[serde(default)]
    pub(crate) rating_comment: Option<String>,
    pub(crate) created_at: LineTime,
    #[serde(default)]
    pub(crate) assigned_at: Option<LineTime>,
    #[serde(default)]
    pub(crate) resolved_at: Option<LineTime>,
    #[serde(default)]
    pub(crate) merged_into: Option<String>,
    #[serde(default)]
    pub(crate) replies: Vec<ReplyLine>,
    #[serde(default)]
    pub(crate) resolutions: Vec<ResolutionLine>,
}

fn normal() -> String {
    "normal".to_owned()
}

fn import_channel() -> String {
    "import".to_owned()
}

/// The promise to reply.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SlaLine {
    pub(crate) kind: Option<String>,
    pub(crate) due_at: Option<LineTime>,
    pub(crate) state: String,
}

/// A reply, for reports.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReplyLine {
    pub(crate) seq: i64,
    pub(crate) agent_id: String,
    pub(crate) first: bool,
    pub(crate) waited_ms: i64,
    pub(crate) at: LineTime,
    pub(crate) in_time: Option<bool>,
}

/// A resolution, for reports.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResolutionLine {
    pub(crate) at: LineTime,
    pub(crate) agent_id: Option<String>,
    pub(crate) handled_ms: i64,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SenderLine {
    #[serde(default)]
    pub(crate) id: Option<String>,
    #[serde(default)]
    pub(crate) name: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MessageLine {
    #[serde(default)]
    pub(crate) id: Option<String>,
    pub(crate) conversation_id: String,
    #[serde(default)]
    pub(crate) seq: Option<i64>,
    #[serde(default)]
    pub(crate) client_id: Option<String>,
    pub(crate) sender_role: String,
    #[serde(default)]
    pub(crate) sender: SenderLine,
    #[serde(rename = "type", default = "text_type")]
    pub(crate) message_type: String,
    #[serde(default)]
    pub(crate) content: String,
    pub(crate) created_at: LineTime,
    #[serde(default)]
    pub(crate) edited_at: Option<LineTime>,
    #[serde(default)]
    pub(crate) deleted: bool,
}

fn text_type() -> String {
    "text".to_owned()
}

/// A file, after the message it was sent with.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileLine {
    pub(crate) id: String,
    pub(crate) name: String,
    /// For the reader; an import finds it out from the contents.
    #[serde(default)]
    pub(crate) mime: Option<String>,
    #[serde(default)]
    pub(crate) size: Option<i64>,
    pub(crate) owner: String,
    #[serde(default)]
    pub(crate) conversation_id: Option<String>,
    #[serde(default)]
    pub(crate) seq: Option<i64>,
    pub(crate) created_at: LineTime,
    /// The contents in base64; null when they are lost.
    #[serde(default)]
    pub(crate) data: Option<String>,
}

/// Makes the text of a line.
pub(crate) fn line_of(kind: &str, fields: &impl Serialize) -> Result<String, serde_json::Error> {
    let mut text = format!("{{\"kind\":\"{kind}\"");
    let fields = serde_json::to_string(fields)?;
    if fields != "{}" {
        text.push(',');
    }
    text.push_str(fields.get(1..).unwrap_or("}"));
    text.push('\n');
    Ok(text)
}
