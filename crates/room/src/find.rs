//! Look-up of one visitor for operators: by the id of a position or a session, or by the user id that the
//! site or an invite gave; and the reason a position still waits.
//!
//! Sites that keep no e-mail addresses here use the SHA-256 of the address as user id, so an e-mail address
//! is looked up by that hash as well ([`email_hash`]).

use ring::digest;
use store::redis;

use crate::{
    Error, Position, PositionId, PositionState, QueueId, QueueStatus, Room, SessionId,
    VisitorSession, snapshot::QueueSnapshot,
};

/// A visitor that was looked up.
#[derive(Clone, Debug, PartialEq)]
pub struct VisitorMatch {
    /// The position.
    pub position: Position,
    /// Its session, if one was started and is still known.
    pub session: Option<VisitorSession>,
    /// The reason it still waits; `None` if it does not wait.
    pub wait_reason: Option<WaitReason>,
}

/// Reason for which a position still waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// The queue is paused.
    Paused,
    /// The queue is closed.
    Closed,
    /// The rate is 0, which admits nobody.
    NoRate,
    /// As many visitors as allowed are admitted or active.
    NoFreeSlot,
    /// As many visitors as allowed from the same network address are admitted or active; others are admitted
    /// before this one.
    AddressLimit,
    /// Others are ahead, and the rate admits only so many per time.
    Rate,
}

impl WaitReason {
    /// Returns the name used in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            WaitReason::Paused => "paused",
            WaitReason::Closed => "closed",
            WaitReason::NoRate => "no_rate",
            WaitReason::NoFreeSlot => "no_free_slot",
            WaitReason::AddressLimit => "address_limit",
            WaitReason::Rate => "rate",
        }
    }
}

/// The longest text that can be looked up, in bytes.
pub const FIND_MAX_BYTES: usize = 320;

impl Room {
    /// Finds a visitor of a queue by a position id, a session id, a user id, or an e-mail address whose
    /// SHA-256 is the user id. A user who enqueued more than once is found by the latest position.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPosition`] if nothing matches, [`Error::Invalid`] if the text is empty or too long.
    pub async fn find_visitor(&self, queue: &QueueId, text: &str) -> Result<VisitorMatch, Error> {
        let text = text.trim();
        if text.is_empty() || text.len() > FIND_MAX_BYTES {
            return Err(Error::invalid("text", "an id or an e-mail address"));
        }
        let position = match PositionId::parse(text) {
            Ok(id) => match self.status(queue, &id).await {
                Err(Error::UnknownPosition) => self.position_of_session(queue, text).await?,
                found => found?,
            },
            Err(_) => self.position_of_user(queue, text).await?,
        };
        let session = match &position.session {
            Some(id) => match self.session(queue, id).await {
                Ok(session) => Some(session),
                Err(Error::UnknownSession) => None,
                Err(error) => return Err(error),
            },
            None => None,
        };
        let wait_reason = self.wait_reason(&position).await?;
        Ok(VisitorMatch { position, session, wait_reason })
    }

    /// Returns the reason a position still waits; `None` if it does not wait.
    pub async fn wait_reason(&self, position: &Position) -> Result<Option<WaitReason>, Error> {
        if position.state != PositionState::Waiting {
            return Ok(None);
        }
        let snapshot = self.read_snapshot(&position.queue).await?;
        let reason = match snapshot.status {
            QueueStatus::Paused => WaitReason::Paused,
            QueueStatus::Maintenance => WaitReason::Closed,
            QueueStatus::Active if snapshot.config.admission.count == 0 => WaitReason::NoRate,
            QueueStatus::Active if snapshot.free() == Some(0) => WaitReason::NoFreeSlot,
            QueueStatus::Active if self.is_address_full(position, &snapshot).await? => {
                WaitReason::AddressLimit
            }
            QueueStatus::Active => WaitReason::Rate,
        };
        Ok(Some(reason))
    }

    /// Tells whether the address of a position has as many admitted and active visitors as it may have. An
    /// estimate: members that ended since are dropped only by the next admission.
    async fn is_address_full(
        &self,
        position: &Position,
        snapshot: &QueueSnapshot,
    ) -> Result<bool, Error> {
        let limit = snapshot.config.address_limit();
        if limit == 0 {
            return Ok(false);
        }
        let keys = self.queue_cache(&position.queue);
        let mut store = self.0.store.clone();
        let hash: Option<String> = redis::cmd("HGET")
            .arg(keys.position(&position.id))
            .arg("ip_hash")
            .query_async(&mut store)
            .await?;
        let Some(hash) = hash.filter(|hash| !hash.is_empty()) else { return Ok(false) };
        let members: u64 =
            redis::cmd("ZCARD").arg(keys.address_sessions(&hash)).query_async(&mut store).await?;
        Ok(members >= u64::from(limit))
    }

    async fn position_of_session(&self, queue: &QueueId, text: &str) -> Result<Position, Error> {
        let id = SessionId::parse(text).map_err(|_| Error::UnknownPosition)?;
        match self.session(queue, &id).await {
            Ok(session) => self.status(queue, &session.position).await,
            Err(Error::UnknownSession) => Err(Error::UnknownPosition),
            Err(error) => Err(error),
        }
    }

    async fn position_of_user(&self, queue: &QueueId, text: &str) -> Result<Position, Error> {
        self.snapshot(queue).await?;
        let keys = self.queue_cache(queue);
        let mut names = vec![text.to_owned()];
        if text.contains('@') {
            names.push(email_hash(text));
        }
        let mut pipe = redis::pipe();
        for name in &names {
            pipe.get(keys.usermap(&hex_digest(name)));
        }
        let found: Vec<Option<String>> = pipe.query_async(&mut self.0.store.clone()).await?;
        let id = found.into_iter().flatten().find_map(|id| PositionId::parse(&id).ok());
        self.status(queue, &id.ok_or(Error::UnknownPosition)?).await
    }

    /// Remembers the position of a named visitor, so that operators find it. An empty user id is nobody.
    pub(crate) async fn remember_user(
        &self,
        queue: &QueueId,
        user_id: &str,
        position: &PositionId,
    ) -> Result<(), Error> {
        if user_id.is_empty() {
            return Ok(());
        }
        let config = &self.snapshot(queue).await?.config;
        let seconds = config.session_max.as_secs() + config.position_ttl();
        redis::cmd("SET")
            .arg(self.queue_cache(queue).usermap(&hex_digest(user_id)))
            .arg(position.to_string())
            .arg("EX")
            .arg(seconds)
            .query_async::<()>(&mut self.0.store.clone())
            .await?;
        Ok(())
    }
}

/// Returns the SHA-256 of an e-mail address in lower case, without spaces around it, as hexadecimal digits.
///
/// ```
/// let hash = tidegate_room::email_hash(" Ann@Example.com ");
/// assert_eq!(hash, tidegate_room::email_hash("ann@example.com"));
/// assert_eq!(hash.len(), 64);
/// ```
pub fn email_hash(address: &str) -> String {
    hex_digest(&address.trim().to_lowercase())
}

fn hex_digest(text: &str) -> String {
    let digest = digest::digest(&digest::SHA256, text.as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
