//! Signed invites, which prove a priority above 0.

use store::Millis;

use crate::{Error, QueueId, Room, VisitorPriority, address::random, token::TokenError};

/// An invite to be signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewInvite {
    /// Its id, by which uses are counted: 1 to 64 letters, digits, `-` and `_`; generated if `None`.
    pub id: Option<String>,
    /// The priority it gives.
    pub priority: VisitorPriority,
    /// Number of positions it is good for, 1 to 1,000,000.
    pub uses: u32,
    /// Time at which it expires.
    pub expires: Millis,
    /// The id the invited person has on the protected site: kept with the position and the session.
    /// Up to 200 characters; may be empty.
    pub user_id: String,
}

/// An invite whose signature was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invite {
    /// Its id.
    pub(crate) id: String,
    /// The queue it is for.
    pub(crate) queue: QueueId,
    /// The priority it gives.
    pub(crate) priority: VisitorPriority,
    /// Number of positions it is good for.
    pub(crate) uses: u32,
    /// Time at which it expires.
    pub(crate) expires: Millis,
    /// The id of the invited person on the protected site; may be empty.
    pub(crate) user_id: String,
}

impl Invite {
    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The queue it is for.
    pub fn queue(&self) -> &QueueId {
        &self.queue
    }

    /// The priority it gives.
    pub fn priority(&self) -> VisitorPriority {
        self.priority
    }

    /// Number of positions it is good for.
    pub fn uses(&self) -> u32 {
        self.uses
    }

    /// The id of the invited person on the protected site; may be empty.
    pub fn user_id(&self) -> &str {
        &self.user_id
    }

    /// Time at which it expires.
    pub fn expires(&self) -> Millis {
        self.expires
    }

    fn write(&self) -> Vec<u8> {
        let mut out = vec![self.priority.number()];
        out.extend_from_slice(&self.uses.to_be_bytes());
        out.extend_from_slice(&self.expires.0.to_be_bytes());
        out.push(self.id.len() as u8); // checked: 64 at most
        out.extend_from_slice(self.id.as_bytes());
        out.extend_from_slice(self.queue.as_str().as_bytes());
        if !self.user_id.is_empty() {
            out.push(0); // never part of a queue's id
            out.extend_from_slice(self.user_id.as_bytes());
        }
        out
    }

    fn read(body: &[u8]) -> Result<Self, TokenError> {
        let (priority, rest) = body.split_first().ok_or(TokenError::Malformed)?;
        let (uses, rest) = rest.split_first_chunk::<4>().ok_or(TokenError::Malformed)?;
        let (expires, rest) = rest.split_first_chunk::<8>().ok_or(TokenError::Malformed)?;
        let (length, rest) = rest.split_first().ok_or(TokenError::Malformed)?;
        let (id, queue) =
            rest.split_at_checked(usize::from(*length)).ok_or(TokenError::Malformed)?;
        let end = queue.iter().position(|byte| *byte == 0).unwrap_or(queue.len());
        let (queue, user_id) = queue.split_at(end);
        let text =
            |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| TokenError::Malformed);
        Ok(Self {
            id: Some(text(id)?).filter(|id| is_id(id)).ok_or(TokenError::Malformed)?,
            queue: QueueId::parse(&text(queue)?).map_err(|_| TokenError::Malformed)?,
            priority: VisitorPriority::parse(*priority).map_err(|_| TokenError::Malformed)?,
            uses: u32::from_be_bytes(*uses),
            expires: Millis(i64::from_be_bytes(*expires)),
            user_id: text(user_id.get(1..).unwrap_or_default())?,
        })
    }
}

fn is_id(id: &str) -> bool {
    let good = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    (1..=64).contains(&id.len()) && id.bytes().all(good)
}

/// Rejects a user id that is too long or has control characters.
pub(crate) fn check_user_id(user_id: &str) -> Result<(), Error> {
    if user_id.len() > 200 || user_id.chars().any(char::is_control) {
        return Err(Error::invalid("user_id", "up to 200 characters, none of them control"));
    }
    Ok(())
}

impl Room {
    /// Signs an invite. Only for operators: its bearer may enqueue with its priority.
    pub async fn issue_invite(
        &self,
        queue: &QueueId,
        new: NewInvite,
    ) -> Result<(String, Invite), Error> {
        self.read_snapshot(queue).await?;
        if !(1..=1_000_000).contains(&new.uses) {
            return Err(Error::invalid("uses", "from 1 to 1,000,000"));
        }
        if new.expires <= self.now() {
            return Err(Error::invalid("expires", "a time in the future"));
        }
        check_user_id(&new.user_id)?;
        let id = match new.id {
            Some(id) if is_id(&id) => id,
            Some(_) => return Err(Error::invalid("id", "1 to 64 letters, digits, - and _")),
            None => random::<12>()?.iter().map(|byte| format!("{byte:02x}")).collect(),
        };
        let invite = Invite {
            id,
            queue: queue.clone(),
            priority: new.priority,
            uses: new.uses,
            expires: new.expires,
            user_id: new.user_id,
        };
        Ok((self.sign_token("wri1", &invite.write()).await?, invite))
    }

    /// Verifies an invite for this queue. Its uses are counted when enqueueing.
    pub async fn check_invite(&self, queue: &QueueId, token: &str) -> Result<Invite, Error> {
        let invite = Invite::read(&self.open_token("wri1", token).await?)?;
        if invite.queue != *queue {
            return Err(TokenError::OtherQueue.into());
        }
        if invite.expires <= self.now() {
            return Err(TokenError::Expired.into());
        }
        Ok(invite)
    }
}
