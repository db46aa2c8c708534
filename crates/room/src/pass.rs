//! The pass: the credential of an active session, a JWT anybody can verify with the published keys.
//!
//! A pass is valid as long as its session is active. [`Room::check_pass`] verifies the signature and the
//! session; a verifier that checks only the signature (an edge function) relies on `exp`.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Map, Value, json};
use store::{Millis, redis};

use crate::{
    Error, PositionId, QueueId, Room, SessionId, VisitorPriority, VisitorSession, token::TokenError,
};

/// The claims of a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// The queue the visitor came through (`aud`).
    pub queue: QueueId,
    /// The session (`jti`).
    pub session: SessionId,
    /// The position (`position_id`, also `sub`).
    pub position: PositionId,
    /// The visitor's priority (`pri`).
    pub priority: VisitorPriority,
    /// The queue's epoch when it was signed (`epo`).
    pub epoch: u32,
    /// Time of signing (`iat`), in whole seconds.
    pub issued: Millis,
    /// Expiry (`exp`), in whole seconds.
    pub expires: Millis,
}

/// Maximum length of a pass.
const MAX_PASS_BYTES: usize = 4_096;
/// Clock difference tolerated when `nbf` is checked.
const LEEWAY_SECONDS: i64 = 5;

impl Room {
    /// Signs a pass for a session, valid until the session's current deadline. A renewed session gets a
    /// new one.
    pub async fn issue_pass(&self, session: &VisitorSession) -> Result<String, Error> {
        let epoch = self.snapshot(&session.queue).await?.number("epoch");
        self.sign_pass(&Pass {
            queue: session.queue.clone(),
            session: session.id,
            position: session.position,
            priority: session.priority,
            epoch: u32::try_from(epoch).unwrap_or(0),
            issued: self.now(),
            expires: session.expires,
        })
        .await
    }

    pub(crate) async fn sign_pass(&self, pass: &Pass) -> Result<String, Error> {
        let set = self.key_set().await?;
        let key = set.for_passes()?;
        let algorithm = key.algorithm().ok_or(TokenError::NoKey)?;
        let header = json!({ "alg": algorithm.as_str(), "kid": key.id, "typ": "JWT" });
        let now = pass.issued.as_secs();
        let claims = json!({
            "iss": self.0.options.issuer,
            "aud": pass.queue.as_str(),
            "sub": pass.position.to_string(),
            "jti": pass.session.to_string(),
            "iat": now,
            "nbf": now,
            "exp": pass.expires.as_secs(),
            "typ": "session",
            "position_id": pass.position.to_string(),
            "pri": pass.priority.number(),
            "epo": pass.epoch,
        });
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&header), part(&claims));
        let signature = key.sign(signed.as_bytes()).ok_or(TokenError::NoKey)?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// Verifies a pass: signature, issuer, queue and times. Does not check the session; see
    /// [`Room::check_pass`].
    pub async fn read_pass(&self, queue: &QueueId, token: &str) -> Result<Pass, Error> {
        let pass = self.read_pass_of_any_age(queue, token).await?;
        if pass.expires.as_secs() <= self.now().as_secs() {
            return Err(TokenError::Expired.into());
        }
        Ok(pass)
    }

    /// Like [`Room::read_pass`], for a pass that may have expired.
    pub(crate) async fn read_pass_of_any_age(
        &self,
        queue: &QueueId,
        token: &str,
    ) -> Result<Pass, Error> {
        let parts = JwtParts::of(token)?;
        let key = self.key(&parts.key).await?;
        // The key determines the algorithm; the token's header may only agree.
        if key.algorithm().is_none_or(|algorithm| algorithm.as_str() != parts.algorithm) {
            return Err(TokenError::Algorithm.into());
        }
        if !key.verifies(parts.signed.as_bytes(), &parts.signature) {
            return Err(TokenError::Forged.into());
        }
        let now = self.now().as_secs();
        Ok(read_claims(&parts.claims, &self.0.options.issuer, queue, now)?)
    }

    /// Tells whether a token is the session's: its pass, of any age but not revoked, or the token of its
    /// position.
    ///
    /// # Errors
    /// [`TokenError`]s of a token that is neither.
    pub async fn proves_session(
        &self,
        session: &VisitorSession,
        token: &str,
    ) -> Result<bool, Error> {
        if !token.starts_with("eyJ") {
            let held = self.check_position_token(&session.queue, token).await?;
            return Ok(held.position == session.position);
        }
        let pass = self.read_pass_of_any_age(&session.queue, token).await?;
        let epoch = self.snapshot(&session.queue).await?.number("epoch");
        let revoked: bool = redis::cmd("EXISTS")
            .arg(self.queue_cache(&session.queue).revocation(&session.id.to_string()))
            .query_async(&mut self.0.store.clone())
            .await?;
        Ok(pass.session == session.id && !revoked && i64::from(pass.epoch) >= epoch)
    }

    /// Verifies a pass and checks that its session is active and nothing was revoked.
    pub async fn check_pass(&self, queue: &QueueId, token: &str) -> Result<Pass, Error> {
        let pass = self.read_pass(queue, token).await?;
        let keys = self.queue_cache(queue);
        let (revoked, runs, epoch): (bool, bool, Option<u32>) = redis::pipe()
            .exists(keys.revocation(&pass.session.to_string()))
            .sismember(&keys.active, pass.session.to_string())
            .hget(&keys.state, "epoch")
            .query_async(&mut self.0.store.clone())
            .await?;
        if revoked || epoch.is_some_and(|epoch| pass.epoch < epoch) {
            Err(TokenError::Revoked.into())
        } else if !runs {
            Err(TokenError::Over.into())
        } else {
            Ok(pass)
        }
    }

    /// Revokes a token by its id for a while.
    pub async fn revoke_token(
        &self,
        queue: &QueueId,
        token: &SessionId,
        reason: &str,
        lasts: std::time::Duration,
    ) -> Result<(), Error> {
        let good = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if reason.is_empty() || reason.len() > 64 || !reason.chars().all(good) {
            return Err(Error::invalid("reason", "1 to 64 letters, digits and _"));
        }
        self.snapshot(queue).await?;
        self.0.passes.session_ended(token);
        redis::cmd("SET")
            .arg(self.queue_cache(queue).revocation(&token.to_string()))
            .arg(reason)
            .arg("EX")
            .arg(lasts.as_secs().clamp(1, 30 * 86_400))
            .query_async::<()>(&mut self.0.store.clone())
            .await?;
        Ok(())
    }
}

/// A parsed token, not yet verified.
struct JwtParts {
    signed: String,
    signature: Vec<u8>,
    key: String,
    algorithm: String,
    claims: Map<String, Value>,
}

impl JwtParts {
    fn of(token: &str) -> Result<Self, TokenError> {
        if token.len() > MAX_PASS_BYTES {
            return Err(TokenError::Malformed);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(TokenError::Malformed)?;
        let object = |part: &str| -> Result<Map<String, Value>, TokenError> {
            let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenError::Malformed)?;
            serde_json::from_slice(&bytes).map_err(|_| TokenError::Malformed)
        };
        let header = object(header)?;
        // An unknown critical extension must not be ignored (RFC 7515 §4.1.11).
        if header.contains_key("crit") || header.get("typ").is_some_and(|typ| typ != "JWT") {
            return Err(TokenError::Malformed);
        }
        let text = |name: &str| header.get(name).and_then(Value::as_str).map(str::to_owned);
        Ok(Self {
            signed: signed.to_owned(),
            signature: URL_SAFE_NO_PAD.decode(signature).map_err(|_| TokenError::Malformed)?,
            key: text("kid").ok_or(TokenError::Malformed)?,
            algorithm: text("alg").ok_or(TokenError::Algorithm)?,
            claims: object(claims)?,
        })
    }
}

fn read_claims(
    claims: &Map<String, Value>,
    issuer: &str,
    queue: &QueueId,
    now: i64,
) -> Result<Pass, TokenError> {
    let text = |name: &str| claims.get(name).and_then(Value::as_str).ok_or(TokenError::Malformed);
    // A time that is not a whole number is rejected, never ignored.
    let number = |name: &str| claims.get(name).and_then(Value::as_i64).ok_or(TokenError::Malformed);
    if text("typ")? != "session" {
        return Err(TokenError::Malformed);
    }
    if text("iss")? != issuer || text("aud")? != queue.as_str() {
        return Err(TokenError::OtherQueue);
    }
    let (issued, early, expires) = (number("iat")?, number("nbf")?, number("exp")?);
    if early > now + LEEWAY_SECONDS {
        return Err(TokenError::Early);
    }
    let moment = |seconds: i64| Millis(seconds.saturating_mul(1000));
    let priority = u8::try_from(number("pri")?).ok().and_then(|n| VisitorPriority::parse(n).ok());
    Ok(Pass {
        queue: queue.clone(),
        session: SessionId::parse(text("jti")?).map_err(|_| TokenError::Malformed)?,
        position: PositionId::parse(text("position_id")?).map_err(|_| TokenError::Malformed)?,
        priority: priority.ok_or(TokenError::Malformed)?,
        epoch: u32::try_from(number("epo")?).map_err(|_| TokenError::Malformed)?,
        issued: moment(issued),
        expires: moment(expires),
    })
}
