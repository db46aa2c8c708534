//! Rebuilds what is published from the archive.
//!
//! One instance does it, under a lease, and raises the generation in the archive first: an
//! assignment decided before, which the archive does not have yet, is refused from then on. The mark
//! that the state is whole is removed first and written last. So a mark with another generation than
//! the archive's is that of a process that was overtaken, and what it marks is not whole.

use std::{collections::HashMap, time::Duration};

use sqlx::Row;
use store::{
    lease::{FencedLease, LeaseGrant, LeaseOutcome},
    redis::{self, AsyncCommands},
};

use super::{
    Chat, Conversation, ConversationStatus, PUBLISHED_TTL_S, READY_TTL_S,
    record::CONVERSATION_SELECT,
};
use crate::{AgentId, ConversationId, Error, TeamId};

/// Conversations written at a time.
const BATCH: i64 = 200;

/// Time for which the one that rebuilds may be silent.
const LEASE: Duration = Duration::from_secs(60);

/// Time to wait for another instance.
const PATIENCE: Duration = Duration::from_secs(60);

impl Chat {
    /// Rebuilds what is published unless it is whole, or waits for the instance that does.
    pub(crate) async fn ensure_ready(&self) -> Result<(), Error> {
        // The lease does not tell the tasks of one instance apart.
        let _alone = self.0.rebuilding.lock().await;
        let seen = self.generation().await?;
        let lease = FencedLease::new(
            &self.0.store,
            self.0.keys.rebuild.clone(),
            self.0.instance.as_str(),
            LEASE,
        );
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            if let LeaseOutcome::Held(held) = lease.take().await? {
                let outcome = match self.is_whole().await {
                    Ok(true) => Ok(()),
                    Ok(false) => self.rebuild(&lease, held).await,
                    Err(error) => Err(error),
                };
                lease.release(held).await?;
                return outcome;
            }
            let now = self.generation().await?;
            if now.is_some() && now != seen {
                return Ok(());
            }
            if tokio::time::Instant::now() > deadline {
                return Err(under_way());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn generation(&self) -> Result<Option<String>, Error> {
        Ok(self.0.store.clone().hget(&self.0.keys.ready, "generation").await?)
    }

    /// Returns the generation by the archive.
    async fn latest_generation(&self) -> Result<String, Error> {
        let row = sqlx::query("SELECT value FROM meta WHERE name = 'generation'")
            .fetch_one(self.0.archive.readers())
            .await?;
        Ok(row.try_get(0)?)
    }

    /// Tells whether what is published is marked as whole, by the last rebuild, and has the sizes that
    /// were marked.
    async fn is_whole(&self) -> Result<bool, Error> {
        let (mut store, keys) = (self.0.store.clone(), &self.0.keys);
        let (roster, latest) = (self.0.roster.load_full(), self.latest_generation().await?);
        // At once: what changes in between would look like a loss.
        let mut pipe = redis::pipe();
        pipe.atomic().hgetall(&keys.ready).zcard(&keys.active).zcard(&keys.unread);
        for agent in roster.agents.keys() {
            pipe.scard(keys.assignments(agent));
        }
        let found: Vec<redis::Value> = pipe.query_async(&mut store).await?;
        let read = |at: usize| found.get(at).cloned().unwrap_or(redis::Value::Nil);
        let marked: HashMap<String, String> =
            redis::from_redis_value(read(0)).map_err(redis::RedisError::from)?;
        if marked.get("generation") != Some(&latest) {
            return Ok(false);
        }
        let names = ["active".to_owned(), "unread".to_owned()];
        let names = names.into_iter().chain(roster.agents.keys().map(|id| format!("load:{id}")));
        for (at, name) in (1..).zip(names) {
            let size: i64 = redis::from_redis_value(read(at)).map_err(redis::RedisError::from)?;
            if marked.get(&name).and_then(|text| text.parse().ok()).unwrap_or(0) != size {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Rebuilds everything. The caller holds the lease.
    async fn rebuild(&self, lease: &FencedLease, mut held: LeaseGrant) -> Result<(), Error> {
        let (mut store, keys) = (self.0.store.clone(), &self.0.keys);
        let () = store.del(&keys.ready).await?;
        let generation = self.raise_generation().await?;
        self.load_roster().await?;
        let roster = self.0.roster.load_full();
        let mut pipe = redis::pipe();
        for key in [&keys.active, &keys.unread, &keys.waiting, &keys.due, &keys.pending] {
            pipe.del(key);
        }
        for agent in roster.agents.values() {
            pipe.del(keys.assignments(&agent.id));
        }
        let () = pipe.query_async(&mut store).await?;
        let mut after = String::new();
        let mut count = 0_usize;
        loop {
            let sql = format!(
                "{CONVERSATION_SELECT} WHERE c.status <> 'resolved' AND c.id > $1 ORDER BY c.id LIMIT $2"
            );
            let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
                .bind(after.clone())
                .bind(BATCH)
                .fetch_all(self.0.archive.readers())
                .await?;
            if rows.is_empty() {
                break;
            }
            let found = rows.iter().map(Conversation::read).collect::<Result<Vec<_>, _>>()?;
            let undelivered = self.first_undelivered(&found).await?;
            let mut pipe = redis::pipe();
            for conversation in &found {
                self.put(&mut pipe, conversation, undelivered.get(&conversation.id).copied());
            }
            let () = pipe.query_async(&mut store).await?;
            count += found.len();
            after = found.last().map(|last| last.id.to_string()).unwrap_or_default();
            held = lease.renew(held).await?.ok_or_else(under_way)?;
        }
        self.publish_roster().await?;
        lease.renew(held).await?.ok_or_else(under_way)?;
        self.mark_whole(&generation).await?;
        tracing::info!(
            conversations = count,
            "published state of the chat rebuilt from the archive"
        );
        self.wake_connections();
        self.0.dispatch.notify_one();
        Ok(())
    }

    async fn raise_generation(&self) -> Result<String, Error> {
        self.0
            .archive
            .write(|tx| {
                Box::pin(async move {
                    let row = sqlx::query("SELECT value FROM meta WHERE name = 'generation'")
                        .fetch_one(&mut *tx)
                        .await?;
                    let before: String = row.try_get(0)?;
                    let next = (before.parse::<i64>().unwrap_or(0) + 1).to_string();
                    sqlx::query("UPDATE meta SET value = $1 WHERE name = 'generation'")
                        .bind(next.clone())
                        .execute(&mut *tx)
                        .await?;
                    Ok(next)
                })
            })
            .await
    }

    async fn first_undelivered(
        &self,
        conversations: &[Conversation],
    ) -> Result<HashMap<ConversationId, i64>, Error> {
        let (Some(first), Some(last)) = (conversations.first(), conversations.last()) else {
            return Ok(HashMap::new());
        };
        let rows = sqlx::query(
            "SELECT conversation_id, MIN(event_no) AS event_no FROM outbox \
             WHERE conversation_id >= $1 AND conversation_id <= $2 GROUP BY conversation_id",
        )
        .bind(first.id.to_string())
        .bind(last.id.to_string())
        .fetch_all(self.0.archive.readers())
        .await?;
        rows.iter()
            .map(|row| {
                let id: String = row.try_get(0)?;
                Ok((ConversationId::parse(&id)?, row.try_get(1)?))
            })
            .collect()
    }

    fn put(&self, pipe: &mut redis::Pipeline, one: &Conversation, undelivered: Option<i64>) {
        let keys = &self.0.keys;
        let (id, state) = (one.id.as_str(), keys.conversation(&one.id));
        let number = |at: Option<store::Millis>| at.map(|at| at.0.to_string()).unwrap_or_default();
        let score = one.queue_score();
        // Asleep, nobody waits.
        let waiting = one.waiting_since.filter(|_| one.status == ConversationStatus::Open);
        pipe.del(&state);
        pipe.hset_multiple(
            &state,
            &[
                ("event_no", undelivered.map_or(one.event_no, |first| first - 1).to_string()),
                ("assign_no", one.assign_no.to_string()),
                ("assignee", one.assignee.as_ref().map(AgentId::to_string).unwrap_or_default()),
                ("status", one.status.as_str().to_owned()),
                ("rank", one.priority.rank().to_string()),
                ("waiting_ms", number(waiting)),
                ("queued_ms", number(one.queued_since)),
                ("queue_score", score.map(|score| score.to_string()).unwrap_or_default()),
                ("team", one.team.as_ref().map(TeamId::to_string).unwrap_or_default()),
                ("skills", one.skills.join(",")),
                ("last_agent", one.last_agent.as_ref().map(AgentId::to_string).unwrap_or_default()),
                ("missed", one.missed.iter().map(|agent| format!("{agent},")).collect()),
            ],
        );
        pipe.zadd(&keys.active, id, one.last_message_at.0);
        if let Some(score) = one.unread_score() {
            pipe.zadd(&keys.unread, id, score);
        }
        match (&one.assignee, score) {
            (Some(agent), _) => {
                pipe.sadd(keys.assignments(agent), id);
                let first_reply = super::millis(self.options().first_reply);
                if let (Some(assigned), Some(_)) = (one.assigned_at, waiting)
                    && first_reply > 0
                {
                    pipe.zadd(&keys.due, id, assigned.0 + first_reply);
                }
            }
            (None, Some(score)) => {
                pipe.zadd(&keys.waiting, id, score);
            }
            (None, None) => {}
        }
    }

    /// Writes the sizes of what is published, and the mark itself.
    async fn mark_whole(&self, generation: &str) -> Result<(), Error> {
        let (mut store, keys) = (self.0.store.clone(), &self.0.keys);
        let roster = self.0.roster.load_full();
        let mut pipe = redis::pipe();
        pipe.zcard(&keys.active).zcard(&keys.unread);
        let agents: Vec<&AgentId> = roster.agents.keys().collect();
        for agent in &agents {
            pipe.scard(keys.assignments(agent));
        }
        let sizes: Vec<i64> = pipe.query_async(&mut store).await?;
        let mut fields = vec![
            ("generation".to_owned(), generation.to_owned()),
            ("active".to_owned(), sizes[0].to_string()),
            ("unread".to_owned(), sizes[1].to_string()),
        ];
        for (agent, load) in agents.iter().zip(&sizes[2..]) {
            fields.push((format!("load:{agent}"), load.to_string()));
        }
        let mut pipe = redis::pipe();
        for agent in &agents {
            pipe.expire(keys.assignments(agent), PUBLISHED_TTL_S);
        }
        pipe.expire(&keys.active, PUBLISHED_TTL_S).expire(&keys.unread, PUBLISHED_TTL_S);
        pipe.hset_multiple(&keys.ready, &fields).expire(&keys.ready, READY_TTL_S);
        let () = pipe.query_async(&mut store).await?;
        Ok(())
    }

    /// Renews the TTLs of what is published and in use, the mark last. Returns false when there is no
    /// mark; then it is rebuilt.
    ///
    /// # Errors
    /// The store is away.
    pub async fn renew_published(&self) -> Result<bool, Error> {
        let (mut store, keys) = (self.0.store.clone(), &self.0.keys);
        let roster = self.0.roster.load_full();
        let mut pipe = redis::pipe();
        pipe.expire(&keys.active, PUBLISHED_TTL_S).ignore();
        pipe.expire(&keys.unread, PUBLISHED_TTL_S).ignore();
        for agent in roster.agents.keys() {
            pipe.expire(keys.assignments(agent), PUBLISHED_TTL_S).ignore();
            pipe.expire(keys.presence(agent), READY_TTL_S).ignore();
        }
        pipe.set_nx(&keys.archive, self.0.archive.id()).ignore();
        pipe.expire(&keys.ready, READY_TTL_S);
        let (is_marked,): (i64,) = pipe.query_async(&mut store).await?;
        if is_marked == 0 || !self.is_whole().await? {
            return Ok(false);
        }
        let mut offset = 0_isize;
        loop {
            let ids: Vec<String> = store.zrevrange(&keys.active, offset, offset + 499).await?;
            if ids.is_empty() {
                return Ok(true);
            }
            offset += 500;
            let mut pipe = redis::pipe();
            for id in ids.iter().filter_map(|id| ConversationId::parse(id).ok()) {
                pipe.expire(keys.messages(&id), PUBLISHED_TTL_S).ignore();
            }
            let () = pipe.query_async(&mut store).await?;
        }
    }
}

/// Another instance does it.
fn under_way() -> Error {
    Error::conflict("REBUILDING", "what is published is being rebuilt from the archive")
}
