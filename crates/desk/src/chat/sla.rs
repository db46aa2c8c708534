//! Promises to reply: the time to the first and to every further reply, by priority, in business time.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use sqlx::{AnyPool, Row};
use store::Millis;

use super::{Chat, ChatPriority, Conversation, agents::Roster};
use crate::Error;

/// The row of `meta` that has them.
const ROW: &str = "sla";

/// Longest promise in seconds: 30 days of business time.
const SECONDS_MAX: u32 = 30 * 86_400;

/// Seconds within which a reply is promised; 0 promises nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlaTarget {
    /// To the first message of a conversation.
    pub first_reply_seconds: u32,
    /// To every further one.
    pub next_reply_seconds: u32,
}

/// Promises by priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlaTargets {
    /// In the order of [`ChatPriority::ALL`].
    targets: [SlaTarget; 4],
}

impl Default for SlaTargets {
    fn default() -> Self {
        let target =
            |first| SlaTarget { first_reply_seconds: first, next_reply_seconds: 2 * first };
        Self { targets: [target(300), target(900), target(3_600), target(14_400)] }
    }
}

impl SlaTargets {
    /// Returns the promise of a priority.
    pub fn of(&self, priority: ChatPriority) -> SlaTarget {
        let [urgent, high, normal, low] = self.targets;
        match priority {
            ChatPriority::Urgent => urgent,
            ChatPriority::High => high,
            ChatPriority::Normal => normal,
            ChatPriority::Low => low,
        }
    }

    /// Parses `{"urgent": {"first_reply_seconds": 300, "next_reply_seconds": 600}, …}`. What is left out stays as
    /// it is in `before`.
    ///
    /// # Errors
    /// An unknown priority or field; not a number of 0 to 2,592,000.
    pub fn parse(json: &Value, before: &Self) -> Result<Self, Error> {
        let bad = |message: String| Error::invalid("sla", message);
        let fields = json.as_object().ok_or_else(|| bad("an object by priority".to_owned()))?;
        let mut targets = before.targets;
        for (name, target) in fields {
            let at = ChatPriority::ALL
                .iter()
                .position(|known| known.as_str() == name)
                .ok_or_else(|| bad(format!("{name:?} is none of urgent, high, normal, low")))?;
            let target = target.as_object().ok_or_else(|| {
                bad(format!("{name}: an object of first_reply_seconds and next_reply_seconds"))
            })?;
            for (field, seconds) in target {
                let seconds = seconds
                    .as_u64()
                    .and_then(|seconds| u32::try_from(seconds).ok())
                    .filter(|seconds| *seconds <= SECONDS_MAX)
                    .ok_or_else(|| {
                        bad(format!(
                            "{name}.{field}: 0 to {SECONDS_MAX} seconds; 0 promises nothing"
                        ))
                    })?;
                match field.as_str() {
                    "first_reply_seconds" => targets[at].first_reply_seconds = seconds,
                    "next_reply_seconds" => targets[at].next_reply_seconds = seconds,
                    _ => {
                        return Err(bad(format!(
                            "unknown field {field:?}; known: first_reply_seconds, next_reply_seconds"
                        )));
                    }
                }
            }
        }
        Ok(Self { targets })
    }

    /// Returns the JSON that [`parse`](Self::parse) reads.
    pub fn to_json(&self) -> Value {
        let mut all = Map::new();
        for (priority, target) in ChatPriority::ALL.iter().zip(self.targets) {
            let target = json!({
                "first_reply_seconds": target.first_reply_seconds,
                "next_reply_seconds": target.next_reply_seconds,
            });
            all.insert(priority.as_str().to_owned(), target);
        }
        Value::Object(all)
    }

    /// Reads what the archive has.
    pub(crate) async fn load(readers: &AnyPool) -> Result<Self, Error> {
        let row = sqlx::query("SELECT value FROM meta WHERE name = $1")
            .bind(ROW)
            .fetch_optional(readers)
            .await?;
        let text: Option<String> = row.map(|row| row.try_get(0)).transpose()?;
        let before = Self::default();
        match text.as_deref().map(serde_json::from_str::<Value>) {
            Some(Ok(json)) => Self::parse(&json, &before),
            _ => Ok(before),
        }
    }
}

impl Roster {
    /// Starts the clock of the promise to reply, in business time.
    pub(crate) fn start_sla(&self, conversation: &mut Conversation, now: Millis) {
        let is_first = conversation.first_reply_at.is_none();
        let target = self.sla.of(conversation.priority);
        let seconds = if is_first { target.first_reply_seconds } else { target.next_reply_seconds };
        if seconds == 0 {
            conversation.sla_due_at = None;
            conversation.sla_kind = None;
            conversation.sla_state = "none".to_owned();
            return;
        }
        let ms = i64::from(seconds) * 1_000;
        let team = conversation.team.as_ref().and_then(|team| self.teams.get(team));
        let due = match team {
            Some(team) => team.hours.add(now, ms),
            None => Millis(now.0 + ms),
        };
        conversation.sla_due_at = Some(due);
        conversation.sla_kind =
            Some(if is_first { "first_reply" } else { "next_reply" }.to_owned());
        conversation.sla_state = "running".to_owned();
    }
}

impl Chat {
    /// Returns the promises to reply.
    pub fn sla_targets(&self) -> SlaTargets {
        self.0.roster.load().sla
    }

    /// Changes the promises to reply. They count for what is asked from now on, and on other instances within
    /// seconds.
    ///
    /// # Errors
    /// As of [`SlaTargets::parse`].
    pub async fn put_sla_targets(&self, json: &Value) -> Result<SlaTargets, Error> {
        let targets = SlaTargets::parse(json, &self.sla_targets())?;
        let text = Arc::new(targets.to_json().to_string());
        self.0
            .archive
            .write(move |tx| {
                let text = Arc::clone(&text);
                Box::pin(async move {
                    sqlx::query(
                        "INSERT INTO meta (name, value) VALUES ($1, $2) \
                         ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                    )
                    .bind(ROW)
                    .bind(text.to_string())
                    .execute(&mut *tx)
                    .await?;
                    Ok(())
                })
            })
            .await?;
        self.roster_changed().await?;
        Ok(targets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_are_changed_one_by_one_within_bounds() {
        let before = SlaTargets::default();
        let json =
            json!({ "high": { "first_reply_seconds": 420 }, "low": { "next_reply_seconds": 0 } });
        let after = SlaTargets::parse(&json, &before).unwrap();
        assert_eq!(after.of(ChatPriority::High).first_reply_seconds, 420);
        assert_eq!(after.of(ChatPriority::High).next_reply_seconds, 1_800);
        assert_eq!(after.of(ChatPriority::Low).next_reply_seconds, 0);
        assert_eq!(after.of(ChatPriority::Urgent), before.of(ChatPriority::Urgent));
        assert_eq!(SlaTargets::parse(&after.to_json(), &before).unwrap(), after);
        for bad in [
            json!([]),
            json!({ "medium": {} }),
            json!({ "high": 5 }),
            json!({ "high": { "first_reply_seconds": -1 } }),
            json!({ "high": { "first_reply_seconds": 2_592_001 } }),
            json!({ "high": { "first": 1 } }),
        ] {
            assert!(SlaTargets::parse(&bad, &before).is_err(), "{bad}");
        }
    }
}
