//! Lists: conversations by view, messages by number, search. Every list has an index or a bound.

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Row};
use store::Millis;

use super::{
    Chat, Conversation, ConversationStatus, Message,
    record::{CONVERSATION_SELECT, MESSAGE_SELECT, chat_words},
};
use crate::{
    AgentId, ConversationId, Error, TeamId, UserId,
    archive::{
        Dialect,
        statement::{SqlValue, bind_all},
    },
};

/// Most conversations that a search by text looks at.
const SEARCH_MOST: i64 = 500;

/// Unread first, then the higher priority, then the longer wait. The index `conversations_urgency` has this order.
const URGENCY_ORDER: &str = "CASE WHEN c.unread_agent > 0 AND c.bot = 0 THEN 0 ELSE 1 END, \
    CASE c.priority WHEN 'urgent' THEN 0 WHEN 'high' THEN 1 WHEN 'normal' THEN 2 ELSE 3 END, \
    COALESCE(c.waiting_ms, 9000000000000000), c.last_message_ms DESC, c.id";

/// Counts open conversations by view. The index `conversations_counts` has all columns.
const COUNT_OPEN: &str = "SELECT COUNT(*) AS every, \
    COUNT(CASE WHEN c.assignee = $1 THEN 1 END) AS mine, \
    COUNT(CASE WHEN c.assignee IS NULL THEN 1 END) AS unassigned, \
    COUNT(CASE WHEN c.unread_agent > 0 AND c.bot = 0 THEN 1 END) AS unread, \
    COUNT(CASE WHEN c.team_id IN (SELECT team_id FROM team_members WHERE agent_id = $1) THEN 1 END) AS team \
    FROM conversations c WHERE c.status = 'open'";

/// Counts open conversations that mention an agent. The index `conversations_mentions` has those that mention anybody.
const COUNT_MENTIONS: &str = "SELECT COUNT(*) FROM conversations c \
    WHERE c.status = 'open' AND c.mentions <> '[]' AND c.mentions LIKE $1";

/// Most people that a search by name or address looks at.
const PEOPLE_MOST: i64 = 100;

chat_words! {
    /// View of the list of conversations.
    ConversationView, "view" {
        /// Those of the agent who asks.
        Mine = "mine",
        /// Those without an agent.
        Unassigned = "unassigned",
        /// All.
        All = "all",
        /// Those with unread messages.
        Unread = "unread",
        /// Those whose notes mention the agent who asks.
        Mentions = "mentions",
        /// Those of the teams of the agent who asks.
        Team = "team",
        /// Those that sleep, or were left while nobody was there.
        Snoozed = "snoozed",
    }
}

/// Selects conversations.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the fields are described with the query, in docs/desk.md")]
pub struct ConversationList {
    pub view: ConversationView,
    /// The agent who asks.
    pub agent: Option<AgentId>,
    /// Left out: open ones, or those of the view.
    pub status: Option<ConversationStatus>,
    pub priority: Option<super::ChatPriority>,
    pub assignee: Option<AgentId>,
    pub team: Option<TeamId>,
    pub tag: Option<String>,
    pub visitor: Option<UserId>,
    /// Words in messages, or the beginning of a visitor's name or address.
    pub text: Option<String>,
    /// Most urgent first instead of the newest message first.
    pub by_urgency: bool,
    pub limit: usize,
    pub cursor: Option<String>,
}

impl Default for ConversationList {
    fn default() -> Self {
        Self {
            view: ConversationView::All,
            agent: None,
            status: None,
            priority: None,
            assignee: None,
            team: None,
            tag: None,
            visitor: None,
            text: None,
            by_urgency: false,
            limit: 50,
            cursor: None,
        }
    }
}

/// Open conversations by view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the names of views")]
pub struct ConversationCounts {
    pub mine: i64,
    pub unassigned: i64,
    pub all: i64,
    pub unread: i64,
    pub mentions: i64,
    pub team: i64,
    pub snoozed: i64,
}

impl ConversationCounts {
    /// Returns its JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "mine": self.mine, "unassigned": self.unassigned, "all": self.all, "unread": self.unread,
            "mentions": self.mentions, "team": self.team, "snoozed": self.snoozed,
        })
    }
}

/// A page of messages, oldest first.
#[derive(Clone, Debug)]
pub struct MessagePage {
    /// The messages.
    pub messages: Vec<Message>,
    /// Number of the conversation's last message that the reader may see.
    pub last_seq: i64,
    /// There are more in the direction that was asked for.
    pub has_more: bool,
}

/// A condition and its values.
#[derive(Debug, Default)]
struct Conditions {
    parts: Vec<String>,
    values: Vec<SqlValue>,
}

impl Conditions {
    fn mark(&mut self, value: impl Into<SqlValue>) -> String {
        self.values.push(value.into());
        format!("${}", self.values.len())
    }

    fn text(&mut self, condition: &str, value: &str) {
        let mark = self.mark(value);
        self.parts.push(condition.replace('?', &mark));
    }
}

impl Conditions {
    /// Selects visitors by the beginning of their name, of what follows their first name, or of their address.
    fn people(&mut self, text: &str, dialect: Dialect) -> String {
        let columns = match dialect {
            Dialect::Sqlite => ["p.name", "substr(p.name, instr(p.name, ' ') + 1)", "p.email"],
            Dialect::Postgres => ["p.name", "substr(p.name, strpos(p.name, ' ') + 1)", "p.email"],
        };
        let marks = match dialect {
            Dialect::Sqlite => {
                // The last character there is ends what begins with the text.
                let end = format!("{text}\u{10ffff}");
                [text.to_owned(), end].map(|text| self.mark(text)).to_vec()
            }
            Dialect::Postgres => {
                let text = text.to_lowercase().replace('!', "!!");
                let text = text.replace('%', "!%").replace('_', "!_");
                vec![self.mark(format!("{text}%"))]
            }
        };
        let found = columns.map(|column| {
            let condition = match marks.as_slice() {
                [from, to] => format!(
                    "{column} COLLATE NOCASE >= {from} AND {column} COLLATE NOCASE < {to}"
                ),
                _ => format!("lower({column}) LIKE {} ESCAPE '!'", marks.concat()),
            };
            format!(
                "SELECT f.id FROM (SELECT p.id FROM visitors p WHERE {condition} LIMIT {PEOPLE_MOST}) AS f"
            )
        });
        found.join(" UNION ")
    }
}

impl Chat {
    /// Returns a conversation.
    ///
    /// # Errors
    /// There is none of this id.
    pub async fn conversation(&self, id: &ConversationId) -> Result<Conversation, Error> {
        let row = sqlx::query(AssertSqlSafe(format!("{CONVERSATION_SELECT} WHERE c.id = $1")))
            .bind(id.as_str().to_owned())
            .fetch_optional(self.0.archive.readers())
            .await?;
        row.map_or(Err(Error::NotFound { what: "conversation" }), |row| Conversation::read(&row))
    }

    /// Returns messages after or before a number, at most `limit`; without notes for visitors.
    ///
    /// # Errors
    /// The archive cannot be read.
    pub async fn messages(
        &self,
        id: &ConversationId,
        after_seq: Option<i64>,
        before_seq: Option<i64>,
        limit: usize,
        with_notes: bool,
    ) -> Result<MessagePage, Error> {
        let limit = i64::try_from(limit.clamp(1, 500)).unwrap_or(100);
        let notes = if with_notes { "" } else { " AND type <> 'note'" };
        let (range, order) = match (after_seq, before_seq) {
            (Some(_), _) => ("seq > $2", "ASC"),
            (None, Some(_)) => ("seq < $2", "DESC"),
            (None, None) => ("seq > $2", "DESC"),
        };
        let bound = after_seq.or(before_seq).unwrap_or(0);
        let sql = format!(
            "{MESSAGE_SELECT} WHERE conversation_id = $1 AND {range}{notes} ORDER BY seq {order} LIMIT $3"
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(id.as_str().to_owned())
            .bind(bound)
            .bind(limit + 1)
            .fetch_all(self.0.archive.readers())
            .await?;
        let mut messages = rows.iter().map(Message::read).collect::<Result<Vec<_>, _>>()?;
        let has_more = messages.len() > usize::try_from(limit).unwrap_or(0);
        messages.truncate(usize::try_from(limit).unwrap_or(0));
        if order == "DESC" {
            messages.reverse();
        }
        let sql =
            format!("SELECT COALESCE(MAX(seq), 0) FROM messages WHERE conversation_id = $1{notes}");
        let row = sqlx::query(AssertSqlSafe(sql))
            .bind(id.as_str().to_owned())
            .fetch_one(self.0.archive.readers())
            .await?;
        Ok(MessagePage { messages, last_seq: row.try_get(0)?, has_more })
    }

    /// Returns a page of conversations and the cursor of the next.
    ///
    /// # Errors
    /// An invalid cursor.
    pub async fn list(
        &self,
        list: &ConversationList,
    ) -> Result<(Vec<Conversation>, Option<String>), Error> {
        let mut conditions = self.conditions(list);
        let limit = list.limit.clamp(1, 1_000);
        let bad = || Error::invalid("cursor", "use next_cursor of an earlier answer as it was");
        let mut offset = 0_i64;
        let order = if list.by_urgency {
            if let Some(cursor) = &list.cursor {
                offset = cursor.parse().ok().filter(|at| *at >= 0).ok_or_else(bad)?;
            }
            URGENCY_ORDER
        } else {
            if let Some(cursor) = &list.cursor {
                let (ms, id) = cursor.split_once('-').ok_or_else(bad)?;
                let ms: i64 = ms.parse().map_err(|_| bad())?;
                let ms = conditions.mark(ms);
                let id = conditions.mark(id);
                conditions.parts.push(format!(
                    "(c.last_message_ms < {ms} OR (c.last_message_ms = {ms} AND c.id < {id}))"
                ));
            }
            "c.last_message_ms DESC, c.id DESC"
        };
        let filter = conditions.parts.join(" AND ");
        let count = conditions.mark(i64::try_from(limit).unwrap_or(50) + 1);
        let from = conditions.mark(offset);
        let sql = format!(
            "{CONVERSATION_SELECT} WHERE {filter} ORDER BY {order} LIMIT {count} OFFSET {from}"
        );
        let rows = bind_all(sqlx::query(AssertSqlSafe(sql)), conditions.values)
            .fetch_all(self.0.archive.readers())
            .await?;
        let mut found = rows.iter().map(Conversation::read).collect::<Result<Vec<_>, _>>()?;
        let has_more = found.len() > limit;
        found.truncate(limit);
        let next = match found.last() {
            Some(_) if has_more && list.by_urgency => {
                Some((offset + i64::try_from(limit).unwrap_or(0)).to_string())
            }
            Some(last) if has_more => Some(format!("{}-{}", last.last_message_at.0, last.id)),
            _ => None,
        };
        Ok((found, next))
    }

    fn conditions(&self, list: &ConversationList) -> Conditions {
        let mut found = Conditions::default();
        let mut status = list.status;
        match list.view {
            ConversationView::Mine => found.text(
                "c.assignee = ?",
                list.agent.as_ref().map(AgentId::as_str).unwrap_or_default(),
            ),
            ConversationView::Unassigned => found.parts.push("c.assignee IS NULL".to_owned()),
            ConversationView::Unread => {
                found.parts.push("c.unread_agent > 0 AND c.bot = 0".to_owned());
            }
            ConversationView::Mentions => {
                let agent = list.agent.as_ref().map(AgentId::as_str).unwrap_or_default();
                found.text("c.mentions LIKE ?", &format!("%\"{agent}\"%"));
            }
            ConversationView::Team => {
                let agent = list.agent.as_ref().map(AgentId::as_str).unwrap_or_default();
                found.text(
                    "c.team_id IN (SELECT team_id FROM team_members WHERE agent_id = ?)",
                    agent,
                );
            }
            ConversationView::Snoozed => {
                status = status.or(Some(ConversationStatus::Pending));
            }
            ConversationView::All => {}
        }
        let is_search = list.text.is_some() || list.visitor.is_some();
        if status.is_none() && !is_search {
            status = Some(ConversationStatus::Open);
        }
        if let Some(status) = status {
            found.text("c.status = ?", status.as_str());
        }
        if let Some(priority) = list.priority {
            found.text("c.priority = ?", priority.as_str());
        }
        if let Some(assignee) = &list.assignee {
            found.text("c.assignee = ?", assignee.as_str());
        }
        if let Some(team) = &list.team {
            found.text("c.team_id = ?", team.as_str());
        }
        if let Some(visitor) = &list.visitor {
            found.text("c.visitor_id = ?", visitor.as_str());
        }
        if let Some(tag) = &list.tag {
            let tag = Value::from(tag.as_str()).to_string().replace('!', "!!");
            let tag = tag.replace('%', "!%").replace('_', "!_");
            found.text("c.tags LIKE ? ESCAPE '!'", &format!("%{tag}%"));
        }
        if let Some(text) = &list.text {
            let words: Vec<String> = text
                .split(|c: char| !c.is_alphanumeric())
                .filter(|word| !word.is_empty())
                .take(10)
                .map(str::to_lowercase)
                .collect();
            let dialect = self.0.archive.dialect();
            let people = found.people(text.trim(), dialect);
            let in_words = (!words.is_empty()).then(|| match dialect {
                Dialect::Sqlite => {
                    let query: Vec<String> =
                        words.iter().map(|word| format!("\"{word}\"*")).collect();
                    let mark = found.mark(query.join(" "));
                    format!(
                        "SELECT h.id FROM (SELECT m.conversation_id AS id FROM messages_text t \
                         JOIN messages m ON m.number = t.rowid WHERE messages_text MATCH {mark} \
                         ORDER BY t.rowid DESC LIMIT {SEARCH_MOST}) AS h UNION "
                    )
                }
                Dialect::Postgres => {
                    let query: Vec<String> = words.iter().map(|word| format!("{word}:*")).collect();
                    let mark = found.mark(query.join(" & "));
                    format!(
                        "SELECT h.id FROM (SELECT m.conversation_id AS id FROM messages m \
                         WHERE m.words @@ to_tsquery('simple', {mark}) \
                         ORDER BY m.number DESC LIMIT {SEARCH_MOST}) AS h UNION "
                    )
                }
            });
            found.parts.push(format!(
                "c.id IN ({}SELECT k.id FROM conversations k WHERE k.visitor_id IN ({people}))",
                in_words.unwrap_or_default()
            ));
        }
        if found.parts.is_empty() {
            found.parts.push("1 = 1".to_owned());
        }
        found
    }

    /// Counts open conversations by view.
    ///
    /// # Errors
    /// The archive cannot be read.
    pub async fn counts(&self, agent: Option<&AgentId>) -> Result<ConversationCounts, Error> {
        let agent = agent.map(AgentId::as_str).unwrap_or_default().to_owned();
        let readers = self.0.archive.readers();
        let row = sqlx::query(COUNT_OPEN).bind(agent.clone()).fetch_one(readers).await?;
        let mentions =
            sqlx::query(COUNT_MENTIONS).bind(format!("%\"{agent}\"%")).fetch_one(readers).await?;
        let snoozed = sqlx::query("SELECT COUNT(*) FROM conversations WHERE status = 'pending'")
            .fetch_one(readers)
            .await?;
        Ok(ConversationCounts {
            mine: row.try_get("mine")?,
            unassigned: row.try_get("unassigned")?,
            all: row.try_get("every")?,
            unread: row.try_get("unread")?,
            mentions: mentions.try_get(0)?,
            team: row.try_get("team")?,
            snoozed: snoozed.try_get(0)?,
        })
    }

    /// Returns the ids of open conversations of a team.
    pub(crate) async fn open_of_team(&self, team: &TeamId) -> Result<Vec<ConversationId>, Error> {
        let rows = sqlx::query(
            "SELECT id FROM conversations WHERE team_id = $1 AND status <> 'resolved' LIMIT 10000",
        )
        .bind(team.as_str().to_owned())
        .fetch_all(self.0.archive.readers())
        .await?;
        rows.iter().map(|row| ConversationId::parse(&row.try_get::<String, _>(0)?)).collect()
    }

    /// Returns ids of conversations that a deadline column says are due.
    pub(crate) async fn due_ids(
        &self,
        sql: &'static str,
        now: Millis,
    ) -> Result<Vec<ConversationId>, Error> {
        let rows = sqlx::query(sql).bind(now.0).fetch_all(self.0.archive.readers()).await?;
        rows.iter().map(|row| ConversationId::parse(&row.try_get::<String, _>(0)?)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::Archive;

    /// Every list of the console has its index: nothing is scanned, and nothing sorted.
    #[tokio::test]
    async fn lists_and_messages_go_by_an_index() {
        let (archive, _folder) = Archive::open_new().await;
        let recent = "c.last_message_ms DESC, c.id DESC";
        for (sql, index) in [
            (COUNT_OPEN.replace("$1", "'a'"), "USING COVERING INDEX conversations_counts"),
            (COUNT_MENTIONS.replace("$1", "'%a%'"), "conversations_mentions"),
            (
                format!("{CONVERSATION_SELECT} WHERE c.status = 'open' ORDER BY {recent} LIMIT 51"),
                "conversations_status",
            ),
            (
                format!(
                    "{CONVERSATION_SELECT} WHERE c.status = 'open' ORDER BY {URGENCY_ORDER} LIMIT 51"
                ),
                "conversations_urgency",
            ),
            (
                format!(
                    "{CONVERSATION_SELECT} WHERE c.status = 'resolved' ORDER BY {recent} LIMIT 51"
                ),
                "conversations_status",
            ),
            (
                format!(
                    "{CONVERSATION_SELECT} WHERE c.assignee = 'a' AND c.status = 'open' ORDER BY {recent} LIMIT 51"
                ),
                "conversations_assignee",
            ),
            (
                format!(
                    "{CONVERSATION_SELECT} WHERE c.visitor_id = 'v' ORDER BY {recent} LIMIT 51"
                ),
                "conversations_visitor",
            ),
            (
                format!(
                    "{MESSAGE_SELECT} WHERE conversation_id = 'c' AND seq > 5 ORDER BY seq ASC LIMIT 51"
                ),
                "messages_seq",
            ),
            (
                format!(
                    "{MESSAGE_SELECT} WHERE conversation_id = 'c' AND seq < 5 ORDER BY seq DESC LIMIT 51"
                ),
                "messages_seq",
            ),
        ] {
            let rows = sqlx::query(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}")))
                .fetch_all(archive.readers())
                .await
                .unwrap();
            let plan: Vec<String> =
                rows.iter().map(|row| row.try_get::<String, _>("detail").unwrap()).collect();
            let plan = plan.join("; ");
            assert!(plan.contains(index), "{sql}: {plan}");
            assert!(!plan.contains("SCAN") && !plan.contains("TEMP B-TREE"), "{sql}: {plan}");
        }
    }
}
