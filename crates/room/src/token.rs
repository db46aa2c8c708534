//! Short HMAC tokens: the token that proves a position, and the token of a redirect.
//!
//! `wrp1.<payload>.<tag>`: the payload names key, queue and position; the tag is the first half of an
//! HMAC-SHA256 over kind and payload, so that a token of one kind is not valid as another. A position's
//! token has no expiry of its own: the state of the position decides.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use store::Millis;
use subtle::ConstantTimeEq;

use crate::{Error, Position, PositionId, QueueId, Room, VisitorPriority, signing::SigningKey};

/// Reason for which a token is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is not a token of this kind.
    #[error("not readable")]
    Malformed,
    /// It names an unknown key.
    #[error("signed by an unknown key")]
    UnknownKey,
    /// The signature is not the key's.
    #[error("the signature is wrong")]
    Forged,
    /// It names another algorithm than its key's.
    #[error("the algorithm is not the key's")]
    Algorithm,
    /// It is for another queue, or by another issuer.
    #[error("for another queue")]
    OtherQueue,
    /// It has expired.
    #[error("expired")]
    Expired,
    /// It is not valid yet.
    #[error("not valid yet")]
    Early,
    /// It was revoked.
    #[error("revoked")]
    Revoked,
    /// Its session has ended.
    #[error("the session has ended")]
    Over,
    /// No key to sign with.
    #[error("no signing key")]
    NoKey,
}

/// Content of a position's token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PositionToken {
    /// The queue.
    pub queue: QueueId,
    /// The position.
    pub position: PositionId,
    /// The position's priority.
    pub priority: VisitorPriority,
    /// The queue's epoch when the token was made.
    pub epoch: u32,
    /// Time of signing, in whole seconds.
    pub issued: Millis,
    /// The ticket of the position; tokens of older versions have none.
    pub ticket: Option<u64>,
}

/// Maximum length of a token.
const MAX_TOKEN_BYTES: usize = 512;
/// Lifetime of a redirect token.
const REDIRECT_MS: i64 = 120_000;

impl Room {
    /// Signs a token that proves that its bearer holds a position.
    pub async fn position_token(&self, position: &Position) -> Result<String, Error> {
        self.token_of("wrp1", position).await
    }

    /// Verifies a position's token for this queue.
    pub async fn check_position_token(
        &self,
        queue: &QueueId,
        token: &str,
    ) -> Result<PositionToken, Error> {
        let body = self.open_token("wrp1", token).await?;
        let read = PositionToken::read(&body)?;
        if read.queue == *queue { Ok(read) } else { Err(TokenError::OtherQueue.into()) }
    }

    /// Signs a token for the URL of the protected site, valid for one arrival within two minutes: the
    /// caller redeems it with [`Room::start_session`] and accepts only a session started by that call.
    pub async fn redirect_token(&self, position: &Position) -> Result<String, Error> {
        self.token_of("wrr1", position).await
    }

    /// Verifies a redirect token for this queue.
    pub async fn check_redirect_token(
        &self,
        queue: &QueueId,
        token: &str,
    ) -> Result<PositionToken, Error> {
        let body = self.open_token("wrr1", token).await?;
        let read = PositionToken::read(&body)?;
        if read.queue != *queue {
            return Err(TokenError::OtherQueue.into());
        }
        let age = self.now().0 - read.issued.0;
        if (-1_000..=REDIRECT_MS).contains(&age) {
            Ok(read)
        } else {
            Err(TokenError::Expired.into())
        }
    }

    async fn token_of(&self, kind: &str, position: &Position) -> Result<String, Error> {
        let token = PositionToken {
            queue: position.queue.clone(),
            position: position.id,
            priority: position.priority,
            epoch: position.epoch,
            issued: self.now(),
            ticket: position.ticket,
        };
        self.sign_token(kind, &token.write()).await
    }

    /// Signs a payload as a token of a kind.
    pub(crate) async fn sign_token(&self, kind: &str, body: &[u8]) -> Result<String, Error> {
        let set = self.key_set().await?;
        let key = set.for_tokens()?;
        let mut payload = u32::from_str_radix(&key.id, 16).unwrap_or(0).to_be_bytes().to_vec();
        payload.extend_from_slice(body);
        let signed = format!("{kind}.{}", URL_SAFE_NO_PAD.encode(payload));
        let tag = key.tag(signed.as_bytes()).ok_or(TokenError::NoKey)?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag)))
    }

    /// Verifies a token of a kind and returns its payload.
    pub(crate) async fn open_token(&self, kind: &str, token: &str) -> Result<Vec<u8>, Error> {
        let (id, payload) = peek(kind, token)?;
        let key = self.key(&id).await?;
        check_tag(&key, token)?;
        Ok(payload)
    }
}

/// Returns the key id and the payload of a token, not yet verified.
fn peek(kind: &str, token: &str) -> Result<(String, Vec<u8>), TokenError> {
    let rest = token.strip_prefix(kind).and_then(|rest| rest.strip_prefix('.'));
    let rest = rest.filter(|_| token.len() <= MAX_TOKEN_BYTES).ok_or(TokenError::Malformed)?;
    let (payload, _) = rest.split_once('.').ok_or(TokenError::Malformed)?;
    let bytes = URL_SAFE_NO_PAD.decode(payload).map_err(|_| TokenError::Malformed)?;
    let (id, body) = bytes.split_first_chunk::<4>().ok_or(TokenError::Malformed)?;
    Ok((format!("{:08x}", u32::from_be_bytes(*id)), body.to_vec()))
}

fn check_tag(key: &SigningKey, token: &str) -> Result<(), TokenError> {
    let (signed, tag) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
    let tag = URL_SAFE_NO_PAD.decode(tag).map_err(|_| TokenError::Malformed)?;
    // A key that signs passes signs no tokens.
    let right = key.tag(signed.as_bytes()).ok_or(TokenError::Algorithm)?;
    if bool::from(right.as_slice().ct_eq(&tag)) { Ok(()) } else { Err(TokenError::Forged) }
}

impl PositionToken {
    fn write(&self) -> Vec<u8> {
        let mut out = self.position.to_bytes().to_vec();
        out.push(self.priority.number());
        out.extend_from_slice(&self.epoch.to_be_bytes());
        out.extend_from_slice(&u32::try_from(self.issued.as_secs()).unwrap_or(0).to_be_bytes());
        out.extend_from_slice(self.queue.as_str().as_bytes());
        if let Some(ticket) = self.ticket {
            out.push(0); // never part of a queue's id
            out.extend_from_slice(&ticket.to_be_bytes());
        }
        out
    }

    fn read(body: &[u8]) -> Result<Self, TokenError> {
        let (position, rest) = body.split_first_chunk::<16>().ok_or(TokenError::Malformed)?;
        let (priority, rest) = rest.split_first().ok_or(TokenError::Malformed)?;
        let (epoch, rest) = rest.split_first_chunk::<4>().ok_or(TokenError::Malformed)?;
        let (issued, rest) = rest.split_first_chunk::<4>().ok_or(TokenError::Malformed)?;
        let (name, ticket) = match rest.iter().position(|byte| *byte == 0) {
            Some(end) => {
                let (name, ticket) = rest.split_at(end);
                let ticket = ticket.get(1..).and_then(|bytes| bytes.try_into().ok());
                (name, Some(u64::from_be_bytes(ticket.ok_or(TokenError::Malformed)?)))
            }
            None => (rest, None),
        };
        let queue = std::str::from_utf8(name).ok().and_then(|text| QueueId::parse(text).ok());
        Ok(Self {
            queue: queue.ok_or(TokenError::Malformed)?,
            position: PositionId::from_bytes(*position),
            priority: VisitorPriority::parse(*priority).map_err(|_| TokenError::Malformed)?,
            epoch: u32::from_be_bytes(*epoch),
            issued: Millis(i64::from(u32::from_be_bytes(*issued)) * 1000),
            ticket,
        })
    }
}
