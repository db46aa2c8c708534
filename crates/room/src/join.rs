//! Taking a place in the line, or finding the one already held.

use std::net::IpAddr;

use ring::digest;
use serde_json::{Map, Value};
use store::Millis;

use crate::{
    Error, Level, NoEstimate, Place, PositionId, QueueId, Room, SessionId, State, address,
    estimate::{estimate, next_poll},
    hour,
    invite::Invite,
    pulse::Pulse,
    reply::Reply,
    scripts,
};

/// Somebody who wants in. All of it is optional.
#[derive(Clone, Debug, Default)]
pub struct NewPlace {
    /// The place named by the visitor's token, after the token was checked.
    pub held: Option<PositionId>,
    /// A key the client chose: joining again with it finds the same place. Up to 200 characters.
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
        let once = match &new.idempotency_key {
            Some(key) if key.is_empty() || key.len() > 200 => {
                return Err(Error::invalid("idempotency_key", "1 to 200 characters"));
            }
            key => key.as_deref(),
        };
        let pulse = self.pulse(queue).await?;
        let keys = self.keys(queue);
        let ip_hash = match new.address {
            Some(ip) => self.0.addresses.hash(&self.0.store, &self.0.keys, ip).await?,
            None => String::new(),
        };
        let ip_address = match new.address {
            Some(ip) if pulse.config.store_addresses => ip.to_string(),
            _ => String::new(),
        };
        let user_agent = cut(&new.user_agent, pulse.config.user_agent_bytes as usize);
        let level = new.proof.level();
        let (invite_id, invite_uses, invite_until) = match &new.proof {
            Proof::Invite(invite) => (invite.id.as_str(), invite.uses, invite.expires),
            _ => ("-", 0, Millis(0)),
        };
        let (mut dead, mut after) = (String::new(), 0);
        for attempt in 0..TRIES {
            let now = self.now();
            let ticket = self.propose_ticket(now, after);
            let id = PositionId::of_ticket(ticket, now, address::random()?);
            let session = SessionId::fresh();
            let position = keys.position(&id);
            let reply = scripts::join::run(
                &self.0.store,
                scripts::join::Keys {
                    meta: &keys.meta,
                    state: &keys.state,
                    positions: &keys.positions,
                    lane0: &keys.lanes[0],
                    lane1: &keys.lanes[1],
                    lane2: &keys.lanes[2],
                    lane3: &keys.lanes[3],
                    heartbeat: &keys.heartbeat,
                    claims: &keys.claims,
                    active: &keys.active,
                    tokens: &keys.tokens,
                    last_update: &keys.last_update,
                    stats: keys.stats(&hour(now)),
                    events: &keys.events,
                    position: &position,
                    held: new.held.as_ref().map_or(position.clone(), |id| keys.position(id)),
                    ipmap: keys.ipmap(if ip_hash.is_empty() { "-" } else { &ip_hash }),
                    once: keys.once(&once.map_or("-".to_owned(), digest_of)),
                    invite: keys.invite(invite_id),
                },
                scripts::join::Args {
                    now_ms: now,
                    queue_id: queue.as_str(),
                    id: id.to_string(),
                    ticket,
                    session_id: session.to_string(),
                    level: level.number(),
                    held_id: new.held.map(|id| id.to_string()),
                    dead_id: &dead,
                    ip_address: &ip_address,
                    ip_hash: &ip_hash,
                    user_agent: &user_agent,
                    metadata: &metadata,
                    once_ttl: once.map_or(0, |_| self.0.options.idempotency.as_secs()),
                    invite_uses,
                    invite_ttl: (invite_until.since(now).as_secs() + 60).max(60),
                },
            )
            .await?;
            let reply = Reply::of(scripts::join::SCRIPT, reply)?;
            match reply.word() {
                "waiting" | "admitted" => {
                    let place = joined(queue, id, level, now, &pulse, &reply)?;
                    return Ok(Joined { place, new: true });
                }
                "existing" => {
                    let found = PositionId::parse(reply.text(1))?;
                    let place = self.status(queue, &found).await?;
                    return Ok(Joined { place, new: found == id });
                }
                // The address is known, but its place may be over: look, and say so if it is.
                "mapped" => {
                    let found = PositionId::parse(reply.text(1))?;
                    match self.status(queue, &found).await {
                        Ok(place) if !place.state.is_over() => {
                            return Ok(Joined { place, new: false });
                        }
                        Ok(_) | Err(Error::UnknownPosition) => dead = found.to_string(),
                        Err(error) => return Err(error),
                    }
                }
                // Leap ahead of the others by more each time.
                "late" => after = reply.number::<u64>(1)? + (50 << attempt.min(12)),
                "full" => return Err(Error::Full { waiting: reply.number(1)? }),
                "maintenance" => return Err(Error::Maintenance),
                "invite_used" => return Err(Error::InviteUsed),
                _ => return Err(reply.unexpected()),
            }
        }
        Err(Error::Busy)
    }
}

/// A place just made, from the script's reply, without asking again.
fn joined(
    queue: &QueueId,
    id: PositionId,
    level: Level,
    now: Millis,
    pulse: &Pulse,
    reply: &Reply,
) -> Result<Place, Error> {
    let waits = reply.word() == "waiting";
    let position = if waits { Some(reply.number(3)?) } else { None };
    let estimate = match position {
        Some(position) => estimate(position, pulse),
        None => Err(NoEstimate::NotWaiting),
    };
    let seen = Millis(now.as_secs() * 1000);
    Ok(Place {
        id,
        queue: queue.clone(),
        state: if waits { State::Waiting } else { State::Admitted },
        reason: None,
        ended: None,
        level,
        joined: now,
        position,
        waiting: if waits { reply.number(4)? } else { pulse.waiting },
        claim_by: if waits { None } else { Some(reply.moment(4)?) },
        session: if waits { None } else { Some(SessionId::parse(reply.text(3))?) },
        replaced_by: None,
        last_heartbeat: Some(seen),
        expires_at: waits
            .then(|| seen + std::time::Duration::from_secs(1) + pulse.config.heartbeat_timeout()),
        held_for: pulse.config.heartbeat_timeout(),
        next_poll: next_poll(&estimate, pulse),
        estimate,
        queue_status: pulse.status,
        message: pulse.config.message.clone(),
        epoch: u32::try_from(pulse.number("epoch")).unwrap_or(0),
    })
}

fn check_metadata(metadata: &Map<String, Value>) -> Result<String, Error> {
    if metadata.is_empty() {
        return Ok(String::new());
    }
    let text = Value::Object(metadata.clone()).to_string();
    if metadata.len() > 16 || text.len() > 1_024 {
        return Err(Error::invalid("metadata", "up to 16 entries and 1,024 bytes of JSON"));
    }
    Ok(text)
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
    fn metadata_has_bounds() {
        let entry = |n: usize| (0..n).map(|i| (i.to_string(), Value::from("x"))).collect();
        assert!(check_metadata(&entry(16)).is_ok());
        assert!(check_metadata(&entry(17)).is_err());
        let long = [("a".to_owned(), Value::from("x".repeat(1_024)))].into_iter().collect();
        assert!(check_metadata(&long).is_err());
    }
}
