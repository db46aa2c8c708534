//! Short tokens under our own keys: the visitor's hold on a place, and the ticket of a redirect.
//!
//! `wrp1.<payload>.<tag>`: the payload names key, queue and place; the tag is the first half of an
//! HMAC-SHA256 over kind and payload, so that a token of one kind is not one of another. A place's
//! token has no time of its own to run out: the room's state decides.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use store::Millis;
use subtle::ConstantTimeEq;

use crate::{Error, Level, Place, PositionId, QueueId, Room, signing::SigningKey};

/// Why a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It is not a token of this kind.
    #[error("not readable")]
    Malformed,
    /// It names a key nobody knows.
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
    /// Its time is over.
    #[error("expired")]
    Expired,
    /// Its time has not come.
    #[error("not valid yet")]
    Early,
    /// It was revoked.
    #[error("revoked")]
    Revoked,
    /// The session it stands for is over.
    #[error("the session is over")]
    Over,
    /// There is no key to sign with.
    #[error("no signing key")]
    NoKey,
}

/// What a place's token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceToken {
    /// The queue.
    pub queue: QueueId,
    /// The place.
    pub position: PositionId,
    /// The level the place was given.
    pub level: Level,
    /// The queue's epoch when the token was made.
    pub epoch: u32,
    /// When the token was made, in whole seconds.
    pub issued: Millis,
    /// The ticket of the position; tokens of older versions have none.
    pub ticket: Option<u64>,
}

/// The longest token that is looked at.
const LONGEST: usize = 512;
/// How long a redirect may take.
const REDIRECT_MS: i64 = 120_000;

impl Room {
    /// A token that proves that its bearer holds a place.
    pub async fn place_token(&self, place: &Place) -> Result<String, Error> {
        self.token_of("wrp1", place).await
    }

    /// Reads a place's token, for this queue.
    pub async fn check_place_token(
        &self,
        queue: &QueueId,
        token: &str,
    ) -> Result<PlaceToken, Error> {
        let body = self.opened("wrp1", token).await?;
        let read = PlaceToken::read(&body)?;
        if read.queue == *queue { Ok(read) } else { Err(Fault::OtherQueue.into()) }
    }

    /// A token for the address of the protected site, good for one arrival within two minutes: the
    /// caller redeems it with [`Room::claim`] and accepts only a session that was started then.
    pub async fn redirect_token(&self, place: &Place) -> Result<String, Error> {
        self.token_of("wrr1", place).await
    }

    /// Reads a redirect token, for this queue.
    pub async fn check_redirect_token(
        &self,
        queue: &QueueId,
        token: &str,
    ) -> Result<PlaceToken, Error> {
        let body = self.opened("wrr1", token).await?;
        let read = PlaceToken::read(&body)?;
        if read.queue != *queue {
            return Err(Fault::OtherQueue.into());
        }
        let age = self.now().0 - read.issued.0;
        if (-1_000..=REDIRECT_MS).contains(&age) { Ok(read) } else { Err(Fault::Expired.into()) }
    }

    async fn token_of(&self, kind: &str, place: &Place) -> Result<String, Error> {
        let token = PlaceToken {
            queue: place.queue.clone(),
            position: place.id,
            level: place.level,
            epoch: place.epoch,
            issued: self.now(),
            ticket: place.ticket,
        };
        self.closed(kind, &token.write()).await
    }

    /// Signs a payload as a token of a kind.
    pub(crate) async fn closed(&self, kind: &str, body: &[u8]) -> Result<String, Error> {
        let set = self.key_set().await?;
        let key = set.for_tokens()?;
        let mut payload = u32::from_str_radix(&key.id, 16).unwrap_or(0).to_be_bytes().to_vec();
        payload.extend_from_slice(body);
        let signed = format!("{kind}.{}", URL_SAFE_NO_PAD.encode(payload));
        let tag = key.tag(signed.as_bytes()).ok_or(Fault::NoKey)?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag)))
    }

    /// The payload of a token of a kind, if it was signed by one of our keys.
    pub(crate) async fn opened(&self, kind: &str, token: &str) -> Result<Vec<u8>, Error> {
        let (id, payload) = peek(kind, token)?;
        let key = self.key(&id).await?;
        check_tag(&key, token)?;
        Ok(payload)
    }
}

/// The key id and the payload of a token, not yet checked.
fn peek(kind: &str, token: &str) -> Result<(String, Vec<u8>), Fault> {
    let rest = token.strip_prefix(kind).and_then(|rest| rest.strip_prefix('.'));
    let rest = rest.filter(|_| token.len() <= LONGEST).ok_or(Fault::Malformed)?;
    let (payload, _) = rest.split_once('.').ok_or(Fault::Malformed)?;
    let bytes = URL_SAFE_NO_PAD.decode(payload).map_err(|_| Fault::Malformed)?;
    let (id, body) = bytes.split_first_chunk::<4>().ok_or(Fault::Malformed)?;
    Ok((format!("{:08x}", u32::from_be_bytes(*id)), body.to_vec()))
}

fn check_tag(key: &SigningKey, token: &str) -> Result<(), Fault> {
    let (signed, tag) = token.rsplit_once('.').ok_or(Fault::Malformed)?;
    let tag = URL_SAFE_NO_PAD.decode(tag).map_err(|_| Fault::Malformed)?;
    // A key that signs passes signs no tokens.
    let right = key.tag(signed.as_bytes()).ok_or(Fault::Algorithm)?;
    if bool::from(right.as_slice().ct_eq(&tag)) { Ok(()) } else { Err(Fault::Forged) }
}

impl PlaceToken {
    fn write(&self) -> Vec<u8> {
        let mut out = self.position.to_bytes().to_vec();
        out.push(self.level.number());
        out.extend_from_slice(&self.epoch.to_be_bytes());
        out.extend_from_slice(&u32::try_from(self.issued.as_secs()).unwrap_or(0).to_be_bytes());
        out.extend_from_slice(self.queue.as_str().as_bytes());
        if let Some(ticket) = self.ticket {
            out.push(0); // never part of a queue's id
            out.extend_from_slice(&ticket.to_be_bytes());
        }
        out
    }

    fn read(body: &[u8]) -> Result<Self, Fault> {
        let (position, rest) = body.split_first_chunk::<16>().ok_or(Fault::Malformed)?;
        let (level, rest) = rest.split_first().ok_or(Fault::Malformed)?;
        let (epoch, rest) = rest.split_first_chunk::<4>().ok_or(Fault::Malformed)?;
        let (issued, rest) = rest.split_first_chunk::<4>().ok_or(Fault::Malformed)?;
        let (name, ticket) = match rest.iter().position(|byte| *byte == 0) {
            Some(end) => {
                let (name, ticket) = rest.split_at(end);
                let ticket = ticket.get(1..).and_then(|bytes| bytes.try_into().ok());
                (name, Some(u64::from_be_bytes(ticket.ok_or(Fault::Malformed)?)))
            }
            None => (rest, None),
        };
        let queue = std::str::from_utf8(name).ok().and_then(|text| QueueId::parse(text).ok());
        Ok(Self {
            queue: queue.ok_or(Fault::Malformed)?,
            position: PositionId::from_bytes(*position),
            level: Level::parse(*level).map_err(|_| Fault::Malformed)?,
            epoch: u32::from_be_bytes(*epoch),
            issued: Millis(i64::from(u32::from_be_bytes(*issued)) * 1000),
            ticket,
        })
    }
}
