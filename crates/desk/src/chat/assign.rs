//! Assignment: who answers a conversation.
//!
//! The store decides, in one script, and remembers what it decided until the archive has it too. So a
//! crash in between loses nothing, and a rebuild of the store cannot bring back what was decided before
//! it (the generation in the archive is newer). Waiting conversations are handed out after every
//! event that can need or free an agent, and by a sweep every 5 s.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use serde_json::json;
use sqlx::Row;
use store::{
    Millis,
    lease::{FencedLease, LeaseOutcome},
    redis::{self, AsyncCommands},
};
use tokio_util::sync::CancellationToken;

use super::{
    Chat, Conversation, ConversationStatus, Message, MessageType, PUBLISHED_TTL_S, PresenceStatus,
    SenderRole, millis,
    outbox::{ChatEvent, ConversationWrite, MESSAGE_CREATED},
    record::{AgentNames, chat_words, urgency_score},
    unreadable,
};
use crate::{
    AgentId, ConversationId, Error,
    archive::statement::execute_all,
    ids,
    scripts::{assign, set_owner, settle_assignments},
};

/// Most agents that one call considers.
const CANDIDATES_MOST: isize = 256;

/// Conversations that one call hands out.
const BATCH: isize = 64;

/// Interval of the sweep.
const SWEEP: Duration = Duration::from_secs(5);

/// Interval of the periodic work.
const TICK: Duration = Duration::from_secs(1);

/// Time for which the instance that does the periodic work may be silent.
const LEADER_LEASE: Duration = Duration::from_secs(5);

/// Waiting visitors who are told their position.
const POSITIONS_TOLD_MOST: usize = 200;

/// Misses after which an agent is set to away.
const MISSES_MOST: i64 = 3;

chat_words! {
    /// The way agents are chosen.
    AssignmentMode, "assignment" {
        /// The one with the smallest share of capacity in use.
        LeastLoaded = "least_loaded",
        /// The one whose last assignment is longest ago.
        RoundRobin = "round_robin",
        /// The one who had the conversation before, if available; else the least loaded.
        Sticky = "sticky",
        /// Nobody: agents take conversations themselves.
        Manual = "manual",
    }
}

/// An assignment by hand.
#[derive(Clone, Debug)]
pub struct AssignRequest {
    /// The new owner; none puts it back into the queue.
    pub agent: Option<AgentId>,
    /// The owner as the caller saw it; the call is refused if it is another one by now.
    pub expected: Option<Option<AgentId>>,
    /// Also when the agent's capacity is used up.
    pub over_capacity: bool,
    /// Only if the agent is there.
    pub needs_presence: bool,
    /// The one who assigns.
    pub by: String,
    /// The reason: `taken`, `assigned`, `transferred`.
    pub reason: &'static str,
}

/// Place of a conversation among those that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingPlace {
    /// 1 is next.
    pub position: i64,
    /// Expected wait in seconds; none if nobody is there, or nothing was measured yet.
    pub expected_wait_seconds: Option<i64>,
}

impl WaitingPlace {
    /// Tells whether a visitor who was told another place must hear of this one: it moved, or the wait differs by
    /// a fifth and 10 s.
    fn is_news(self, told: WaitingPlace) -> bool {
        let differs = match (self.expected_wait_seconds, told.expected_wait_seconds) {
            (Some(now), Some(before)) => (now - before).abs() >= (before / 5).max(10),
            (now, before) => now.is_some() != before.is_some(),
        };
        self.position != told.position || differs
    }
}

/// An assignment that the archive does not have yet.
#[derive(Clone, Debug, PartialEq)]
struct PendingAssignment {
    generation: String,
    assign_no: i64,
    agent: Option<AgentId>,
    reason: String,
    at: Millis,
    previous: Option<AgentId>,
    by: String,
}

impl PendingAssignment {
    fn parse(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.splitn(7, '|').collect();
        let [generation, assign_no, agent, reason, at, previous, by] = parts.as_slice() else {
            return None;
        };
        Some(Self {
            generation: (*generation).to_owned(),
            assign_no: assign_no.parse().ok()?,
            agent: AgentId::parse(agent).ok(),
            reason: (*reason).to_owned(),
            at: Millis(at.parse().ok()?),
            previous: AgentId::parse(previous).ok(),
            by: (*by).to_owned(),
        })
    }
}

impl Chat {
    /// Hands out waiting conversations to agents with room. Returns how many.
    ///
    /// # Errors
    /// The store or the archive is away.
    pub async fn dispatch(&self) -> Result<usize, Error> {
        let options = self.options();
        if options.mode == AssignmentMode::Manual {
            return Ok(0);
        }
        let (mut store, keys) = (self.0.store.clone(), &self.0.keys);
        let mut handed_out = 0;
        let mut offset = 0_isize;
        let mut retries = 0;
        loop {
            let ids: Vec<String> =
                store.zrevrange(&keys.waiting, offset, offset + BATCH - 1).await?;
            let ids: Vec<ConversationId> =
                ids.iter().filter_map(|id| ConversationId::parse(id).ok()).collect();
            if ids.is_empty() {
                return Ok(handed_out);
            }
            let now = self.now();
            let agents: Vec<String> = store
                .zrevrangebyscore_limit(
                    &keys.leases,
                    "+inf",
                    format!("({}", now.0),
                    0,
                    CANDIDATES_MOST,
                )
                .await?;
            let agents: Vec<AgentId> =
                agents.iter().filter_map(|id| AgentId::parse(id).ok()).collect();
            if agents.is_empty() {
                return Ok(handed_out);
            }
            let group = ids
                .iter()
                .map(|id| keys.conversation(id))
                .chain(agents.iter().map(|agent| keys.assignments(agent)));
            let names = ids
                .iter()
                .map(|id| id.as_str().to_owned())
                .chain(agents.iter().map(|agent| agent.as_str().to_owned()));
            let reply: Vec<String> = assign::run(
                &self.0.store,
                assign::Keys {
                    ready: &keys.ready,
                    active: &keys.active,
                    unread: &keys.unread,
                    waiting: &keys.waiting,
                    due: &keys.due,
                    pending: &keys.pending,
                    agents: &keys.agents,
                    leases: &keys.leases,
                    group,
                },
                assign::Args {
                    now_ms: now,
                    mode: options.mode.as_str(),
                    first_reply_ms: millis(options.first_reply),
                    ttl_s: PUBLISHED_TTL_S,
                    offset: offset as i64,
                    conversations: ids.len(),
                    names,
                },
            )
            .await?;
            match reply.first().map(String::as_str) {
                Some("assigned") => {
                    let generation = reply.get(1).cloned().unwrap_or_default();
                    let assigned: Vec<&[String]> = reply[2..].chunks_exact(3).collect();
                    offset += isize::try_from(ids.len() - assigned.len()).unwrap_or(0);
                    let records = assigned.iter().filter_map(|one| {
                        let id = ConversationId::parse(&one[0]).ok()?;
                        let pending = PendingAssignment {
                            generation: generation.clone(),
                            assign_no: one[2].parse().ok()?,
                            agent: AgentId::parse(&one[1]).ok(),
                            reason: "automatic".to_owned(),
                            at: now,
                            previous: None,
                            by: String::new(),
                        };
                        Some((id, pending))
                    });
                    let records: Vec<_> = records.collect();
                    if self.record_owners(&records).await? {
                        handed_out += records.len();
                        retries = 0;
                    } else if retries < 50 {
                        // A rebuild put them back into the queue.
                        (offset, retries) = (0, retries + 1);
                    } else {
                        return Ok(handed_out);
                    }
                }
                Some("full") => return Ok(handed_out),
                Some("moved") if retries < 50 => retries += 1,
                Some("moved") => return Ok(handed_out),
                Some("stale") if retries < 50 => {
                    retries += 1;
                    self.ensure_ready().await?;
                }
                _ => return Err(unreadable("assign")),
            }
        }
    }

    /// Assigns by hand: takes, gives to somebody, or puts back into the queue.
    ///
    /// # Errors
    /// `ALREADY_ASSIGNED`, `AGENT_AT_CAPACITY`, `CONVERSATION_RESOLVED`; there is no such conversation
    /// or agent.
    pub async fn assign(
        &self,
        id: &ConversationId,
        request: AssignRequest,
    ) -> Result<Conversation, Error> {
        let conversation = self.conversation(id).await?;
        if let Some(agent) = &request.agent {
            let agent = self.agent(agent)?;
            if agent.disabled {
                return Err(Error::conflict("AGENT_DISABLED", "this agent is disabled"));
            }
        }
        let mut owner = match &request.expected {
            Some(expected) => expected.clone(),
            None => conversation.assignee,
        };
        for _ in 0..50 {
            let reply = self.set_owner(id, owner.as_ref(), &request, "", false).await?;
            let reply: Vec<&str> = reply.iter().map(String::as_str).collect();
            match reply.as_slice() {
                ["set", generation, assign_no] => {
                    let pending = PendingAssignment {
                        generation: (*generation).to_owned(),
                        assign_no: assign_no.parse().map_err(|_| unreadable("set_owner"))?,
                        agent: request.agent.clone(),
                        reason: request.reason.to_owned(),
                        at: self.now(),
                        previous: owner.clone(),
                        by: request.by.clone(),
                    };
                    if !self.record_owner(id, &pending).await? {
                        continue;
                    }
                    self.0.dispatch.notify_one();
                    return self.conversation(id).await;
                }
                ["same"] => return self.conversation(id).await,
                ["owner", actual] => {
                    let actual = AgentId::parse(actual).ok();
                    if request.expected.is_some() {
                        let name = actual.as_ref().and_then(|id| self.agent(id).ok());
                        let name = name.map_or("nobody".to_owned(), |agent| agent.name);
                        return Err(Error::conflict(
                            "ALREADY_ASSIGNED",
                            format!("the conversation belongs to {name} by now"),
                        ));
                    }
                    owner = actual;
                }
                ["full"] => {
                    return Err(Error::conflict(
                        "AGENT_AT_CAPACITY",
                        "this agent has as many conversations as they may have",
                    ));
                }
                ["offline"] => {
                    return Err(Error::conflict(
                        "AGENT_OFFLINE",
                        "this agent is not there; choose somebody who is, or a team",
                    ));
                }
                ["gone"] => {
                    let found = self.conversation(id).await?;
                    if found.status == ConversationStatus::Resolved {
                        return Err(Error::conflict(
                            "CONVERSATION_RESOLVED",
                            "the conversation is resolved; a message reopens it",
                        ));
                    }
                    // Its first event is on the way.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                ["stale"] => self.ensure_ready().await?,
                _ => return Err(unreadable("set_owner")),
            }
        }
        Err(Error::conflict(
            "BUSY",
            "the conversation was reassigned several times meanwhile; try again",
        ))
    }

    async fn set_owner(
        &self,
        id: &ConversationId,
        owner: Option<&AgentId>,
        request: &AssignRequest,
        missed: &str,
        only_waiting: bool,
    ) -> Result<Vec<String>, Error> {
        let keys = &self.0.keys;
        let set_of = |agent: Option<&AgentId>| match agent {
            Some(agent) => keys.assignments(agent),
            // Not used; it must be one of the group all the same.
            None => keys.waiting.clone(),
        };
        Ok(set_owner::run(
            &self.0.store,
            set_owner::Keys {
                ready: &keys.ready,
                state: keys.conversation(id),
                active: &keys.active,
                unread: &keys.unread,
                waiting: &keys.waiting,
                due: &keys.due,
                pending: &keys.pending,
                agents: &keys.agents,
                leases: &keys.leases,
                from: set_of(owner),
                to: set_of(request.agent.as_ref()),
            },
            set_owner::Args {
                now_ms: self.now(),
                id: id.as_str(),
                owner: owner.map(AgentId::as_str),
                agent: request.agent.as_ref().map(AgentId::as_str),
                reason: request.reason,
                is_forced: u8::from(request.over_capacity),
                needs_lease: u8::from(request.needs_presence),
                first_reply_ms: millis(self.options().first_reply),
                missed,
                ttl_s: PUBLISHED_TTL_S,
                only_waiting: u8::from(only_waiting),
                by: request.by.as_str(),
            },
        )
        .await?)
    }

    /// Writes an assignment into the archive. As [`Chat::record_owners`].
    async fn record_owner(
        &self,
        id: &ConversationId,
        pending: &PendingAssignment,
    ) -> Result<bool, Error> {
        self.record_owners(&[(id.clone(), pending.clone())]).await
    }

    /// Writes assignments of one generation into the archive, unless it has newer ones, and publishes them. Returns
    /// false when what is published was rebuilt since: then they were never made.
    async fn record_owners(
        &self,
        records: &[(ConversationId, PendingAssignment)],
    ) -> Result<bool, Error> {
        let Some((_, PendingAssignment { generation, .. })) = records.first() else {
            return Ok(true);
        };
        let (now, roster) = (self.now(), self.0.roster.load_full());
        let (wanted, expected) = (records.to_vec(), generation.clone());
        let changes = self
            .0
            .archive
            .write(move |tx| {
                let (wanted, expected) = (wanted.clone(), expected.clone());
                let roster = Arc::clone(&roster);
                Box::pin(async move {
                    let row = sqlx::query("SELECT value FROM meta WHERE name = 'generation'")
                        .fetch_one(&mut *tx)
                        .await?;
                    if row.try_get::<String, _>(0)? != expected {
                        return Ok(None);
                    }
                    let ids: Vec<&ConversationId> = wanted.iter().map(|(id, _)| id).collect();
                    let mut found = Conversation::load_many(tx, &ids).await?;
                    let (mut statements, mut changes) = (Vec::new(), Vec::new());
                    for (id, pending) in &wanted {
                        let Some(conversation) = found.get_mut(id) else { continue };
                        let Some(change) = set_owner_in(conversation, pending, &*roster, now)?
                        else {
                            continue;
                        };
                        statements.extend(change.statements);
                        changes.push(change.deliveries);
                    }
                    execute_all(tx, statements).await?;
                    Ok(Some(changes))
                })
            })
            .await?;
        let is_valid = changes.is_some();
        match changes {
            Some(changes) => {
                for deliveries in changes {
                    self.publish(deliveries).await;
                }
            }
            None => self.ensure_ready().await?,
        }
        let settled = records
            .iter()
            .flat_map(|(id, pending)| [id.as_str().to_owned(), pending.assign_no.to_string()]);
        let _: Vec<String> = settle_assignments::run(
            &self.0.store,
            settle_assignments::Keys { pending: &self.0.keys.pending },
            settle_assignments::Args { generation: generation.as_str(), assignments: settled },
        )
        .await?;
        Ok(is_valid)
    }

    /// Writes assignments into the archive that a killed process left behind.
    ///
    /// # Errors
    /// The store or the archive is away.
    pub async fn sweep_assignments(&self) -> Result<usize, Error> {
        let mut command = redis::cmd("HSCAN");
        command.arg(&self.0.keys.pending).arg(0).arg("COUNT").arg(500);
        let (_, found): (String, Vec<(String, String)>) =
            command.query_async(&mut self.0.store.clone()).await?;
        let mut count = 0;
        for (id, text) in found {
            let (Ok(id), Some(pending)) =
                (ConversationId::parse(&id), PendingAssignment::parse(&text))
            else {
                continue;
            };
            if self.now().0 - pending.at.0 >= millis(TICK) {
                self.record_owner(&id, &pending).await?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// An agent replied: they own the conversation if nobody does, and have missed nothing.
    pub(crate) async fn own_by_reply(
        &self,
        conversation: &Conversation,
        agent: &AgentId,
    ) -> Result<(), Error> {
        let field = format!("{agent}:misses");
        let () = self.0.store.clone().hset(&self.0.keys.agents, field, 0).await?;
        if conversation.assignee.is_some() {
            return Ok(());
        }
        let request = AssignRequest {
            agent: Some(agent.clone()),
            expected: Some(None),
            over_capacity: false,
            needs_presence: false,
            by: agent.to_string(),
            reason: "replied",
        };
        match self.assign(&conversation.id, request).await {
            Ok(_) | Err(Error::Conflict { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Puts the conversations of an agent that wait for a reply back into the queue.
    pub(crate) async fn release_unanswered(
        &self,
        agent: &AgentId,
        reason: &'static str,
    ) -> Result<usize, Error> {
        self.release(agent, reason, true).await
    }

    /// Puts all conversations of an agent back into the queue.
    pub(crate) async fn release_all(
        &self,
        agent: &AgentId,
        reason: &'static str,
    ) -> Result<usize, Error> {
        self.release(agent, reason, false).await
    }

    async fn release(
        &self,
        agent: &AgentId,
        reason: &'static str,
        only_waiting: bool,
    ) -> Result<usize, Error> {
        let set = self.0.keys.assignments(agent);
        let ids: Vec<String> = self.0.store.clone().smembers(&set).await?;
        let mut count = 0;
        for id in ids.iter().filter_map(|id| ConversationId::parse(id).ok()) {
            count += usize::from(self.take_from(&id, agent, reason, "", only_waiting).await?);
        }
        if count > 0 {
            self.0.dispatch.notify_one();
        }
        Ok(count)
    }

    /// Takes a conversation from an agent. Returns false if it was not theirs, or was answered.
    async fn take_from(
        &self,
        id: &ConversationId,
        agent: &AgentId,
        reason: &'static str,
        missed: &str,
        only_waiting: bool,
    ) -> Result<bool, Error> {
        let request = AssignRequest {
            agent: None,
            expected: None,
            over_capacity: false,
            needs_presence: false,
            by: String::new(),
            reason,
        };
        for _ in 0..10 {
            let reply = self.set_owner(id, Some(agent), &request, missed, only_waiting).await?;
            let reply: Vec<&str> = reply.iter().map(String::as_str).collect();
            match reply.as_slice() {
                ["set", generation, assign_no] => {
                    let pending = PendingAssignment {
                        generation: (*generation).to_owned(),
                        assign_no: assign_no.parse().map_err(|_| unreadable("set_owner"))?,
                        agent: None,
                        reason: reason.to_owned(),
                        at: self.now(),
                        previous: Some(agent.clone()),
                        by: String::new(),
                    };
                    if self.record_owner(id, &pending).await? {
                        return Ok(true);
                    }
                }
                ["stale"] => self.ensure_ready().await?,
                _ => return Ok(false),
            }
        }
        Ok(false)
    }

    /// Takes conversations from agents who did not reply in time. Three misses make an agent away.
    ///
    /// # Errors
    /// The store or the archive is away.
    pub async fn sweep_replies(&self) -> Result<usize, Error> {
        let (mut store, keys, now) = (self.0.store.clone(), &self.0.keys, self.now());
        let due: Vec<String> = store.zrangebyscore_limit(&keys.due, "-inf", now.0, 0, 200).await?;
        let mut count = 0;
        for id in due.iter().filter_map(|id| ConversationId::parse(id).ok()) {
            let owner: Option<String> = store.hget(keys.conversation(&id), "assignee").await?;
            let Some(owner) = owner.and_then(|owner| AgentId::parse(&owner).ok()) else {
                let () = store.zrem(&keys.due, id.as_str()).await?;
                continue;
            };
            if !self.take_from(&id, &owner, "no_reply", owner.as_str(), true).await? {
                // Answered; but if it changed hands meanwhile, the deadline is that of another agent.
                let now: Option<String> = store.hget(keys.conversation(&id), "assignee").await?;
                if now.as_deref() == Some(owner.as_str()) {
                    let () = store.zrem(&keys.due, id.as_str()).await?;
                }
                continue;
            }
            count += 1;
            let field = format!("{owner}:misses");
            let misses: i64 = store.hincr(&keys.agents, &field, 1).await?;
            if misses >= MISSES_MOST {
                let () = store.hset(&keys.agents, &field, 0).await?;
                self.choose_status(&owner, PresenceStatus::Away, None).await?;
            }
        }
        if count > 0 {
            self.0.dispatch.notify_one();
        }
        Ok(count)
    }

    /// Raises the rank of those that wait for long, and lets agents who missed one have it again when
    /// nobody else took it.
    ///
    /// # Errors
    /// The store is away.
    pub async fn sweep_waiting(&self) -> Result<(), Error> {
        let (mut store, keys, options) = (self.0.store.clone(), &self.0.keys, self.options());
        let (ageing, now) = (millis(options.ageing), self.now().0);
        let patience = millis(options.first_reply).max(60_000);
        let mut offset = 0_isize;
        loop {
            let found: Vec<(String, f64)> =
                store.zrevrange_withscores(&keys.waiting, offset, offset + 499).await?;
            if found.is_empty() {
                return Ok(());
            }
            offset += 500;
            let ids: Vec<(ConversationId, f64)> = found
                .iter()
                .filter_map(|(id, score)| Some((ConversationId::parse(id).ok()?, *score)))
                .collect();
            if ids.is_empty() {
                continue;
            }
            let mut pipe = redis::pipe();
            for (id, _) in &ids {
                pipe.cmd("HMGET").arg(keys.conversation(id)).arg(&[
                    "rank",
                    "waiting_ms",
                    "queued_ms",
                    "missed",
                ]);
            }
            let states: Vec<Vec<Option<String>>> = pipe.query_async(&mut store).await?;
            let mut pipe = redis::pipe();
            for ((id, score), state) in ids.iter().zip(&states) {
                let number = |at: usize| -> Option<i64> { state.get(at)?.as_deref()?.parse().ok() };
                let (Some(rank), Some(since)) = (number(0), number(1).or_else(|| number(2))) else {
                    continue;
                };
                let waited = (now - since).max(0);
                let aged = if ageing > 0 { rank + waited / ageing } else { rank };
                let aged = urgency_score(aged.min(4), Millis(since));
                if (aged as f64 - score).abs() > 0.5 {
                    pipe.cmd("ZADD")
                        .arg(&keys.waiting)
                        .arg("XX")
                        .arg(aged)
                        .arg(id.as_str())
                        .ignore();
                }
                let missed = state.get(3).and_then(Option::as_deref).unwrap_or_default();
                let misses = i64::try_from(missed.matches(',').count()).unwrap_or(0);
                if misses > 0 && waited > patience * (misses + 1) * 2 {
                    pipe.hset(keys.conversation(id), "missed", "").ignore();
                }
            }
            if pipe.cmd_iter().next().is_some() {
                let () = pipe.query_async(&mut store).await?;
            }
        }
    }

    /// Returns the place of a conversation among those that wait; none if it does not.
    ///
    /// # Errors
    /// The store is away.
    pub async fn waiting_place(&self, id: &ConversationId) -> Result<Option<WaitingPlace>, Error> {
        let (mut store, keys, now) = (self.0.store.clone(), &self.0.keys, self.now());
        let rank: Option<i64> = store.zrevrank(&keys.waiting, id.as_str()).await?;
        let Some(rank) = rank else { return Ok(None) };
        let there: i64 = store.zcount(&keys.leases, format!("({}", now.0), "+inf").await?;
        let position = rank + 1;
        Ok(Some(WaitingPlace {
            position,
            expected_wait_seconds: self.expected_wait(position, there),
        }))
    }

    /// Returns the expected wait by the measured handling time: an agent becomes free every so often.
    pub(crate) fn expected_wait(&self, position: i64, agents: i64) -> Option<i64> {
        let handling = self.0.handling_ms.load(Ordering::Relaxed);
        if handling == 0 || agents == 0 {
            return None;
        }
        let capacity = self.0.roster.load().agents.values().map(|a| i64::from(a.capacity)).max();
        let at_once = agents * capacity.unwrap_or(1).max(1);
        Some(handling.saturating_mul(position) / at_once / 1_000)
    }

    /// Returns the conversations that wait, next first, from an offset on.
    ///
    /// # Errors
    /// The store or the archive is away.
    pub async fn waiting(
        &self,
        offset: usize,
        limit: usize,
    ) -> Result<Vec<(Conversation, WaitingPlace)>, Error> {
        let (mut store, keys) = (self.0.store.clone(), &self.0.keys);
        let from = isize::try_from(offset).unwrap_or(isize::MAX / 2);
        let to = from.saturating_add(isize::try_from(limit).unwrap_or(1) - 1);
        let ids: Vec<String> = store.zrevrange(&keys.waiting, from, to).await?;
        let there: i64 = store.zcount(&keys.leases, format!("({}", self.now().0), "+inf").await?;
        let mut found = Vec::new();
        for (at, id) in (offset..).zip(&ids) {
            let position = i64::try_from(at).unwrap_or(0) + 1;
            match self.conversation(&ConversationId::parse(id)?).await {
                Ok(conversation) => {
                    let expected_wait_seconds = self.expected_wait(position, there);
                    found.push((conversation, WaitingPlace { position, expected_wait_seconds }));
                }
                Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Hands out conversations whenever somebody rings, and every 5 s.
    pub(crate) async fn run_dispatcher(&self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.0.dispatch.notified() => {}
                () = tokio::time::sleep(SWEEP) => {}
            }
            if let Err(error) = self.dispatch().await {
                tracing::warn!(%error, "waiting conversations not handed out; tried again in 5 s");
            }
        }
    }

    /// Does what must be done once, not on every instance, about every second.
    pub(crate) async fn run_maintenance(&self, stop: CancellationToken) {
        let lease = FencedLease::new(
            // Taken anew every second; after a power cut somebody takes it with a higher token.
            &self.0.store.relaxed(),
            self.0.keys.leader.clone(),
            self.0.instance.as_str(),
            LEADER_LEASE,
        );
        let mut round = 0_u64;
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(TICK) => {}
            }
            match lease.take().await {
                Ok(LeaseOutcome::Held(_)) => {}
                Ok(LeaseOutcome::Busy { .. }) => {
                    if round.is_multiple_of(5)
                        && let Err(error) = self.load_roster().await
                    {
                        tracing::debug!(%error, "agents not read again");
                    }
                    // Every instance tells visitors how long they wait.
                    if round.is_multiple_of(60)
                        && let Err(error) = self.measure_handling().await
                    {
                        tracing::debug!(%error, "handling times not measured");
                    }
                    round += 1;
                    continue;
                }
                Err(error) => {
                    tracing::debug!(%error, "no lease for the periodic work of the chat");
                    continue;
                }
            }
            if let Err(error) = self.maintain(round).await {
                tracing::warn!(%error, "periodic work of the chat not done; tried again in a second");
            }
            round += 1;
        }
        if let Ok(LeaseOutcome::Held(held)) = lease.take().await {
            let _ = lease.release(held).await; // it runs out by itself
        }
    }

    /// Does one round of the periodic work.
    ///
    /// # Errors
    /// The store or the archive is away.
    pub async fn maintain(&self, round: u64) -> Result<(), Error> {
        if round.is_multiple_of(30) && !self.renew_published().await? {
            self.ensure_ready().await?;
        }
        self.sweep_outbox().await?;
        self.sweep_assignments().await?;
        self.sweep_presence().await?;
        self.sweep_replies().await?;
        self.sweep_snoozed().await?;
        self.sweep_left().await?;
        self.sweep_sla().await?;
        if round.is_multiple_of(5) {
            self.load_roster().await?;
            self.sweep_availability().await?;
            self.sweep_waiting().await?;
            self.announce_positions().await?;
            self.publish_dashboards().await?;
        }
        if round.is_multiple_of(60) {
            self.measure_handling().await?;
        }
        if round.is_multiple_of(600) {
            self.sweep_retention().await?;
        }
        Ok(())
    }

    /// Tells waiting visitors their position, where it is news; the first 200.
    ///
    /// # Errors
    /// The store or the archive is away.
    pub async fn announce_positions(&self) -> Result<usize, Error> {
        let waiting = self.waiting(0, POSITIONS_TOLD_MOST).await?;
        let before = std::mem::take(&mut *self.0.told_places.lock());
        let mut told = HashMap::with_capacity(waiting.len());
        let mut count = 0;
        for (conversation, place) in waiting {
            let known = before.get(&conversation.id).copied();
            if known.is_some_and(|known| !place.is_news(known)) {
                told.extend(known.map(|known| (conversation.id, known)));
                continue;
            }
            let data = json!({
                "conversation_id": conversation.id.as_str(),
                "position": place.position,
                "expected_wait_seconds": place.expected_wait_seconds,
            });
            let visitor = conversation.visitor.id.as_str();
            self.announce("queue.position", Some((&conversation.id, visitor)), &data, true).await?;
            told.insert(conversation.id, place);
            count += 1;
        }
        *self.0.told_places.lock() = told;
        Ok(count)
    }
}

/// Gives a conversation the owner that was decided. None if it has a newer one, or is resolved.
fn set_owner_in(
    conversation: &mut Conversation,
    pending: &PendingAssignment,
    names: &dyn AgentNames,
    now: Millis,
) -> Result<Option<ConversationWrite>, Error> {
    if conversation.status == ConversationStatus::Resolved
        || conversation.assign_no >= pending.assign_no
    {
        return Ok(None);
    }
    let before = conversation.assignee.take();
    conversation.assign_no = pending.assign_no;
    conversation.assignee.clone_from(&pending.agent);
    conversation.queued_since.get_or_insert(now);
    let more = json!({
        "reason": pending.reason,
        "previous_assignee": before.as_ref().map(AgentId::as_str),
        "by": pending.by,
    });
    let mut told = None;
    let kind = match &pending.agent {
        Some(agent) => {
            conversation.last_agent = Some(agent.clone());
            conversation.assigned_at = Some(pending.at);
            "conversation.assigned"
        }
        None => {
            if let (Some(agent), true) = (&before, pending.reason == "no_reply") {
                conversation.missed.push(agent.to_string());
            }
            if ["offline", "no_reply", "disabled"].contains(&pending.reason.as_str()) {
                told = Some(tell(conversation, now));
            }
            "conversation.unassigned"
        }
    };
    let mut events = vec![ChatEvent { more, ..ChatEvent::new(kind) }];
    if let Some(message) = &told {
        events.push(ChatEvent { message: Some(message), ..ChatEvent::new(MESSAGE_CREATED) });
    }
    ConversationWrite::new(conversation, &events, names, before.as_ref(), now, false).map(Some)
}

/// Tells the visitor that they are back in the queue.
fn tell(conversation: &mut Conversation, now: Millis) -> Message {
    conversation.last_seq += 1;
    Message {
        id: ids::fresh("msg"),
        conversation: conversation.id.clone(),
        seq: conversation.last_seq,
        client_id: None,
        sender_role: SenderRole::System,
        sender_id: None,
        sender_name: None,
        kind: MessageType::Event,
        content: "requeued".to_owned(),
        attachments: Vec::new(),
        created_at: Millis(now.0.max(conversation.last_message_at.0)),
        edited_at: None,
        deleted: false,
    }
}
