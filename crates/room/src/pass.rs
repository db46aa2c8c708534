//! The pass: what an admitted visitor shows the protected site, a JWT anybody can check with the
//! published keys.
//!
//! A pass is good as long as its session is. [`Room::check_pass`] looks at the signature and at the
//! session; who checks only the signature (an edge function) trusts `exp`.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Map, Value, json};
use store::{Millis, redis};

use crate::{Error, Level, PositionId, QueueId, Room, Session, SessionId, token::Fault};

/// What a pass says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// The queue the visitor came through (`aud`).
    pub queue: QueueId,
    /// The session (`jti`).
    pub session: SessionId,
    /// The place (`position_id`, also `sub`).
    pub position: PositionId,
    /// The visitor's level (`pri`).
    pub level: Level,
    /// The queue's epoch when it was signed (`epo`).
    pub epoch: u32,
    /// When it was signed (`iat`), in whole seconds.
    pub issued: Millis,
    /// Until when it is good (`exp`), in whole seconds.
    pub expires: Millis,
}

/// The longest pass that is looked at.
const LONGEST: usize = 4_096;
/// How far clocks may differ when `nbf` is looked at.
const LEEWAY_S: i64 = 5;

impl Room {
    /// Signs a pass for a session, good until the session's end as it is now. A session that was
    /// renewed gets a new one.
    pub async fn issue_pass(&self, session: &Session) -> Result<String, Error> {
        let epoch = self.pulse(&session.queue).await?.number("epoch");
        self.sign_pass(&Pass {
            queue: session.queue.clone(),
            session: session.id,
            position: session.position,
            level: session.level,
            epoch: u32::try_from(epoch).unwrap_or(0),
            issued: self.now(),
            expires: session.expires,
        })
        .await
    }

    pub(crate) async fn sign_pass(&self, pass: &Pass) -> Result<String, Error> {
        let set = self.key_set().await?;
        let key = set.for_passes()?;
        let algorithm = key.algorithm().ok_or(Fault::NoKey)?;
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
            "pri": pass.level.number(),
            "epo": pass.epoch,
        });
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&header), part(&claims));
        let signature = key.sign(signed.as_bytes()).ok_or(Fault::NoKey)?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// Reads a pass: signature, issuer, queue and times. Says nothing about the session; for that
    /// there is [`Room::check_pass`].
    pub async fn read_pass(&self, queue: &QueueId, token: &str) -> Result<Pass, Error> {
        let pass = self.read_pass_of_any_age(queue, token).await?;
        if pass.expires.as_secs() <= self.now().as_secs() {
            return Err(Fault::Expired.into());
        }
        Ok(pass)
    }

    /// The same for a pass whose time may be over.
    pub(crate) async fn read_pass_of_any_age(
        &self,
        queue: &QueueId,
        token: &str,
    ) -> Result<Pass, Error> {
        let parts = Parts::of(token)?;
        let key = self.key(&parts.key).await?;
        // The key says which algorithm it is for; the token may only agree.
        if key.algorithm().is_none_or(|algorithm| algorithm.as_str() != parts.algorithm) {
            return Err(Fault::Algorithm.into());
        }
        if !key.verifies(parts.signed.as_bytes(), &parts.signature) {
            return Err(Fault::Forged.into());
        }
        let now = self.now().as_secs();
        Ok(read_claims(&parts.claims, &self.0.options.issuer, queue, now)?)
    }

    /// Tells whether a token is the session's: its pass, of any age but not revoked, or the token of its
    /// position.
    ///
    /// # Errors
    /// [`Fault`]s of a token that is neither.
    pub async fn proves_session(&self, session: &Session, token: &str) -> Result<bool, Error> {
        if !token.starts_with("eyJ") {
            let held = self.check_place_token(&session.queue, token).await?;
            return Ok(held.position == session.position);
        }
        let pass = self.read_pass_of_any_age(&session.queue, token).await?;
        let epoch = self.pulse(&session.queue).await?.number("epoch");
        let revoked: bool = redis::cmd("EXISTS")
            .arg(self.known(&session.queue).revocation(&session.id.to_string()))
            .query_async(&mut self.0.store.clone())
            .await?;
        Ok(pass.session == session.id && !revoked && i64::from(pass.epoch) >= epoch)
    }

    /// Reads a pass and looks whether its session still runs and nothing was revoked.
    pub async fn check_pass(&self, queue: &QueueId, token: &str) -> Result<Pass, Error> {
        let pass = self.read_pass(queue, token).await?;
        let keys = self.known(queue);
        let (revoked, runs, epoch): (bool, bool, Option<u32>) = redis::pipe()
            .exists(keys.revocation(&pass.session.to_string()))
            .sismember(&keys.active, pass.session.to_string())
            .hget(&keys.state, "epoch")
            .query_async(&mut self.0.store.clone())
            .await?;
        if revoked || epoch.is_some_and(|epoch| pass.epoch < epoch) {
            Err(Fault::Revoked.into())
        } else if !runs {
            Err(Fault::Over.into())
        } else {
            Ok(pass)
        }
    }

    /// Voids a token by its id for a while, whatever else is known of it.
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
        self.pulse(queue).await?;
        self.0.gate.session_ended(token);
        redis::cmd("SET")
            .arg(self.known(queue).revocation(&token.to_string()))
            .arg(reason)
            .arg("EX")
            .arg(lasts.as_secs().clamp(1, 30 * 86_400))
            .query_async::<()>(&mut self.0.store.clone())
            .await?;
        Ok(())
    }
}

/// A token taken apart, not yet checked.
struct Parts {
    signed: String,
    signature: Vec<u8>,
    key: String,
    algorithm: String,
    claims: Map<String, Value>,
}

impl Parts {
    fn of(token: &str) -> Result<Self, Fault> {
        if token.len() > LONGEST {
            return Err(Fault::Malformed);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(Fault::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(Fault::Malformed)?;
        let object = |part: &str| -> Result<Map<String, Value>, Fault> {
            let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| Fault::Malformed)?;
            serde_json::from_slice(&bytes).map_err(|_| Fault::Malformed)
        };
        let header = object(header)?;
        // An extension we do not know must not be passed over.
        if header.contains_key("crit") || header.get("typ").is_some_and(|typ| typ != "JWT") {
            return Err(Fault::Malformed);
        }
        let text = |name: &str| header.get(name).and_then(Value::as_str).map(str::to_owned);
        Ok(Self {
            signed: signed.to_owned(),
            signature: URL_SAFE_NO_PAD.decode(signature).map_err(|_| Fault::Malformed)?,
            key: text("kid").ok_or(Fault::Malformed)?,
            algorithm: text("alg").ok_or(Fault::Algorithm)?,
            claims: object(claims)?,
        })
    }
}

fn read_claims(
    claims: &Map<String, Value>,
    issuer: &str,
    queue: &QueueId,
    now: i64,
) -> Result<Pass, Fault> {
    let text = |name: &str| claims.get(name).and_then(Value::as_str).ok_or(Fault::Malformed);
    // A time that is not a whole number is refused, never passed over.
    let number = |name: &str| claims.get(name).and_then(Value::as_i64).ok_or(Fault::Malformed);
    if text("typ")? != "session" {
        return Err(Fault::Malformed);
    }
    if text("iss")? != issuer || text("aud")? != queue.as_str() {
        return Err(Fault::OtherQueue);
    }
    let (issued, early, expires) = (number("iat")?, number("nbf")?, number("exp")?);
    if early > now + LEEWAY_S {
        return Err(Fault::Early);
    }
    let moment = |seconds: i64| Millis(seconds.saturating_mul(1000));
    let level = u8::try_from(number("pri")?).ok().and_then(|n| Level::parse(n).ok());
    Ok(Pass {
        queue: queue.clone(),
        session: SessionId::parse(text("jti")?).map_err(|_| Fault::Malformed)?,
        position: PositionId::parse(text("position_id")?).map_err(|_| Fault::Malformed)?,
        level: level.ok_or(Fault::Malformed)?,
        epoch: u32::try_from(number("epo")?).map_err(|_| Fault::Malformed)?,
        issued: moment(issued),
        expires: moment(expires),
    })
}
