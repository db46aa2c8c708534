//! Agents' logins: password (argon2id), one-time codes (TOTP, RFC 6238), recovery codes, invitations,
//! tickets for sockets.
//!
//! A session of an agent is a session of a user of the desk, so that it is listed, ended and watched as
//! any other; the user's id is the agent's.

use argon2::{Algorithm, Argon2, Params, Version};
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use ring::{digest, hmac};
use sqlx::Row;
use store::redis::{self, AsyncCommands};
use subtle::ConstantTimeEq;
use tokio::sync::Semaphore;

use super::{
    Agent, Chat,
    record::{json_list, list},
};
use crate::{
    AgentId, Error, UserId,
    archive::text_of,
    random::{random, random_hex},
};

/// Memory of argon2id in KiB, its rounds: OWASP's first choice.
const MEMORY_KIB: u32 = 19 * 1_024;
const ROUNDS: u32 = 2;

/// Hashes made at the same time; each takes 19 MiB.
const AT_ONCE: usize = 2;

/// Time of a TOTP code in seconds.
const TOTP_STEP: i64 = 30;

/// Recovery codes of an agent.
const RECOVERY_CODES: usize = 8;

/// TTL of a ticket in seconds.
const TICKET_TTL_S: u64 = 30;

/// Makes and checks password hashes, a few at a time.
#[derive(Debug)]
pub struct PasswordHasher {
    slots: Semaphore,
}

impl PasswordHasher {
    pub(crate) fn new() -> Self {
        Self { slots: Semaphore::new(AT_ONCE) }
    }

    async fn hash(&self, password: &str, salt: Vec<u8>) -> Result<Vec<u8>, Error> {
        let _slot = self.slots.acquire().await.map_err(|_| failed("closed"))?;
        let password = password.to_owned();
        let work = move || {
            let params =
                Params::new(MEMORY_KIB, ROUNDS, 1, Some(32)).map_err(|e| failed(&e.to_string()))?;
            let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
            let mut hash = vec![0; 32];
            argon2
                .hash_password_into(password.as_bytes(), &salt, &mut hash)
                .map_err(|e| failed(&e.to_string()))?;
            Ok(hash)
        };
        tokio::task::spawn_blocking(work).await.map_err(|e| failed(&e.to_string()))?
    }

    /// Returns the text that is stored, in the PHC format.
    async fn make(&self, password: &str) -> Result<String, Error> {
        let salt = random::<16>()?.to_vec();
        let hash = self.hash(password, salt.clone()).await?;
        let (salt, hash) = (STANDARD_NO_PAD.encode(salt), STANDARD_NO_PAD.encode(hash));
        Ok(format!("$argon2id$v=19$m={MEMORY_KIB},t={ROUNDS},p=1${salt}${hash}"))
    }

    /// Checks a password; without a stored one it takes as long, and is wrong.
    async fn check(&self, password: &str, stored: Option<&str>) -> Result<bool, Error> {
        let parts: Vec<&str> = stored.unwrap_or_default().split('$').collect();
        let known = match parts.as_slice() {
            ["", "argon2id", "v=19", _, salt, hash] => {
                STANDARD_NO_PAD.decode(salt).ok().zip(STANDARD_NO_PAD.decode(hash).ok())
            }
            _ => None,
        };
        let (salt, expected) = known.unwrap_or_else(|| (vec![0; 16], Vec::new()));
        let hash = self.hash(password, salt).await?;
        Ok(bool::from(hash.as_slice().ct_eq(expected.as_slice())))
    }
}

fn failed(message: &str) -> Error {
    Error::archive(format!("password not hashed: {message}"))
}

/// The outcome of a login.
#[derive(Clone, Debug, PartialEq)]
pub enum LoginOutcome {
    /// E-mail, password and code are right.
    Agent(Box<Agent>),
    /// The password is right; a code is needed, or the one given is wrong.
    CodeRequired,
    /// E-mail or password is wrong, or the agent is disabled.
    Wrong,
}

/// A second factor to be set up.
#[derive(Clone, Debug)]
pub struct TotpSetup {
    /// The secret, in base32.
    pub secret: String,
    /// The address that an app reads as a QR code.
    pub url: String,
}

/// The id under which an agent's sessions are kept.
pub(crate) fn user_of(agent: &AgentId) -> Result<UserId, Error> {
    UserId::parse(agent.as_str())
}

/// Returns the hash of a secret with enough bits of its own.
pub(crate) fn hash_secret(secret: &str) -> String {
    let digest = digest::digest(&digest::SHA256, secret.as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Chat {
    /// Checks e-mail, password and, for agents who have one, a code. Unknown addresses take as long.
    ///
    /// # Errors
    /// The archive cannot be read.
    pub async fn log_in(
        &self,
        email: &str,
        password: &str,
        code: Option<&str>,
    ) -> Result<LoginOutcome, Error> {
        let row = sqlx::query("SELECT id, password, totp, disabled FROM agents WHERE email = $1")
            .bind(email.trim().to_lowercase())
            .fetch_optional(self.0.archive.readers())
            .await?;
        let stored = row.as_ref().and_then(|row| text_of(row, "password").ok().flatten());
        let is_right = self.0.hasher.check(password, stored.as_deref()).await?;
        let Some(row) = row.filter(|_| is_right) else { return Ok(LoginOutcome::Wrong) };
        if row.try_get::<i64, _>("disabled")? != 0 {
            return Ok(LoginOutcome::Wrong);
        }
        let id = AgentId::parse(&row.try_get::<String, _>("id")?)?;
        if text_of(&row, "totp")?.is_some() {
            let Some(code) = code else { return Ok(LoginOutcome::CodeRequired) };
            if !self.use_code(&id, code).await? {
                return Ok(LoginOutcome::CodeRequired);
            }
        }
        Ok(LoginOutcome::Agent(Box::new(self.agent(&id)?)))
    }

    /// Uses up a TOTP code or a recovery code; each works once.
    async fn use_code(&self, id: &AgentId, code: &str) -> Result<bool, Error> {
        let (id, code, now) = (id.to_string(), code.trim().to_owned(), self.now().0 / 1_000);
        self.0
            .archive
            .write(move |tx| {
                let (id, code) = (id.clone(), code.clone());
                Box::pin(async move {
                    let row =
                        sqlx::query("SELECT totp, totp_used, recovery FROM agents WHERE id = $1")
                            .bind(id.clone())
                            .fetch_one(&mut *tx)
                            .await?;
                    let secret = text_of(&row, "totp")?.unwrap_or_default();
                    let used: i64 = row.try_get("totp_used")?;
                    if let Some(step) =
                        matching_step(&secret, &code, now).filter(|step| *step > used)
                    {
                        sqlx::query("UPDATE agents SET totp_used = $1 WHERE id = $2")
                            .bind(step)
                            .bind(id)
                            .execute(&mut *tx)
                            .await?;
                        return Ok(true);
                    }
                    let mut codes = list(&row.try_get::<String, _>("recovery")?);
                    let hash = hash_secret(&code.to_lowercase());
                    let Some(at) = codes.iter().position(|known| *known == hash) else {
                        return Ok(false);
                    };
                    codes.remove(at);
                    sqlx::query("UPDATE agents SET recovery = $1 WHERE id = $2")
                        .bind(json_list(&codes))
                        .bind(id)
                        .execute(&mut *tx)
                        .await?;
                    Ok(true)
                })
            })
            .await
    }

    /// Sets a password with the secret of an invitation, which is used up.
    ///
    /// # Errors
    /// `BAD_INVITATION`: wrong, used or expired; a password that is too short.
    pub async fn accept_invitation(&self, secret: &str, password: &str) -> Result<Agent, Error> {
        check_password(password)?;
        let (hash, now) = (hash_secret(secret), self.now());
        let stored = self.0.hasher.make(password).await?;
        let id = self
            .0
            .archive
            .write(move |tx| {
                let (hash, stored) = (hash.clone(), stored.clone());
                Box::pin(async move {
                    let row = sqlx::query(
                        "SELECT id FROM agents WHERE invite = $1 AND invite_until_ms > $2 AND disabled = 0",
                    )
                    .bind(hash)
                    .bind(now.0)
                    .fetch_optional(&mut *tx)
                    .await?;
                    let Some(row) = row else {
                        return Err(Error::forbidden(
                            "BAD_INVITATION",
                            "this invitation is wrong, used or expired; ask for a new one",
                        ));
                    };
                    let id: String = row.try_get(0)?;
                    sqlx::query("UPDATE agents SET password = $1, invite = NULL WHERE id = $2")
                        .bind(stored)
                        .bind(id.clone())
                        .execute(&mut *tx)
                        .await?;
                    Ok(id)
                })
            })
            .await?;
        self.load_roster().await?;
        self.agent(&AgentId::parse(&id)?)
    }

    /// Changes an agent's own password.
    ///
    /// # Errors
    /// `WRONG_PASSWORD`; a password that is too short.
    pub async fn change_password(
        &self,
        id: &AgentId,
        current: &str,
        password: &str,
    ) -> Result<(), Error> {
        check_password(password)?;
        self.check_password_of(id, current).await?;
        self.set_password(id, password).await
    }

    async fn check_password_of(&self, id: &AgentId, password: &str) -> Result<(), Error> {
        let row = sqlx::query("SELECT password FROM agents WHERE id = $1")
            .bind(id.as_str().to_owned())
            .fetch_optional(self.0.archive.readers())
            .await?;
        let stored = row.as_ref().and_then(|row| text_of(row, "password").ok().flatten());
        if self.0.hasher.check(password, stored.as_deref()).await? {
            return Ok(());
        }
        Err(Error::forbidden("WRONG_PASSWORD", "the password is wrong"))
    }

    /// Sets an agent's password.
    ///
    /// # Errors
    /// A password that is too short; there is no such agent.
    pub async fn set_password(&self, id: &AgentId, password: &str) -> Result<(), Error> {
        check_password(password)?;
        self.agent(id)?;
        let (stored, id) = (self.0.hasher.make(password).await?, id.to_string());
        self.0
            .archive
            .write(move |tx| {
                let (stored, id) = (stored.clone(), id.clone());
                Box::pin(async move {
                    sqlx::query("UPDATE agents SET password = $1, invite = NULL WHERE id = $2")
                        .bind(stored)
                        .bind(id)
                        .execute(&mut *tx)
                        .await?;
                    Ok(())
                })
            })
            .await?;
        self.load_roster().await
    }

    /// Begins the setup of a second factor.
    ///
    /// # Errors
    /// There is no such agent.
    pub async fn begin_totp(&self, id: &AgentId, issuer: &str) -> Result<TotpSetup, Error> {
        let agent = self.agent(id)?;
        let secret = base32(&random::<20>()?);
        let (stored, key) = (secret.clone(), id.to_string());
        self.0
            .archive
            .write(move |tx| {
                let (secret, id) = (stored.clone(), key.clone());
                Box::pin(async move {
                    sqlx::query("UPDATE agents SET totp_pending = $1 WHERE id = $2")
                        .bind(secret)
                        .bind(id)
                        .execute(&mut *tx)
                        .await?;
                    Ok(())
                })
            })
            .await?;
        let url =
            format!("otpauth://totp/{issuer}:{}?secret={secret}&issuer={issuer}", agent.email);
        Ok(TotpSetup { secret, url })
    }

    /// Switches the second factor on with a first code, and returns recovery codes, which are shown
    /// this once.
    ///
    /// # Errors
    /// `WRONG_CODE`; no setup was begun.
    pub async fn confirm_totp(&self, id: &AgentId, code: &str) -> Result<Vec<String>, Error> {
        let now = self.now().0 / 1_000;
        let row = sqlx::query("SELECT totp_pending FROM agents WHERE id = $1")
            .bind(id.as_str().to_owned())
            .fetch_optional(self.0.archive.readers())
            .await?
            .ok_or(Error::NotFound { what: "agent" })?;
        let secret = text_of(&row, "totp_pending")?
            .ok_or_else(|| Error::conflict("NO_SETUP", "begin the setup first"))?;
        let Some(step) = matching_step(&secret, code.trim(), now) else {
            return Err(Error::forbidden("WRONG_CODE", "the code is wrong; compare the clocks"));
        };
        let mut codes = Vec::with_capacity(RECOVERY_CODES);
        for _ in 0..RECOVERY_CODES {
            let code = random_hex::<6>()?;
            codes.push(format!("{}-{}", &code[..6], &code[6..]));
        }
        let hashes: Vec<String> = codes.iter().map(|code| hash_secret(code)).collect();
        let (secret, hashes, key) = (secret, json_list(&hashes), id.to_string());
        self.0
            .archive
            .write(move |tx| {
                let (secret, hashes, id) = (secret.clone(), hashes.clone(), key.clone());
                Box::pin(async move {
                    sqlx::query(
                        "UPDATE agents SET totp = $1, totp_pending = NULL, totp_used = $2, recovery = $3 \
                         WHERE id = $4",
                    )
                    .bind(secret)
                    .bind(step)
                    .bind(hashes)
                    .bind(id)
                    .execute(&mut *tx)
                    .await?;
                    Ok(())
                })
            })
            .await?;
        self.load_roster().await?;
        Ok(codes)
    }

    /// Switches the second factor off, with the password.
    ///
    /// # Errors
    /// `WRONG_PASSWORD`.
    pub async fn remove_totp(&self, id: &AgentId, password: &str) -> Result<(), Error> {
        self.check_password_of(id, password).await?;
        let key = id.to_string();
        self.0
            .archive
            .write(move |tx| {
                let id = key.clone();
                Box::pin(async move {
                    sqlx::query(
                        "UPDATE agents SET totp = NULL, totp_pending = NULL, recovery = '[]' WHERE id = $1",
                    )
                    .bind(id)
                    .execute(&mut *tx)
                    .await?;
                    Ok(())
                })
            })
            .await?;
        self.load_roster().await
    }

    /// Makes a ticket with which a socket is opened within 30 s, once. `holder` is who it is for.
    ///
    /// # Errors
    /// The store is away.
    pub async fn make_ticket(&self, holder: &str) -> Result<String, Error> {
        let ticket = random_hex::<24>()?;
        let key = self.0.keys.ticket(&hash_secret(&ticket));
        let () = self.0.store.clone().set_ex(key, holder, TICKET_TTL_S).await?;
        Ok(ticket)
    }

    /// Uses up a ticket and returns who it is for.
    ///
    /// # Errors
    /// The store is away.
    pub async fn use_ticket(&self, ticket: &str) -> Result<Option<String>, Error> {
        let key = self.0.keys.ticket(&hash_secret(ticket));
        Ok(redis::cmd("GETDEL").arg(key).query_async(&mut self.0.store.clone()).await?)
    }

    /// Returns the user under whose id an agent's sessions are kept.
    ///
    /// # Errors
    /// An id that no user can have.
    pub fn user_of_agent(&self, agent: &AgentId) -> Result<UserId, Error> {
        user_of(agent)
    }

    /// Returns the agent whose sessions are kept under a user's id.
    pub fn agent_of_user(&self, user: &UserId) -> Option<Agent> {
        let id = AgentId::parse(user.as_str()).ok()?;
        self.agent(&id).ok().filter(|agent| !agent.disabled)
    }
}

fn check_password(password: &str) -> Result<(), Error> {
    if (12..=256).contains(&password.chars().count()) {
        return Ok(());
    }
    Err(Error::invalid("password", "12 to 256 characters"))
}

/// Returns the step of time whose code this is: the current one or a neighbour.
fn matching_step(secret: &str, code: &str, now: i64) -> Option<i64> {
    let key = unbase32(secret)?;
    let step = now / TOTP_STEP;
    let mut found = None;
    for at in [step - 1, step, step + 1] {
        // Compared in full each time, so that time tells nothing.
        if bool::from(totp(&key, at).as_bytes().ct_eq(code.as_bytes())) {
            found = Some(at);
        }
    }
    found
}

/// The code of RFC 6238 with SHA-1 and six digits, which every app knows.
fn totp(key: &[u8], step: i64) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key);
    let tag = hmac::sign(&key, &step.to_be_bytes());
    let bytes = tag.as_ref();
    let offset = usize::from(bytes[19] & 0x0f);
    let number = u32::from_be_bytes([
        bytes[offset] & 0x7f,
        bytes[offset + 1],
        bytes[offset + 2],
        bytes[offset + 3],
    ]);
    format!("{:06}", number % 1_000_000)
}

const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

fn base32(bytes: &[u8]) -> String {
    let (mut text, mut buffer, mut bits) = (String::new(), 0_u32, 0_u32);
    for byte in bytes {
        buffer = (buffer << 8) | u32::from(*byte);
        bits += 8;
        while bits >= 5 {
            bits -= 5;
            text.push(char::from(BASE32[usize::try_from((buffer >> bits) & 31).unwrap_or(0)]));
        }
    }
    if bits > 0 {
        text.push(char::from(BASE32[usize::try_from((buffer << (5 - bits)) & 31).unwrap_or(0)]));
    }
    text
}

fn unbase32(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut buffer, mut bits) = (Vec::new(), 0_u32, 0_u32);
    for c in text.bytes() {
        let value = BASE32.iter().position(|known| *known == c)?;
        buffer = (buffer << 5) | u32::try_from(value).ok()?;
        bits += 5;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from((buffer >> bits) & 0xff).ok()?);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_rfc_6238() {
        // Appendix B, SHA-1, cut to six digits.
        let key = b"12345678901234567890";
        for (time, code) in [(59, "287082"), (1_111_111_109, "081804"), (2_000_000_000, "279037")] {
            assert_eq!(totp(key, time / 30), code);
            assert_eq!(matching_step(&base32(key), code, time), Some(time / 30));
        }
        assert_eq!(matching_step(&base32(key), "287082", 59 + 90), None);
        assert_eq!(unbase32(&base32(b"any length")).unwrap(), b"any length");
    }

    #[tokio::test]
    async fn a_password_is_checked_and_an_unknown_account_is_wrong() {
        let hasher = PasswordHasher::new();
        let stored = hasher.make("correct horse battery").await.unwrap();
        assert!(stored.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"));
        assert!(hasher.check("correct horse battery", Some(&stored)).await.unwrap());
        assert!(!hasher.check("correct horse batterz", Some(&stored)).await.unwrap());
        assert!(!hasher.check("", None).await.unwrap());
    }
}
