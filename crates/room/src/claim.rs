//! An admitted visitor arrives: the offer becomes a session.

use std::net::IpAddr;

use crate::{
    Error, Pass, PositionId, QueueId, Reason, Room, Session, SessionId, State, hour,
    invite::check_user_id, join::cut, reply::Reply, scripts,
};

/// Who arrives.
#[derive(Clone, Debug, Default)]
pub struct Visitor {
    /// The visitor's id on the protected site, if it was proved; up to 200 characters. Empty is that of
    /// the invite the position was taken with.
    pub user_id: String,
    /// Where the visitor comes from; kept only if the queue keeps addresses.
    pub address: Option<IpAddr>,
    /// The visitor's user agent; cut to what the queue keeps.
    pub user_agent: String,
}

/// What claiming came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Claim {
    /// The session runs; `started` says that it was started by this call.
    Session {
        /// The session.
        session: Session,
        /// Was it started now?
        started: bool,
    },
    /// Not admitted yet.
    Waiting,
    /// The place is over.
    Over(State, Option<Reason>),
}

impl Room {
    /// Starts the session of an admitted place. Claiming twice finds the first session.
    pub async fn claim(
        &self,
        queue: &QueueId,
        id: &PositionId,
        visitor: &Visitor,
    ) -> Result<Claim, Error> {
        self.start_session(queue, id, visitor, false).await
    }

    /// The same; a provisional session is short until its pass comes back once.
    pub(crate) async fn start_session(
        &self,
        queue: &QueueId,
        id: &PositionId,
        visitor: &Visitor,
        provisional: bool,
    ) -> Result<Claim, Error> {
        check_user_id(&visitor.user_id)?;
        let keys = self.known(queue);
        let pulse = self.pulse(queue).await?;
        // The session's id is written at admission, so its key can be named.
        let place = self.status(queue, id).await?;
        let mut offered = place.session;
        let lasts = match provisional {
            true => pulse.config.session_timeout.min(pulse.config.provisional_timeout),
            false => pulse.config.session_timeout,
        };
        let by_address = match visitor.address {
            Some(ip) => Some(self.0.addresses.hash(&self.0.store, &self.0.keys, ip).await?),
            None => None,
        };
        for _ in 0..4 {
            let session = offered.unwrap_or_else(SessionId::fresh);
            let now = self.now();
            let token = match place.state {
                State::Admitted => {
                    let pass = Pass {
                        queue: queue.clone(),
                        session,
                        position: *id,
                        level: place.level,
                        epoch: place.epoch,
                        issued: now,
                        expires: now + lasts,
                    };
                    sha256(&self.sign_pass(&pass).await?)
                }
                _ => String::new(),
            };
            let address = visitor.address.filter(|_| pulse.config.store_addresses);
            let reply = scripts::claim::run(
                &self.0.store,
                scripts::claim::Keys {
                    meta: &keys.meta,
                    state: &keys.state,
                    positions: &keys.positions,
                    claims: &keys.claims,
                    active: &keys.active,
                    deadlines: &keys.deadlines,
                    stats: keys.stats(&hour(now)),
                    events: &keys.events,
                    position: keys.position(id),
                    session: keys.session(&session),
                    address: keys.address_sessions(by_address.as_deref().unwrap_or("none")),
                },
                scripts::claim::Args {
                    now_ms: now,
                    queue_id: queue.as_str(),
                    id: id.to_string(),
                    session_id: session.to_string(),
                    user_id: &visitor.user_id,
                    ip_address: address.map(|ip| ip.to_string()),
                    user_agent: cut(&visitor.user_agent, pulse.config.user_agent_bytes as usize),
                    token,
                    level: place.level.number(),
                    by_address: u8::from(by_address.is_some()),
                    provisional: u8::from(provisional),
                },
            )
            .await?;
            let reply = Reply::of(scripts::claim::SCRIPT, reply)?;
            match reply.word() {
                "started" | "active" => {
                    let session = SessionId::parse(reply.text(1))?;
                    let session = self.session(queue, &session).await?;
                    return Ok(Claim::Session { session, started: reply.word() == "started" });
                }
                "moved" => offered = Some(SessionId::parse(reply.text(1))?),
                "waiting" => return Ok(Claim::Waiting),
                "ended" => {
                    let reason = Reason::read(reply.text(2));
                    let state =
                        State::read(reply.text(1), reason).ok_or_else(|| reply.unexpected())?;
                    return Ok(Claim::Over(state, reason));
                }
                "address_full" => return Err(Error::AddressFull { limit: reply.number(1)? }),
                "unknown" => return Err(Error::UnknownPosition),
                _ => return Err(reply.unexpected()),
            }
        }
        Err(Error::Busy)
    }
}

/// A secret as it is stored.
fn sha256(secret: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, secret.as_bytes());
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}
