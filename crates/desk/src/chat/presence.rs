//! Presence: a lease per connection, apart from the status an agent chose.
//!
//! `offline` is computed: no connection has a live lease. The chosen status survives reconnects and
//! other tabs; `away` is also what an agent is who did nothing for a while.

use std::{collections::HashMap, sync::Arc, time::Duration};

use serde_json::{Value, json};
use store::{
    Millis,
    redis::{self, AsyncCommands},
};

use super::{
    BusinessHours, Chat, PUBLISHED_TTL_S, agents::Roster, millis, record::chat_words, rfc3339,
    unreadable,
};
use crate::{AgentId, ConversationId, Error, TeamId, scripts::touch_presence};

/// Lease of a connection; the server renews it with every answered ping.
pub const CONNECTION_LEASE: Duration = Duration::from_secs(45);

/// Lease of an agent without a socket, renewed over HTTP.
pub const HEARTBEAT_LEASE: Duration = Duration::from_secs(90);

/// Longest time for which a chosen status may hold before it ends by itself.
const CHOSEN_MOST: Duration = Duration::from_secs(30 * 86_400);

/// Teams whose availability is told to open widgets.
const TEAMS_TOLD_MOST: usize = 100;

/// Time for which an agent counts as looking at a conversation, in milliseconds.
const VIEWING_MS: i64 = 60_000;

chat_words! {
    /// Status of an agent.
    PresenceStatus, "status" {
        /// There, and takes conversations.
        Online = "online",
        /// Not at the desk: keeps conversations, gets no new ones.
        Away = "away",
        /// There, but takes no new ones.
        Busy = "busy",
        /// No live connection.
        Offline = "offline",
    }
}

/// Connections of agents on this instance.
pub(crate) type LocalConnections = HashMap<String, AgentId>;

/// Presence of an agent.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the fields are described with the JSON, in docs/desk.md")]
pub struct AgentPresence {
    pub agent: AgentId,
    pub name: String,
    pub status: PresenceStatus,
    pub chosen: PresenceStatus,
    pub chosen_until: Option<Millis>,
    pub connections: i64,
    pub load: i64,
    pub capacity: u32,
    pub seen_at: Option<Millis>,
    /// The status as it is stored, which may be behind.
    stored: Option<PresenceStatus>,
}

impl AgentPresence {
    /// Returns its JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "agent": { "id": self.agent.as_str(), "name": self.name },
            "status": self.status.as_str(),
            "chosen": self.chosen.as_str(),
            "ends_at": self.chosen_until.map(rfc3339),
            "connections": self.connections,
            "load": self.load,
            "capacity": self.capacity,
            "seen_at": self.seen_at.map(rfc3339),
        })
    }
}

/// A change of an agent's presence.
#[derive(Clone, Debug, Default)]
struct PresenceTouch<'a> {
    connection: &'a str,
    until_ms: Option<i64>,
    chosen: Option<PresenceStatus>,
    chosen_until: Option<Millis>,
    is_active: bool,
}

impl Chat {
    /// Renews the lease of a connection. `is_active` when the person did something.
    ///
    /// # Errors
    /// The store is away; the lease it has goes on.
    pub async fn renew_connection(
        &self,
        agent: &AgentId,
        connection: &str,
        lease: Duration,
        is_active: bool,
    ) -> Result<PresenceStatus, Error> {
        let is_local = lease == CONNECTION_LEASE;
        if is_local {
            self.0.connections.lock().insert(connection.to_owned(), agent.clone());
        }
        let until_ms = Some(self.now().0 + millis(lease));
        let touch = PresenceTouch { connection, until_ms, is_active, ..PresenceTouch::default() };
        self.touch(agent, touch).await
    }

    /// Ends the lease of a connection that was closed.
    ///
    /// # Errors
    /// The store is away; the lease runs out by itself.
    pub async fn end_connection(&self, agent: &AgentId, connection: &str) -> Result<(), Error> {
        self.0.connections.lock().remove(connection);
        let touch = PresenceTouch { connection, until_ms: Some(0), ..PresenceTouch::default() };
        self.touch(agent, touch).await?;
        Ok(())
    }

    /// Sets the status an agent chose. With an end, the agent is online from then on.
    ///
    /// # Errors
    /// `offline`, which is computed; an end that has passed, is too far away, or belongs to `online`; there is no
    /// such agent.
    pub async fn choose_status(
        &self,
        agent: &AgentId,
        status: PresenceStatus,
        until: Option<Millis>,
    ) -> Result<PresenceStatus, Error> {
        if status == PresenceStatus::Offline {
            return Err(Error::invalid(
                "status",
                "online, away or busy; offline is who has no connection",
            ));
        }
        if let Some(until) = until {
            let left_ms = until.0.saturating_sub(self.now().0);
            if status == PresenceStatus::Online {
                return Err(Error::invalid(
                    "until",
                    "only away and busy end; online is what follows",
                ));
            }
            if left_ms <= 0 || left_ms > millis(CHOSEN_MOST) {
                return Err(Error::invalid("until", "a time to come, at most 30 days from now"));
            }
        }
        self.agent(agent)?;
        let (id, word) = (agent.to_string(), status.as_str());
        let until_ms = until.map(|until| until.0);
        self.0
            .archive
            .write(move |tx| {
                let id = id.clone();
                Box::pin(async move {
                    sqlx::query(
                        "UPDATE agents SET chosen = $1, chosen_until_ms = $2 WHERE id = $3",
                    )
                    .bind(word)
                    .bind(until_ms)
                    .bind(id)
                    .execute(&mut *tx)
                    .await?;
                    Ok(())
                })
            })
            .await?;
        let touch = PresenceTouch {
            chosen: Some(status),
            chosen_until: until,
            is_active: true,
            ..PresenceTouch::default()
        };
        self.touch(agent, touch).await
    }

    async fn touch(
        &self,
        agent: &AgentId,
        touch: PresenceTouch<'_>,
    ) -> Result<PresenceStatus, Error> {
        let (keys, now) = (&self.0.keys, self.now());
        let reply: Vec<String> = touch_presence::run(
            &self.0.store,
            touch_presence::Keys {
                connections: keys.connections(agent),
                leases: &keys.leases,
                agents: &keys.agents,
                presence: keys.presence(agent),
            },
            touch_presence::Args {
                now_ms: now,
                agent: agent.as_str(),
                connection: touch.connection,
                until_ms: touch.until_ms.map(|until| until.to_string()),
                chosen: touch.chosen.map(PresenceStatus::as_str),
                chosen_until_ms: touch.chosen_until.map(|until| until.0.to_string()),
                active_ms: touch.is_active.then(|| now.0.to_string()),
                away_ms: millis(self.options().away_after),
                ttl_s: PUBLISHED_TTL_S,
            },
        )
        .await?;
        let [word, status, before, _, chosen, until] = reply.as_slice() else {
            return Err(unreadable("touch_presence"));
        };
        if word != "status" {
            return Err(unreadable("touch_presence"));
        }
        let status = PresenceStatus::parse(status)?;
        if status.as_str() != before || touch.chosen.is_some() {
            let until = until.parse().ok().map(|until| rfc3339(Millis(until)));
            let data = json!({
                "agent_id": agent.as_str(), "status": status.as_str(), "chosen": chosen, "ends_at": until,
            });
            self.announce("presence.updated", None, &data, false).await?;
        }
        if status.as_str() != before {
            self.announce_availability().await?;
            self.0.dispatch.notify_one();
        }
        Ok(status)
    }

    /// Returns the presence of all agents.
    ///
    /// # Errors
    /// The store is away.
    pub async fn presence(&self) -> Result<Vec<AgentPresence>, Error> {
        let (roster, keys, now) = (self.0.roster.load_full(), &self.0.keys, self.now());
        if roster.agents.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = redis::pipe();
        for id in roster.agents.keys() {
            let fields = ["chosen", "status", "active_ms", "chosen_until_ms"]
                .map(|field| format!("{id}:{field}"));
            pipe.cmd("HMGET").arg(&keys.agents).arg(&fields);
            pipe.cmd("ZSCORE").arg(&keys.leases).arg(id.as_str());
            pipe.cmd("ZCOUNT").arg(keys.connections(id)).arg(format!("({}", now.0)).arg("+inf");
            pipe.cmd("SCARD").arg(keys.assignments(id));
        }
        let replies: Vec<redis::Value> = pipe.query_async(&mut self.0.store.clone()).await?;
        let mut found = Vec::new();
        for (agent, reply) in roster.agents.values().zip(replies.chunks(4)) {
            let read = |value: &redis::Value| value.clone();
            let (fields, lease, connections, load): (Vec<Option<String>>, Option<f64>, i64, i64) = (
                redis::from_redis_value(read(&reply[0])).map_err(redis::RedisError::from)?,
                redis::from_redis_value(read(&reply[1])).map_err(redis::RedisError::from)?,
                redis::from_redis_value(read(&reply[2])).map_err(redis::RedisError::from)?,
                redis::from_redis_value(read(&reply[3])).map_err(redis::RedisError::from)?,
            );
            let word = |at: usize| fields.get(at).and_then(Option::as_deref);
            let chosen = word(0).and_then(|w| PresenceStatus::parse(w).ok());
            let until = word(3).and_then(|text| text.parse().ok()).map(Millis);
            let (chosen, chosen_until) = match until {
                Some(until) if until <= now => (PresenceStatus::Online, None),
                until => (chosen.unwrap_or(PresenceStatus::Online), until),
            };
            // What is published may be behind: an end has passed, or the store was lost and filled again.
            let has_ended = until.is_some() && chosen_until.is_none();
            let is_idle = |known| known == PresenceStatus::Away && chosen == PresenceStatus::Online;
            let is_current = |known| !has_ended && (known == chosen || is_idle(known));
            let is_live = lease.is_some_and(|until| until > now.0 as f64);
            let known = word(1).and_then(|w| PresenceStatus::parse(w).ok());
            found.push(AgentPresence {
                agent: agent.id.clone(),
                name: agent.name.clone(),
                status: match known {
                    Some(known) if is_live && is_current(known) => known,
                    _ if is_live => chosen,
                    _ => PresenceStatus::Offline,
                },
                chosen,
                chosen_until,
                connections,
                load,
                capacity: agent.capacity,
                seen_at: word(2).and_then(|text| text.parse().ok()).map(Millis),
                stored: known,
            });
        }
        Ok(found)
    }

    /// Publishes who is gone, sets who is idle to away, and gives the unanswered conversations of those
    /// who are gone for long back to the queue. Returns the number of conversations given back.
    ///
    /// # Errors
    /// The store or the archive is away.
    pub async fn sweep_presence(&self) -> Result<usize, Error> {
        let (grace, away) =
            (millis(self.options().offline_grace), millis(self.options().away_after));
        let now = self.now().0;
        let mut given_back = 0;
        for one in self.presence().await? {
            let is_idle = away > 0
                && one.status == PresenceStatus::Online
                && one.seen_at.is_some_and(|seen| now - seen.0 >= away);
            if is_idle || one.stored.is_some_and(|stored| stored != one.status) {
                self.touch(&one.agent, PresenceTouch::default()).await?;
            }
            if one.status != PresenceStatus::Offline || one.load == 0 {
                continue;
            }
            let lease: Option<f64> =
                self.0.store.clone().zscore(&self.0.keys.leases, one.agent.as_str()).await?;
            let ended = lease.map_or(0, |lease| lease as i64);
            if now - ended >= grace {
                given_back += self.release_unanswered(&one.agent, "offline").await?;
            }
        }
        Ok(given_back)
    }

    /// Renews the leases of this instance's connections at once, after the store lost them.
    pub(crate) fn wake_connections(&self) {
        let local: Vec<(String, AgentId)> =
            self.0.connections.lock().iter().map(|(c, a)| (c.clone(), a.clone())).collect();
        let inner = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            let Some(inner) = inner.upgrade() else { return };
            let chat = Chat(inner);
            for (connection, agent) in local {
                let renewed =
                    chat.renew_connection(&agent, &connection, CONNECTION_LEASE, false).await;
                if let Err(error) = renewed {
                    tracing::debug!(%error, "connection not renewed; its next ping does");
                }
            }
        });
    }

    /// Returns `online`, `busy` (agents are there, none takes more) or `offline`, and the number of
    /// agents who take conversations: of a team, or of all. Outside business hours nobody is there.
    ///
    /// # Errors
    /// The store is away; there is no such team.
    pub async fn availability(&self, team: Option<&TeamId>) -> Result<Value, Error> {
        let (now, roster) = (self.now(), self.0.roster.load_full());
        if team.is_some_and(|team| !roster.teams.contains_key(team)) {
            return Err(Error::NotFound { what: "team" });
        }
        let presence = self.presence().await?;
        let found = availability_of(&presence, &roster, team, now);
        let waiting: i64 = self.0.store.clone().zcard(&self.0.keys.waiting).await?;
        Ok(self.availability_json(&found, waiting))
    }

    fn availability_json(&self, found: &TeamAvailability, waiting: i64) -> Value {
        json!({
            "state": found.state,
            "agents_online": found.online,
            "waiting": waiting,
            "expected_wait_seconds": self.expected_wait(waiting + 1, found.online),
            "opens_at": found.opens_at.map(rfc3339),
        })
    }

    /// Shows that an agent looks at a conversation, for a minute, or no longer.
    ///
    /// # Errors
    /// The store is away.
    pub async fn show_viewing(
        &self,
        agent: &AgentId,
        conversation: &ConversationId,
        is_on: bool,
    ) -> Result<(), Error> {
        let (mut store, key) = (self.0.store.clone(), self.0.keys.viewers(conversation));
        if is_on {
            let () = store.zadd(&key, agent.as_str(), self.now().0 + VIEWING_MS).await?;
            let () = store.expire(&key, 120).await?;
        } else {
            let () = store.zrem(&key, agent.as_str()).await?;
        }
        let viewers = self.viewers(conversation).await?;
        let data = json!({ "conversation_id": conversation.as_str(), "viewers": viewers });
        self.announce("viewers.updated", None, &data, false).await
    }

    /// Returns those who look at a conversation.
    ///
    /// # Errors
    /// The store is away.
    pub async fn viewers(&self, conversation: &ConversationId) -> Result<Vec<Value>, Error> {
        let key = self.0.keys.viewers(conversation);
        let now = format!("({}", self.now().0);
        let ids: Vec<String> =
            self.0.store.clone().zrangebyscore_limit(&key, now, "+inf", 0, 100).await?;
        let roster = self.0.roster.load();
        let agents = ids.iter().filter_map(|id| roster.agents.get(&AgentId::parse(id).ok()?));
        Ok(agents.map(|agent| json!({ "id": agent.id.as_str(), "name": agent.name })).collect())
    }

    /// Tells open widgets when business hours begin or end, or agents ran out of room.
    ///
    /// # Errors
    /// The store is away.
    pub(crate) async fn sweep_availability(&self) -> Result<(), Error> {
        let (now, roster) = (self.now(), self.0.roster.load_full());
        let presence = self.presence().await?;
        let teams = std::iter::once(None).chain(roster.teams.keys().map(Some));
        let states: Vec<&str> = teams
            .take(TEAMS_TOLD_MOST)
            .map(|team| availability_of(&presence, &roster, team, now).state)
            .collect();
        let states = states.join(",");
        let before = std::mem::replace(&mut *self.0.told_states.lock(), states.clone());
        if before.is_empty() || before == states {
            return Ok(());
        }
        self.announce_availability().await
    }

    /// Tells every visitor with an open widget who is there; by team, too, where there are teams.
    pub(crate) async fn announce_availability(&self) -> Result<(), Error> {
        let (now, roster) = (self.now(), self.0.roster.load_full());
        let presence = self.presence().await?;
        let waiting: i64 = self.0.store.clone().zcard(&self.0.keys.waiting).await?;
        let mut data =
            self.availability_json(&availability_of(&presence, &roster, None, now), waiting);
        let teams: serde_json::Map<String, Value> = roster
            .teams
            .keys()
            .take(TEAMS_TOLD_MOST)
            .map(|team| {
                let found = availability_of(&presence, &roster, Some(team), now);
                (team.to_string(), self.availability_json(&found, waiting))
            })
            .collect();
        if !teams.is_empty() {
            data["teams"] = Value::Object(teams);
        }
        let text = data.to_string();
        let _: (String, String) = crate::scripts::announce::run(
            &self.0.store,
            crate::scripts::announce::Keys { events: &self.0.keys.events },
            crate::scripts::announce::Args {
                now_ms: self.now(),
                conversation: "",
                // Every visitor with an open widget.
                visitor: "*",
                kind: "availability.updated",
                data: text.as_str(),
                visitor_data: text.as_str(),
                events_most: super::EVENTS_MOST,
            },
        )
        .await?;
        Ok(())
    }
}

/// Availability of a team, or of everybody.
#[derive(Debug)]
struct TeamAvailability {
    state: &'static str,
    online: i64,
    opens_at: Option<Millis>,
}

/// Works out who is there. Without a team, everybody counts, and it is open while one team is.
fn availability_of(
    presence: &[AgentPresence],
    roster: &Roster,
    team: Option<&TeamId>,
    now: Millis,
) -> TeamAvailability {
    let (mut online, mut there, mut has_room) = (0, 0, false);
    for one in presence {
        let agent = roster.agents.get(&one.agent).filter(|agent| !agent.disabled);
        let Some(agent) = agent else { continue };
        if team.is_some_and(|team| !agent.teams.contains(team)) {
            continue;
        }
        online += i64::from(one.status == PresenceStatus::Online);
        there += i64::from(one.status != PresenceStatus::Offline);
        has_room |= one.status == PresenceStatus::Online && one.load < i64::from(one.capacity);
    }
    let hours: Vec<&BusinessHours> = roster
        .teams
        .values()
        .filter(|one| team.is_none_or(|team| one.id == *team))
        .map(|one| &one.hours)
        .collect();
    let is_open = hours.is_empty() || hours.iter().any(|hours| hours.is_open(now));
    let opens_at =
        if is_open { None } else { hours.iter().filter_map(|hours| hours.next_open(now)).min() };
    let state = match (is_open, there, has_room) {
        (false, _, _) | (true, 0, _) => "offline",
        (true, _, false) => "busy",
        (true, _, true) => "online",
    };
    TeamAvailability { state, online: if is_open { online } else { 0 }, opens_at }
}
