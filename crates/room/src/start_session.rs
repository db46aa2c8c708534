//! Starting a session: an admitted position becomes active.

use std::net::IpAddr;

use crate::{
    EndReason, Error, Pass, PositionId, PositionState, QueueId, Room, SessionId, VisitorSession,
    enqueue::truncate, figures::count_refusal, hour, invite::check_user_id, reply::Reply, scripts,
};

/// A visitor who starts a session.
#[derive(Clone, Debug, Default)]
pub struct Visitor {
    /// The visitor's id on the protected site, if it was proved; up to 200 characters. Empty is that of
    /// the invite the position was taken with.
    pub user_id: String,
    /// The visitor's network address; stored only if the queue stores addresses.
    pub address: Option<IpAddr>,
    /// The visitor's user agent; truncated to what the queue keeps.
    pub user_agent: String,
}

/// The outcome of [`Room::start_session`].
#[derive(Clone, Debug, PartialEq)]
pub enum SessionStart {
    /// The session runs; `started` says that it was started by this call.
    Active {
        /// The session.
        session: VisitorSession,
        /// True if this call started it.
        started: bool,
    },
    /// Not admitted yet.
    Waiting,
    /// The position has ended.
    Over(PositionState, Option<EndReason>),
}

impl Room {
    /// Starts the session of an admitted position. Idempotent: a second call returns the first session.
    pub async fn start_session(
        &self,
        queue: &QueueId,
        id: &PositionId,
        visitor: &Visitor,
    ) -> Result<SessionStart, Error> {
        self.start_session_with(queue, id, visitor, false).await
    }

    /// Like [`Room::start_session`]; a provisional session is short until its pass comes back once.
    pub(crate) async fn start_session_with(
        &self,
        queue: &QueueId,
        id: &PositionId,
        visitor: &Visitor,
        provisional: bool,
    ) -> Result<SessionStart, Error> {
        check_user_id(&visitor.user_id)?;
        let keys = self.queue_cache(queue);
        let snapshot = self.snapshot(queue).await?;
        // The session's id is written at admission, so its key can be named.
        let position = self.status(queue, id).await?;
        let mut offered = position.session;
        let lasts = match provisional {
            true => snapshot.config.session_timeout.min(snapshot.config.provisional_timeout),
            false => snapshot.config.session_timeout,
        };
        let by_address = match visitor.address {
            Some(ip) => Some(self.0.addresses.hash(&self.0.store, &self.0.keys, ip).await?),
            None => None,
        };
        for _ in 0..4 {
            let session = offered.unwrap_or_else(SessionId::fresh);
            let now = self.now();
            let token = match position.state {
                PositionState::Admitted => {
                    let pass = Pass {
                        queue: queue.clone(),
                        session,
                        position: *id,
                        priority: position.priority,
                        epoch: position.epoch,
                        issued: now,
                        expires: now + lasts,
                    };
                    sha256(&self.sign_pass(&pass).await?)
                }
                _ => String::new(),
            };
            let address = visitor.address.filter(|_| snapshot.config.store_addresses);
            let reply = scripts::start_session::run(
                &self.0.store,
                scripts::start_session::Keys {
                    meta: &keys.meta,
                    state: &keys.state,
                    positions: &keys.positions,
                    admitted: &keys.admitted,
                    active: &keys.active,
                    deadlines: &keys.deadlines,
                    stats: keys.stats(&hour(now)),
                    events: &keys.events,
                    position: keys.position(id),
                    session: keys.session(&session),
                    address: keys.address_sessions(by_address.as_deref().unwrap_or("none")),
                },
                scripts::start_session::Args {
                    now_ms: now,
                    queue_id: queue.as_str(),
                    id: id.to_string(),
                    session_id: session.to_string(),
                    user_id: &visitor.user_id,
                    ip_address: address.map(|ip| ip.to_string()),
                    user_agent: truncate(
                        &visitor.user_agent,
                        snapshot.config.user_agent_bytes as usize,
                    ),
                    token,
                    priority: position.priority.number(),
                    by_address: u8::from(by_address.is_some()),
                    provisional: u8::from(provisional),
                },
            )
            .await?;
            let reply = Reply::of(scripts::start_session::SCRIPT, reply)?;
            match reply.word() {
                "started" | "active" => {
                    let session = SessionId::parse(reply.text(1))?;
                    let session = self.session(queue, &session).await?;
                    return Ok(SessionStart::Active {
                        session,
                        started: reply.word() == "started",
                    });
                }
                "moved" => offered = Some(SessionId::parse(reply.text(1))?),
                "waiting" => return Ok(SessionStart::Waiting),
                "ended" => {
                    let reason = EndReason::read(reply.text(2));
                    let state = PositionState::read(reply.text(1), reason)
                        .ok_or_else(|| reply.unexpected())?;
                    return Ok(SessionStart::Over(state, reason));
                }
                "address_full" => {
                    let error = Error::AddressFull { limit: reply.number(1)? };
                    count_refusal(queue, &error);
                    return Err(error);
                }
                "unknown" => return Err(Error::UnknownPosition),
                _ => return Err(reply.unexpected()),
            }
        }
        Err(Error::Busy)
    }
}

/// Hashes a secret the way it is stored.
fn sha256(secret: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, secret.as_bytes());
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}
