//! Enqueueing: gives a visitor a position in line, or finds the one already held.

use std::{net::IpAddr, sync::Arc, time::Duration};

use ring::digest;
use serde_json::{Map, Value};
use store::{Millis, batcher::Batchable, script::Arg};

use crate::{
    BatchContext, Duplicates, Error, Estimate, NoEstimate, Position, PositionId, PositionState,
    QueueId, Room, SessionId, VisitorPriority, address,
    estimate::{estimate, next_poll},
    figures::count_refusal,
    hour,
    invite::Invite,
    reply::ReplyReader,
    scripts,
    snapshot::QueueSnapshot,
};

/// A visitor to enqueue. All of it is optional.
#[derive(Clone, Debug, Default)]
pub struct NewPosition {
    /// The position named by the visitor's token, after the token was checked.
    pub held: Option<PositionId>,
    /// Idempotency key chosen by the client: enqueueing again with it finds the same position, and its token. So it is a
    /// secret: 16 random bytes and more, as [`check_key`] says.
    pub idempotency_key: Option<String>,
    /// Proof of a priority above 0.
    pub proof: Proof,
    /// The visitor's network address.
    pub address: Option<IpAddr>,
    /// The visitor's user agent; truncated to what the queue keeps.
    pub user_agent: String,
    /// Data the client wants kept with the position: up to 16 entries and 1 KiB of JSON.
    pub metadata: Map<String, Value>,
}

/// Proof of a visitor's priority. A number in a request proves nothing.
#[derive(Clone, Debug, Default)]
pub enum Proof {
    /// Nothing: priority 0.
    #[default]
    None,
    /// An invite whose signature was checked by [`Room::check_invite`].
    Invite(Invite),
    /// An operator says so.
    Operator(VisitorPriority),
}

impl Proof {
    fn priority(&self) -> VisitorPriority {
        match self {
            Proof::None => VisitorPriority::NORMAL,
            Proof::Invite(invite) => invite.priority,
            Proof::Operator(priority) => *priority,
        }
    }
}

/// The outcome of [`Room::enqueue`].
#[derive(Clone, Debug)]
pub struct EnqueueOutcome {
    /// The position, new or held before.
    pub position: Position,
    /// True if this call made it.
    pub new: bool,
}

/// Attempts made when another instance took the ticket of the same instant.
const TRIES: u32 = 16;
/// Calls in which the queue may be renumbered for one visitor who skips part of it. Each moves up to
/// 1,000 positions.
const RENUMBERING_CALLS: u32 = 20_000;

impl Room {
    /// Enqueues a visitor. One who holds a position gets it back, also while the queue is full, paused
    /// or closed. If a slot is free and nobody is ahead, the position is admitted at once.
    pub async fn enqueue(
        &self,
        queue: &QueueId,
        new: NewPosition,
    ) -> Result<EnqueueOutcome, Error> {
        let user_id = match &new.proof {
            Proof::Invite(invite) => invite.user_id.clone(),
            _ => String::new(),
        };
        let enqueued = self.find_or_make_position(queue, new).await;
        match &enqueued {
            Ok(outcome) => self.remember_user(queue, &user_id, &outcome.position.id).await?,
            Err(error) => count_refusal(queue, error),
        }
        enqueued
    }

    async fn find_or_make_position(
        &self,
        queue: &QueueId,
        new: NewPosition,
    ) -> Result<EnqueueOutcome, Error> {
        let metadata = check_metadata(&new.metadata)?;
        if let Some(key) = &new.idempotency_key {
            check_key(key)?;
        }
        let snapshot = self.snapshot(queue).await?;
        let context = self.batch_context(queue);
        let ip_hash = match new.address {
            Some(ip) => self.0.addresses.hash(&self.0.store, &self.0.keys, ip).await?,
            None => String::new(),
        };
        let ip_address = match new.address {
            Some(ip) if snapshot.config.store_addresses => ip.to_string(),
            _ => String::new(),
        };
        let priority = new.proof.priority();
        let mut request = Arc::new(EnqueueRequest {
            priority,
            held: new.held,
            dead: Vec::new(),
            ip_address,
            ip_hash,
            user_agent: truncate(&new.user_agent, snapshot.config.user_agent_bytes as usize),
            metadata,
            user_id: match &new.proof {
                Proof::Invite(invite) => invite.user_id.clone(),
                _ => String::new(),
            },
            once: new.idempotency_key.as_deref().map(digest_of),
            invite: match new.proof {
                Proof::Invite(invite) => Some(invite),
                _ => None,
            },
        });
        let mut after = 0;
        let (mut attempt, mut calls, mut cursor) = (0, 0, String::new());
        while attempt < TRIES && calls < RENUMBERING_CALLS {
            let now = self.now();
            let ticket = self.propose_ticket(now, after);
            let id = PositionId::of_ticket(ticket, now, address::random()?);
            let session = SessionId::fresh();
            let call = EnqueueCall {
                id,
                ticket,
                session,
                cursor: cursor.clone(),
                request: Arc::clone(&request),
            };
            attempt += 1;
            match context.cache.enqueue_batcher.call(&context, call).await? {
                EnqueueReply::Waiting { ticket, number, waiting } => {
                    let position = Position {
                        ticket: Some(ticket),
                        number: Some(number),
                        waiting,
                        ..fresh_position(
                            queue,
                            id,
                            priority,
                            now,
                            &snapshot,
                            estimate(number, &snapshot),
                        )
                    };
                    return Ok(EnqueueOutcome { position, new: true });
                }
                EnqueueReply::Admitted { ticket, start_by } => {
                    self.record_waits(queue, &[id]);
                    let position = Position {
                        ticket: Some(ticket),
                        state: PositionState::Admitted,
                        start_by: Some(start_by),
                        session: Some(session),
                        expires_at: None,
                        ..fresh_position(
                            queue,
                            id,
                            priority,
                            now,
                            &snapshot,
                            Err(NoEstimate::NotWaiting),
                        )
                    };
                    return Ok(EnqueueOutcome { position, new: true });
                }
                EnqueueReply::Existing(found) => {
                    let position = self.status(queue, &found).await?;
                    return Ok(EnqueueOutcome { position, new: found == id });
                }
                // The key or the address names a position that may have ended. If it has, say so in
                // the next attempt, so that it does not stand in the way of a new one.
                EnqueueReply::Mapped(found) => match self.status(queue, &found).await {
                    Ok(position) if !position.state.is_over() => {
                        return Ok(EnqueueOutcome { position, new: false });
                    }
                    Ok(_) | Err(Error::UnknownPosition) => {
                        let mut again = EnqueueRequest::clone(&request);
                        again.dead.push(found);
                        request = Arc::new(again);
                    }
                    Err(error) => return Err(error),
                },
                // Propose a ticket further ahead of the others each time (exponential backoff).
                EnqueueReply::Late { last } => after = last + (50 << (attempt - 1).min(12)),
                // Part of the queue was renumbered. That is progress, not a failed attempt.
                EnqueueReply::Renumbering { cursor: next } => {
                    (attempt, calls, cursor) = (attempt - 1, calls + 1, next);
                }
                EnqueueReply::Full { waiting } => return Err(Error::Full { waiting }),
                EnqueueReply::Maintenance => return Err(Error::Maintenance),
                EnqueueReply::InviteUsed => return Err(Error::InviteUsed),
                EnqueueReply::Settings => self.invalidate(queue),
            }
        }
        Err(Error::Busy)
    }
}

/// The part of a call that stays the same in every attempt.
#[derive(Clone, Debug)]
struct EnqueueRequest {
    priority: VisitorPriority,
    held: Option<PositionId>,
    /// Ended positions that the visitor's key or address still names.
    dead: Vec<PositionId>,
    ip_address: String,
    ip_hash: String,
    user_agent: String,
    metadata: String,
    user_id: String,
    once: Option<String>,
    invite: Option<Invite>,
}

/// One attempt to enqueue; concurrent attempts are sent as one batch.
#[derive(Debug)]
pub(crate) struct EnqueueCall {
    id: PositionId,
    ticket: u64,
    session: SessionId,
    /// Cursor at which renumbering goes on.
    cursor: String,
    request: Arc<EnqueueRequest>,
}

/// One reply of `enqueue.lua`, as its header lists them.
#[derive(Debug)]
pub(crate) enum EnqueueReply {
    Waiting { ticket: u64, number: u64, waiting: u64 },
    Admitted { ticket: u64, start_by: Millis },
    Existing(PositionId),
    Mapped(PositionId),
    Late { last: u64 },
    Renumbering { cursor: String },
    Full { waiting: u64 },
    Maintenance,
    InviteUsed,
    Settings,
}

impl Batchable for EnqueueCall {
    type Context = BatchContext;
    type Answer = EnqueueReply;
    type Error = Error;

    async fn send_batch(
        BatchContext { room, cache }: &BatchContext,
        calls: &[Self],
    ) -> Result<Vec<EnqueueReply>, Error> {
        let snapshot = room.snapshot(&cache.queue).await?;
        let by_address = snapshot.config.duplicates == Duplicates::Ip;
        let by_share = snapshot.config.limits_addresses();
        let now = room.now();
        let once_ttl = room.0.options.idempotency.as_secs();
        let mut records = Vec::with_capacity(calls.len());
        let mut requests = Vec::with_capacity(calls.len() * 14);
        for EnqueueCall { id, ticket, session, cursor, request } in calls {
            records.push(cache.position(id));
            records.extend(request.held.as_ref().map(|held| cache.position(held)));
            if by_address && !request.ip_hash.is_empty() {
                records.push(cache.ipmap(&request.ip_hash));
            }
            if by_share && !request.ip_hash.is_empty() {
                records.push(cache.address_sessions(&request.ip_hash));
            }
            let once = request.once.as_ref().filter(|_| once_ttl > 0);
            records.extend(once.map(|once| cache.once(once)));
            let invite = request.invite.as_ref().filter(|invite| invite.uses > 0);
            records.extend(invite.map(|invite| cache.invite(&invite.id)));
            let text = |id: &PositionId| Arg::String(id.to_string());
            let (uses, invite_ttl) = match invite {
                Some(invite) => (invite.uses, (invite.expires.since(now).as_secs() + 60).max(60)),
                None => (0, 0),
            };
            requests.extend([
                (*ticket).into(),
                Arg::String(session.to_string()),
                Arg::Number(request.priority.number().into()),
                request.held.as_ref().map_or(Arg::Str(""), text),
                Arg::String(
                    request.dead.iter().map(PositionId::to_string).collect::<Vec<_>>().join(","),
                ),
                Arg::Str(&request.ip_address),
                Arg::Str(&request.ip_hash),
                Arg::Str(&request.user_agent),
                Arg::Str(&request.metadata),
                Arg::Str(&request.user_id),
                once.map_or(0, |_| once_ttl).into(),
                Arg::Number(uses.into()),
                invite_ttl.into(),
                Arg::Str(cursor),
            ]);
        }
        let reply = scripts::enqueue::run(
            &room.0.store,
            scripts::enqueue::Keys {
                meta: &cache.meta,
                state: &cache.state,
                positions: &cache.positions,
                lane0: &cache.lanes[0],
                lane1: &cache.lanes[1],
                lane2: &cache.lanes[2],
                lane3: &cache.lanes[3],
                heartbeat: &cache.heartbeat,
                admitted: &cache.admitted,
                active: &cache.active,
                tokens: &cache.tokens,
                last_update: &cache.last_update,
                stats: cache.stats(&hour(now)),
                events: &cache.events,
                records,
            },
            scripts::enqueue::Args {
                now_ms: now,
                queue_id: cache.queue.as_str(),
                by_address: u8::from(by_address),
                by_share: u8::from(by_share),
                requests,
            },
        )
        .await?;
        let mut reply = ReplyReader::of(scripts::enqueue::SCRIPT, reply)?;
        reply.word("enqueued")?;
        calls.iter().map(|_| read_enqueue_reply(&mut reply)).collect()
    }

    fn should_retry_individually(error: &Error) -> bool {
        error.is_of_script()
    }
}

fn read_enqueue_reply(reply: &mut ReplyReader) -> Result<EnqueueReply, Error> {
    Ok(match reply.text()?.as_str() {
        "waiting" => EnqueueReply::Waiting {
            ticket: reply.number()?,
            number: reply.number()?,
            waiting: reply.number()?,
        },
        "admitted" => {
            EnqueueReply::Admitted { ticket: reply.number()?, start_by: Millis(reply.number()?) }
        }
        "existing" => EnqueueReply::Existing(PositionId::parse(&reply.text()?)?),
        "mapped" => EnqueueReply::Mapped(PositionId::parse(&reply.text()?)?),
        "late" => EnqueueReply::Late { last: reply.number()? },
        "renumbering" => EnqueueReply::Renumbering { cursor: reply.text()? },
        "full" => EnqueueReply::Full { waiting: reply.number()? },
        "maintenance" => EnqueueReply::Maintenance,
        "invite_used" => EnqueueReply::InviteUsed,
        "settings" => EnqueueReply::Settings,
        other => return Err(reply.unexpected(other)),
    })
}

/// Builds a position that was just made, without reading it back.
fn fresh_position(
    queue: &QueueId,
    id: PositionId,
    priority: VisitorPriority,
    now: Millis,
    snapshot: &QueueSnapshot,
    estimate: Result<Estimate, NoEstimate>,
) -> Position {
    let seen = Millis(now.as_secs() * 1000);
    let held_for = snapshot.config.heartbeat_timeout();
    Position {
        id,
        queue: queue.clone(),
        state: PositionState::Waiting,
        reason: None,
        ended: None,
        priority,
        ticket: None,
        enqueued_at: now,
        number: None,
        waiting: snapshot.waiting,
        start_by: None,
        session: None,
        replaced_by: None,
        last_heartbeat: Some(seen),
        expires_at: Some(seen + Duration::from_secs(1) + held_for),
        held_for,
        next_poll: next_poll(&estimate, snapshot),
        estimate,
        queue_status: snapshot.status,
        message: snapshot.config.message.clone(),
        epoch: u32::try_from(snapshot.number("epoch")).unwrap_or(0),
    }
}

fn check_metadata(metadata: &Map<String, Value>) -> Result<String, Error> {
    let text = Value::Object(metadata.clone()).to_string();
    if metadata.len() > 16 || text.len() > 1_024 {
        return Err(Error::invalid("metadata", "up to 16 entries and 1,024 bytes of JSON"));
    }
    Ok(text)
}

/// Rejects a guessable key: anyone who repeats it gets the position's token.
///
/// 16 random bytes are 32 hexadecimal digits or 22 characters of base64, and have many different
/// ones among them; a UUID will do. An address, a name or a counter does not.
pub fn check_key(key: &str) -> Result<(), Error> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~+/=".contains(&b);
    let digits = key.bytes().filter(u8::is_ascii_hexdigit).count();
    let is_hex = key.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    let distinct = key.bytes().collect::<std::collections::HashSet<u8>>().len();
    let (long, varied) =
        if is_hex { (digits >= 32, distinct >= 8) } else { (key.len() >= 22, distinct >= 10) };
    if long && varied && key.len() <= 200 && key.bytes().all(plain) {
        return Ok(());
    }
    Err(Error::invalid(
        "idempotency_key",
        "at least 16 random bytes, because whoever knows it gets the position's token: 32 and more \
         hexadecimal digits, a random UUID, or 22 and more characters of base64, 200 at most; \
         make one with crypto.randomUUID() or `openssl rand -hex 16`",
    ))
}

/// Truncates a text to `most` bytes at a character boundary and drops control characters.
pub(crate) fn truncate(text: &str, most: usize) -> String {
    let mut kept = String::new();
    for c in text.chars().filter(|c| !c.is_control()) {
        if kept.len() + c.len_utf8() > most {
            break;
        }
        kept.push(c);
    }
    kept
}

/// Hashes a client's key, so that any text is safe in a Redis key.
fn digest_of(key: &str) -> String {
    let digest = digest::digest(&digest::SHA256, key.as_bytes());
    digest.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_at_whole_characters() {
        assert_eq!(truncate("Mozilla/5.0\r\n\x1b[31m", 64), "Mozilla/5.0[31m");
        assert_eq!(truncate("äöü", 5), "äö");
        assert_eq!(truncate("äöü", 0), "");
    }

    #[test]
    fn a_key_is_a_secret() {
        for good in [
            "6f1c0b8f5a9d4e7c8b2a3d4e5f60718a",
            "6F1C0B8F-5A9D-4E7C-8B2A-3D4E5F60718A",
            "9vX3kQ_b2ZrT7mWc1LpYsA",
            "visitor-6f1c0b8f5a9d4e7c8b2a3d4e5f60718a",
            "aGVsbG8gd29ybGQhISEx+/==",
        ] {
            assert!(check_key(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "5f0c",
            "ann@example.com",
            "christopher.robin.milne@hundred-acre.example",
            "6f1c0b8f5a9d4e7c8b2a3d4e5f6071",
            "00000000000000000000000000000123",
            "abababababababababababababababab",
            "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz",
            "6f1c0b8f 5a9d4e7c8b2a3d4e5f60718a",
            &"6f1c0b8f5a9d4e7c8b2a3d4e5f60718a".repeat(7),
        ] {
            assert!(check_key(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn metadata_has_bounds() {
        let entry = |n: usize| (0..n).map(|i| (i.to_string(), Value::from("x"))).collect();
        assert!(check_metadata(&entry(16)).is_ok());
        assert!(check_metadata(&entry(17)).is_err());
        let long = [("a".to_owned(), Value::from("x".repeat(1_024)))].into_iter().collect();
        assert!(check_metadata(&long).is_err());
        assert_eq!(check_metadata(&Map::new()).unwrap(), "{}");
    }
}
