//! Taking a place in the line, or finding the one already held.

use std::{net::IpAddr, sync::Arc, time::Duration};

use ring::digest;
use serde_json::{Map, Value};
use store::{Millis, gather::Call, script::Arg};

use crate::{
    Duplicates, Error, Estimate, Here, Level, NoEstimate, Place, PositionId, QueueId, Room,
    SessionId, State, address,
    estimate::{estimate, next_poll},
    hour,
    invite::Invite,
    pulse::Pulse,
    reply::Values,
    scripts,
};

/// Somebody who wants in. All of it is optional.
#[derive(Clone, Debug, Default)]
pub struct NewPlace {
    /// The place named by the visitor's token, after the token was checked.
    pub held: Option<PositionId>,
    /// A key the client chose: joining again with it finds the same position, and its token. So it is a
    /// secret: 16 random bytes and more, as [`check_key`] says.
    pub idempotency_key: Option<String>,
    /// What gives the visitor a level above 0.
    pub proof: Proof,
    /// Where the visitor comes from.
    pub address: Option<IpAddr>,
    /// The visitor's user agent; cut to what the queue keeps.
    pub user_agent: String,
    /// What the client wants kept with the place: up to 16 entries and 1 KiB of JSON.
    pub metadata: Map<String, Value>,
}

/// What gives a visitor a priority level. A number in a request is not one.
#[derive(Clone, Debug, Default)]
pub enum Proof {
    /// Nothing: level 0.
    #[default]
    None,
    /// An invite whose signature was checked by [`Room::check_invite`].
    Invite(Invite),
    /// An operator says so.
    Operator(Level),
}

impl Proof {
    fn level(&self) -> Level {
        match self {
            Proof::None => Level::NORMAL,
            Proof::Invite(invite) => invite.level,
            Proof::Operator(level) => *level,
        }
    }
}

/// What joining came to.
#[derive(Clone, Debug)]
pub struct Joined {
    /// The place, new or held before.
    pub place: Place,
    /// Was it made by this call?
    pub new: bool,
}

/// How often a join is tried again when the instant was taken by another instance.
const TRIES: u32 = 16;

impl Room {
    /// Takes a place in the line. Whoever holds one gets it back, also while the queue is full,
    /// paused or closed. If there is room and nobody is before, the place is admitted at once.
    pub async fn join(&self, queue: &QueueId, new: NewPlace) -> Result<Joined, Error> {
        let metadata = check_metadata(&new.metadata)?;
        if let Some(key) = &new.idempotency_key {
            check_key(key)?;
        }
        let pulse = self.pulse(queue).await?;
        let here = self.here(queue);
        let ip_hash = match new.address {
            Some(ip) => self.0.addresses.hash(&self.0.store, &self.0.keys, ip).await?,
            None => String::new(),
        };
        let ip_address = match new.address {
            Some(ip) if pulse.config.store_addresses => ip.to_string(),
            _ => String::new(),
        };
        let level = new.proof.level();
        let mut wish = Arc::new(Wish {
            level,
            held: new.held,
            dead: Vec::new(),
            ip_address,
            ip_hash,
            user_agent: cut(&new.user_agent, pulse.config.user_agent_bytes as usize),
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
        for attempt in 0..TRIES {
            let now = self.now();
            let ticket = self.propose_ticket(now, after);
            let id = PositionId::of_ticket(ticket, now, address::random()?);
            let session = SessionId::fresh();
            let join = Join { id, ticket, session, wish: Arc::clone(&wish) };
            match here.known.joins.call(&here, join).await? {
                Came::Waiting { ticket, position, waiting } => {
                    let place = Place {
                        ticket: Some(ticket),
                        position: Some(position),
                        waiting,
                        ..made(queue, id, level, now, &pulse, estimate(position, &pulse))
                    };
                    return Ok(Joined { place, new: true });
                }
                Came::Admitted { ticket, claim_by } => {
                    let place = Place {
                        ticket: Some(ticket),
                        state: State::Admitted,
                        claim_by: Some(claim_by),
                        session: Some(session),
                        expires_at: None,
                        ..made(queue, id, level, now, &pulse, Err(NoEstimate::NotWaiting))
                    };
                    return Ok(Joined { place, new: true });
                }
                Came::Existing(found) => {
                    let place = self.status(queue, &found).await?;
                    return Ok(Joined { place, new: found == id });
                }
                // The key or the address is known, but its position may be over: look, and say so
                // if it is, so that it is no obstacle to a new one.
                Came::Mapped(found) => match self.status(queue, &found).await {
                    Ok(place) if !place.state.is_over() => {
                        return Ok(Joined { place, new: false });
                    }
                    Ok(_) | Err(Error::UnknownPosition) => {
                        let mut again = Wish::clone(&wish);
                        again.dead.push(found);
                        wish = Arc::new(again);
                    }
                    Err(error) => return Err(error),
                },
                // Leap ahead of the others by more each time.
                Came::Late { last } => after = last + (50 << attempt.min(12)),
                Came::Full { waiting } => return Err(Error::Full { waiting }),
                Came::Maintenance => return Err(Error::Maintenance),
                Came::InviteUsed => return Err(Error::InviteUsed),
                Came::Settings => self.forget(queue),
            }
        }
        Err(Error::Busy)
    }
}

/// What a visitor asks for, the same however often it is tried.
#[derive(Clone, Debug)]
struct Wish {
    level: Level,
    held: Option<PositionId>,
    /// Positions the visitor's key or address names that are over.
    dead: Vec<PositionId>,
    ip_address: String,
    ip_hash: String,
    user_agent: String,
    metadata: String,
    user_id: String,
    once: Option<String>,
    invite: Option<Invite>,
}

/// Asks for a place.
#[derive(Debug)]
pub(crate) struct Join {
    id: PositionId,
    ticket: u64,
    session: SessionId,
    wish: Arc<Wish>,
}

/// What joining came to, as the header of `join.lua` lists it.
#[derive(Debug)]
pub(crate) enum Came {
    Waiting { ticket: u64, position: u64, waiting: u64 },
    Admitted { ticket: u64, claim_by: Millis },
    Existing(PositionId),
    Mapped(PositionId),
    Late { last: u64 },
    Full { waiting: u64 },
    Maintenance,
    InviteUsed,
    Settings,
}

impl Call for Join {
    type With = Here;
    type Answer = Came;
    type Error = Error;

    async fn make(Here { room, known }: &Here, calls: &[Self]) -> Result<Vec<Came>, Error> {
        let pulse = room.pulse(&known.queue).await?;
        let by_address = pulse.config.duplicates == Duplicates::Ip;
        let now = room.now();
        let once_ttl = room.0.options.idempotency.as_secs();
        let mut places = Vec::with_capacity(calls.len());
        let mut joins = Vec::with_capacity(calls.len() * 13);
        for Join { id, ticket, session, wish } in calls {
            places.push(known.position(id));
            places.extend(wish.held.as_ref().map(|held| known.position(held)));
            if by_address && !wish.ip_hash.is_empty() {
                places.push(known.ipmap(&wish.ip_hash));
            }
            let once = wish.once.as_ref().filter(|_| once_ttl > 0);
            places.extend(once.map(|once| known.once(once)));
            let invite = wish.invite.as_ref().filter(|invite| invite.uses > 0);
            places.extend(invite.map(|invite| known.invite(&invite.id)));
            let text = |id: &PositionId| Arg::Text(id.to_string());
            let (uses, invite_ttl) = match invite {
                Some(invite) => (invite.uses, (invite.expires.since(now).as_secs() + 60).max(60)),
                None => (0, 0),
            };
            joins.extend([
                (*ticket).into(),
                Arg::Text(session.to_string()),
                Arg::Number(wish.level.number().into()),
                wish.held.as_ref().map_or(Arg::Word(""), text),
                Arg::Text(
                    wish.dead.iter().map(PositionId::to_string).collect::<Vec<_>>().join(","),
                ),
                Arg::Word(&wish.ip_address),
                Arg::Word(&wish.ip_hash),
                Arg::Word(&wish.user_agent),
                Arg::Word(&wish.metadata),
                Arg::Word(&wish.user_id),
                once.map_or(0, |_| once_ttl).into(),
                Arg::Number(uses.into()),
                invite_ttl.into(),
            ]);
        }
        let reply = scripts::join::run(
            &room.0.store,
            scripts::join::Keys {
                meta: &known.meta,
                state: &known.state,
                positions: &known.positions,
                lane0: &known.lanes[0],
                lane1: &known.lanes[1],
                lane2: &known.lanes[2],
                lane3: &known.lanes[3],
                heartbeat: &known.heartbeat,
                claims: &known.claims,
                active: &known.active,
                tokens: &known.tokens,
                last_update: &known.last_update,
                stats: known.stats(&hour(now)),
                events: &known.events,
                places,
            },
            scripts::join::Args {
                now_ms: now,
                queue_id: known.queue.as_str(),
                by_address: u8::from(by_address),
                joins,
            },
        )
        .await?;
        let mut reply = Values::of(scripts::join::SCRIPT, reply)?;
        reply.word("joins")?;
        calls.iter().map(|_| came(&mut reply)).collect()
    }

    fn is_spoilt(error: &Error) -> bool {
        error.is_of_script()
    }
}

fn came(reply: &mut Values) -> Result<Came, Error> {
    Ok(match reply.text()?.as_str() {
        "waiting" => Came::Waiting {
            ticket: reply.number()?,
            position: reply.number()?,
            waiting: reply.number()?,
        },
        "admitted" => Came::Admitted { ticket: reply.number()?, claim_by: Millis(reply.number()?) },
        "existing" => Came::Existing(PositionId::parse(&reply.text()?)?),
        "mapped" => Came::Mapped(PositionId::parse(&reply.text()?)?),
        "late" => Came::Late { last: reply.number()? },
        "full" => Came::Full { waiting: reply.number()? },
        "maintenance" => Came::Maintenance,
        "invite_used" => Came::InviteUsed,
        "settings" => Came::Settings,
        other => return Err(reply.unexpected(other)),
    })
}

/// A place just made, without asking again.
fn made(
    queue: &QueueId,
    id: PositionId,
    level: Level,
    now: Millis,
    pulse: &Pulse,
    estimate: Result<Estimate, NoEstimate>,
) -> Place {
    let seen = Millis(now.as_secs() * 1000);
    let held_for = pulse.config.heartbeat_timeout();
    Place {
        id,
        queue: queue.clone(),
        state: State::Waiting,
        reason: None,
        ended: None,
        level,
        ticket: None,
        joined: now,
        position: None,
        waiting: pulse.waiting,
        claim_by: None,
        session: None,
        replaced_by: None,
        last_heartbeat: Some(seen),
        expires_at: Some(seen + Duration::from_secs(1) + held_for),
        held_for,
        next_poll: next_poll(&estimate, pulse),
        estimate,
        queue_status: pulse.status,
        message: pulse.config.message.clone(),
        epoch: u32::try_from(pulse.number("epoch")).unwrap_or(0),
    }
}

fn check_metadata(metadata: &Map<String, Value>) -> Result<String, Error> {
    let text = Value::Object(metadata.clone()).to_string();
    if metadata.len() > 16 || text.len() > 1_024 {
        return Err(Error::invalid("metadata", "up to 16 entries and 1,024 bytes of JSON"));
    }
    Ok(text)
}

/// Refuses a key that others could guess: whoever repeats it gets the position's token.
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

/// At most `most` bytes of a text, whole characters, without control characters.
pub(crate) fn cut(text: &str, most: usize) -> String {
    let mut kept = String::new();
    for c in text.chars().filter(|c| !c.is_control()) {
        if kept.len() + c.len_utf8() > most {
            break;
        }
        kept.push(c);
    }
    kept
}

/// A client's key as a short name without surprises.
fn digest_of(key: &str) -> String {
    let digest = digest::digest(&digest::SHA256, key.as_bytes());
    digest.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_at_whole_characters() {
        assert_eq!(cut("Mozilla/5.0\r\n\x1b[31m", 64), "Mozilla/5.0[31m");
        assert_eq!(cut("äöü", 5), "äö");
        assert_eq!(cut("äöü", 0), "");
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
