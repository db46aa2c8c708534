//! Numbers: the dashboard of an agent, as the schema has it, and reports over time.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Row};
use store::{Millis, redis};

use super::{
    Chat, Conversation, PresenceStatus,
    record::{CONVERSATION_SELECT, chat_words},
    rfc3339,
};
use crate::{AgentId, Error, archive::Dialect};

/// TTL of a dashboard in seconds.
const DASHBOARD_TTL_S: i64 = 300;

const DAY_MS: i64 = 86_400_000;

chat_words! {
    /// Grouping of a report.
    ReportGroup, "group" {
        /// By day (UTC).
        Day = "day",
        /// By agent.
        Agent = "agent",
        /// By tag; a conversation with two tags counts under both.
        Tag = "tag",
    }
}

/// The numbers of the desk, and of one agent.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the fields are described with the JSON, in docs/desk.md")]
pub struct ChatDashboard {
    pub open: i64,
    pub waiting: i64,
    pub assigned: i64,
    pub unread: i64,
    pub resolved_today: i64,
    pub oldest_waiting_ms: Option<i64>,
    pub my_assigned: i64,
    pub my_unread: i64,
    pub my_resolved_today: i64,
    /// Mean time to the first reply in the last 24 hours.
    pub first_reply_ms: Option<i64>,
    pub my_reply_ms: Option<i64>,
    pub sla_at_risk: i64,
}

impl ChatDashboard {
    /// Returns its JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "totals": {
                "open": self.open,
                "waiting": self.waiting,
                "assigned": self.assigned,
                "unread": self.unread,
                "resolved_today": self.resolved_today,
                "sla_at_risk": self.sla_at_risk,
            },
            "me": {
                "assigned": self.my_assigned,
                "unread": self.my_unread,
                "resolved_today": self.my_resolved_today,
            },
            "oldest_waiting_ms": self.oldest_waiting_ms,
            "first_reply_ms": self.first_reply_ms,
            "total_active": self.open,
            "assigned_to_me": self.my_assigned,
            "unread_count": self.my_unread,
            "avg_response_time": minutes(self.my_reply_ms),
            "resolved_today": self.my_resolved_today,
        })
    }
}

fn minutes(ms: Option<i64>) -> f64 {
    (ms.unwrap_or(0) as f64 / 6_000.0).round() / 10.0
}

/// A row of a report.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the fields are described with the JSON, in docs/desk.md")]
pub struct ReportRow {
    pub key: String,
    pub name: Option<String>,
    pub created: i64,
    pub resolved: i64,
    pub replies: i64,
    pub first_reply_ms: Option<i64>,
    pub next_reply_ms: Option<i64>,
    pub resolution_ms: Option<i64>,
    pub handling_ms: Option<i64>,
    pub ratings: i64,
    pub rating: Option<f64>,
    pub in_time_percent: Option<f64>,
}

impl ReportRow {
    fn new(key: &str) -> Self {
        Self {
            key: key.to_owned(),
            name: None,
            created: 0,
            resolved: 0,
            replies: 0,
            first_reply_ms: None,
            next_reply_ms: None,
            resolution_ms: None,
            handling_ms: None,
            ratings: 0,
            rating: None,
            in_time_percent: None,
        }
    }

    /// Returns its JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "key": self.key,
            "name": self.name,
            "created": self.created,
            "resolved": self.resolved,
            "replies": self.replies,
            "first_reply_ms": self.first_reply_ms,
            "next_reply_ms": self.next_reply_ms,
            "resolution_ms": self.resolution_ms,
            "handling_ms": self.handling_ms,
            "ratings": self.ratings,
            "rating": self.rating,
            "in_time_percent": self.in_time_percent,
        })
    }
}

impl Chat {
    /// Returns the numbers of the desk, and of an agent.
    ///
    /// # Errors
    /// The archive cannot be read.
    pub async fn dashboard(&self, agent: Option<&AgentId>) -> Result<ChatDashboard, Error> {
        let (now, readers) = (self.now(), self.0.archive.readers());
        let agent = agent.map(AgentId::as_str).unwrap_or_default().to_owned();
        let row = sqlx::query(
            "SELECT COUNT(*) AS every, COUNT(assignee) AS assigned, \
             COUNT(CASE WHEN assignee IS NULL AND queued_ms IS NOT NULL AND bot = 0 THEN 1 END) AS waiting, \
             MIN(CASE WHEN assignee IS NULL AND bot = 0 THEN waiting_ms END) AS oldest, \
             COUNT(CASE WHEN unread_agent > 0 AND bot = 0 THEN 1 END) AS unread, \
             COUNT(CASE WHEN assignee = $1 THEN 1 END) AS mine, \
             COUNT(CASE WHEN assignee = $1 AND unread_agent > 0 THEN 1 END) AS my_unread, \
             COUNT(CASE WHEN sla_state IN ('at_risk', 'breached') THEN 1 END) AS at_risk \
             FROM conversations WHERE status = 'open'",
        )
        .bind(agent.clone())
        .fetch_one(readers)
        .await?;
        let midnight = now.0 - now.0.rem_euclid(DAY_MS);
        let resolved = sqlx::query(
            "SELECT COUNT(*) AS every, COUNT(CASE WHEN agent_id = $1 THEN 1 END) AS mine \
             FROM resolutions WHERE at_ms >= $2",
        )
        .bind(agent.clone())
        .bind(midnight)
        .fetch_one(readers)
        .await?;
        let replies = sqlx::query(
            "SELECT CAST(AVG(CASE WHEN first = 1 THEN waited_ms END) AS BIGINT) AS first_ms, \
             CAST(AVG(CASE WHEN agent_id = $1 THEN waited_ms END) AS BIGINT) AS mine \
             FROM replies WHERE at_ms >= $2",
        )
        .bind(agent)
        .bind(now.0 - DAY_MS)
        .fetch_one(readers)
        .await?;
        let oldest: Option<i64> = row.try_get("oldest")?;
        Ok(ChatDashboard {
            open: row.try_get("every")?,
            waiting: row.try_get("waiting")?,
            assigned: row.try_get("assigned")?,
            unread: row.try_get("unread")?,
            resolved_today: resolved.try_get("every")?,
            oldest_waiting_ms: oldest.map(|since| (now.0 - since).max(0)),
            my_assigned: row.try_get("mine")?,
            my_unread: row.try_get("my_unread")?,
            my_resolved_today: resolved.try_get("mine")?,
            first_reply_ms: replies.try_get("first_ms")?,
            my_reply_ms: replies.try_get("mine")?,
            sla_at_risk: row.try_get("at_risk")?,
        })
    }

    /// Publishes the dashboards of agents who are there, under the names of the schema.
    ///
    /// # Errors
    /// The store or the archive is away.
    pub async fn publish_dashboards(&self) -> Result<(), Error> {
        let there: Vec<AgentId> = self
            .presence()
            .await?
            .into_iter()
            .filter(|one| one.status != PresenceStatus::Offline)
            .map(|one| one.agent)
            .collect();
        let mut pipe = redis::pipe();
        for agent in &there {
            let numbers = self.dashboard(Some(agent)).await?;
            let key = self.0.keys.dashboard(agent);
            pipe.hset_multiple(
                &key,
                &[
                    ("total_active", numbers.open.to_string()),
                    ("assigned_to_me", numbers.my_assigned.to_string()),
                    ("unread_count", numbers.my_unread.to_string()),
                    ("avg_response_time", minutes(numbers.my_reply_ms).to_string()),
                    ("resolved_today", numbers.my_resolved_today.to_string()),
                ],
            )
            .ignore();
            pipe.expire(&key, DASHBOARD_TTL_S).ignore();
        }
        if !there.is_empty() {
            let () = pipe.query_async(&mut self.0.store.clone()).await?;
        }
        Ok(())
    }

    /// Measures how long an agent spends on a conversation, over the last day.
    ///
    /// # Errors
    /// The archive cannot be read.
    pub async fn measure_handling(&self) -> Result<(), Error> {
        let row = sqlx::query(
            "SELECT CAST(AVG(handled_ms) AS BIGINT) FROM (SELECT handled_ms FROM resolutions \
             WHERE at_ms >= $1 ORDER BY at_ms DESC LIMIT 500) AS recent",
        )
        .bind(self.now().0 - DAY_MS)
        .fetch_one(self.0.archive.readers())
        .await?;
        let mean: Option<i64> = row.try_get(0)?;
        self.0.handling_ms.store(mean.unwrap_or(0), Ordering::Relaxed);
        Ok(())
    }

    /// Returns a report of a time, by day, agent or tag.
    ///
    /// # Errors
    /// An end before the beginning, or more than 400 days.
    pub async fn report(
        &self,
        from: Millis,
        to: Millis,
        group: ReportGroup,
    ) -> Result<Vec<ReportRow>, Error> {
        check_range(from, to)?;
        // Tags are a list in JSON: each of them is a row of `t`.
        let tags = match (group, self.0.archive.dialect()) {
            (ReportGroup::Day | ReportGroup::Agent, _) => "",
            (ReportGroup::Tag, Dialect::Sqlite) => " JOIN json_each(c.tags) AS t",
            (ReportGroup::Tag, Dialect::Postgres) => {
                " CROSS JOIN LATERAL json_array_elements_text(c.tags::json) AS t(value)"
            }
        };
        let key = |time: &str, agent: &str| match group {
            ReportGroup::Day => format!("CAST(({time} / {DAY_MS}) AS TEXT)"),
            ReportGroup::Agent => format!("COALESCE({agent}, '')"),
            ReportGroup::Tag => "CAST(t.value AS TEXT)".to_owned(),
        };
        let mut rows: std::collections::BTreeMap<String, ReportRow> = Default::default();
        let sql = format!(
            "SELECT {} AS k, COUNT(*) AS n, COUNT(c.rating) AS ratings, \
             CAST(AVG(c.rating) AS DOUBLE PRECISION) AS rating FROM conversations c{tags} \
             WHERE c.created_ms >= $1 AND c.created_ms < $2 GROUP BY 1",
            key("c.created_ms", "COALESCE(c.assignee, c.last_agent)")
        );
        for row in self.report_rows(sql, from, to).await? {
            let one = entry(&mut rows, &row)?;
            one.created = row.try_get("n")?;
            one.ratings = row.try_get("ratings")?;
            one.rating = row.try_get("rating")?;
        }
        let sql = format!(
            "SELECT {} AS k, COUNT(*) AS n, CAST(AVG(r.handled_ms) AS BIGINT) AS handled, \
             CAST(AVG(r.at_ms - c.created_ms) AS BIGINT) AS took \
             FROM resolutions r JOIN conversations c ON c.id = r.conversation_id{tags} \
             WHERE r.at_ms >= $1 AND r.at_ms < $2 GROUP BY 1",
            key("r.at_ms", "r.agent_id")
        );
        for row in self.report_rows(sql, from, to).await? {
            let one = entry(&mut rows, &row)?;
            one.resolved = row.try_get("n")?;
            one.handling_ms = row.try_get("handled")?;
            one.resolution_ms = row.try_get("took")?;
        }
        let sql = format!(
            "SELECT {} AS k, COUNT(*) AS n, \
             CAST(AVG(CASE WHEN r.first = 1 THEN r.waited_ms END) AS BIGINT) AS first_ms, \
             CAST(AVG(CASE WHEN r.first = 0 THEN r.waited_ms END) AS BIGINT) AS next_ms, \
             COUNT(r.in_time) AS promised, COUNT(CASE WHEN r.in_time = 1 THEN 1 END) AS kept \
             FROM replies r JOIN conversations c ON c.id = r.conversation_id{tags} \
             WHERE r.at_ms >= $1 AND r.at_ms < $2 GROUP BY 1",
            key("r.at_ms", "r.agent_id")
        );
        for row in self.report_rows(sql, from, to).await? {
            let one = entry(&mut rows, &row)?;
            one.replies = row.try_get("n")?;
            one.first_reply_ms = row.try_get("first_ms")?;
            one.next_reply_ms = row.try_get("next_ms")?;
            let (promised, kept): (i64, i64) = (row.try_get("promised")?, row.try_get("kept")?);
            one.in_time_percent = (promised > 0).then(|| kept as f64 * 100.0 / promised as f64);
        }
        let roster = self.0.roster.load_full();
        Ok(rows
            .into_values()
            .map(|mut row| {
                match group {
                    ReportGroup::Day => {
                        let day: i64 = row.key.parse().unwrap_or(0);
                        row.key = rfc3339(Millis(day * DAY_MS)).chars().take(10).collect();
                    }
                    ReportGroup::Agent => {
                        let agent = AgentId::parse(&row.key).ok();
                        row.name = agent.and_then(|id| Some(roster.agents.get(&id)?.name.clone()));
                    }
                    ReportGroup::Tag => {}
                }
                row
            })
            .collect())
    }

    /// Returns conversations that were begun in a time, oldest first, after the last one of the page before.
    ///
    /// # Errors
    /// An end before the beginning, or more than 400 days.
    pub async fn report_conversations(
        &self,
        from: Millis,
        to: Millis,
        after: Option<&Conversation>,
        limit: usize,
    ) -> Result<Vec<Conversation>, Error> {
        check_range(from, to)?;
        let sql = format!(
            "{CONVERSATION_SELECT} WHERE c.created_ms >= $1 AND c.created_ms < $2 \
             AND (c.created_ms > $1 OR c.id > $3) ORDER BY c.created_ms, c.id LIMIT $4"
        );
        let begin = after.map_or(from, |last| last.created_at);
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(begin.0)
            .bind(to.0)
            .bind(after.map(|last| last.id.to_string()).unwrap_or_default())
            .bind(i64::try_from(limit.clamp(1, 1_000)).unwrap_or(1_000))
            .fetch_all(self.0.archive.readers())
            .await?;
        rows.iter().map(Conversation::read).collect()
    }

    async fn report_rows(
        &self,
        sql: String,
        from: Millis,
        to: Millis,
    ) -> Result<Vec<sqlx::any::AnyRow>, Error> {
        Ok(sqlx::query(AssertSqlSafe(sql))
            .bind(from.0)
            .bind(to.0)
            .fetch_all(self.0.archive.readers())
            .await?)
    }
}

/// Refuses a time that is no time, or too long for one report.
fn check_range(from: Millis, to: Millis) -> Result<(), Error> {
    if to <= from || to.0 - from.0 > 400 * DAY_MS {
        return Err(Error::invalid("to", "after from, by at most 400 days"));
    }
    Ok(())
}

fn entry<'a>(
    rows: &'a mut std::collections::BTreeMap<String, ReportRow>,
    row: &sqlx::any::AnyRow,
) -> Result<&'a mut ReportRow, Error> {
    let key: String = row.try_get("k")?;
    Ok(rows.entry(key.clone()).or_insert_with(|| ReportRow::new(&key)))
}
