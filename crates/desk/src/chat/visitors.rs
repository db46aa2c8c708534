//! Visitors: users of the desk who chat.
//!
//! Anonymous ones get an id here. A site's own users come with a proof, an HMAC over id, e-mail and
//! time; their id begins with `v~`, so that no unverified visitor can have it, whatever they claim.

use std::{sync::Arc, time::Duration};

use ring::hmac;
use serde_json::Value;
use sqlx::AnyConnection;
use store::Millis;

use super::{Chat, ChatVisitor, send::check_line};
use crate::{Error, UserId, ids};

/// Start of the ids of verified visitors.
pub(crate) const VERIFIED: &str = "v~";

/// Start of the ids of visitors that nobody verified.
pub(crate) const ANONYMOUS: &str = "vis";

/// Time by which the clock of a site may differ.
const CLAIM_TIME: Duration = Duration::from_secs(300);

/// Claim of a site about its user.
#[derive(Clone, Debug)]
pub struct VisitorClaim {
    /// The site's id of the user.
    pub user_id: String,
    /// Name.
    pub name: Option<String>,
    /// E-mail address; part of the proof, empty if there is none.
    pub email: Option<String>,
    /// Unix seconds at which the proof was made.
    pub at: i64,
    /// HMAC-SHA256 over `user_id`, `email` and `at` with line breaks between, in hexadecimal.
    pub hmac: String,
}

/// Changes of a visitor; what is left out stays.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the fields are those of a visitor")]
pub struct VisitorChange {
    pub name: Option<String>,
    pub email: Option<String>,
    pub notes: Option<String>,
    pub attributes: Option<Value>,
    pub page_url: Option<String>,
    pub locale: Option<String>,
}

impl VisitorChange {
    pub(crate) fn check(&self) -> Result<(), Error> {
        check_line("name", self.name.as_deref(), 100)?;
        check_line("page_url", self.page_url.as_deref(), 2_000)?;
        check_line("locale", self.locale.as_deref(), 35)?;
        if let Some(email) = &self.email {
            check_email(email)?;
        }
        if self.notes.as_ref().is_some_and(|notes| notes.len() > 10_000 || notes.contains('\0')) {
            return Err(Error::invalid("notes", "at most 10,000 bytes"));
        }
        if let Some(attributes) = &self.attributes {
            let is_flat = attributes.as_object().is_some_and(|fields| {
                fields.len() <= 50
                    && fields.iter().all(|(name, value)| {
                        name.len() <= 64 && !value.is_object() && !value.is_array()
                    })
            });
            if !is_flat || attributes.to_string().len() > 8_192 {
                return Err(Error::invalid("attributes", "a flat object of at most 50 fields"));
            }
        }
        if let Some(url) = &self.page_url
            && !(url.starts_with("https://") || url.starts_with("http://") || url.is_empty())
        {
            return Err(Error::invalid(
                "page_url",
                "an address that begins with https:// or http://",
            ));
        }
        Ok(())
    }
}

/// Refuses what is no e-mail address.
pub(crate) fn check_email(email: &str) -> Result<(), Error> {
    let is_plain = |c: char| {
        !c.is_control() && !c.is_whitespace() && !matches!(c, '<' | '>' | ',' | ';' | '"')
    };
    let is_email = email.len() <= 254
        && email.chars().all(is_plain)
        && email.split_once('@').is_some_and(|(user, host)| {
            !user.is_empty()
                && host.contains('.')
                && !host.starts_with('.')
                && !host.ends_with('.')
                && !host.contains('@')
        });
    if is_email {
        Ok(())
    } else {
        Err(Error::invalid("email", "an address such as anna@example.org"))
    }
}

impl Chat {
    /// Returns a fresh id for a visitor who is not verified.
    pub fn fresh_visitor(&self) -> Result<UserId, Error> {
        UserId::parse(&ids::fresh(ANONYMOUS))
    }

    /// Checks a site's proof and returns the id of its user.
    ///
    /// # Errors
    /// `BAD_IDENTITY`: the proof is wrong or too old, or there is no `desk.widget_secret`.
    pub fn verify_claim(&self, claim: &VisitorClaim) -> Result<UserId, Error> {
        let bad = |message: &str| Error::forbidden("BAD_IDENTITY", message);
        let secret = &self.options().widget_secret;
        if secret.is_empty() {
            return Err(bad("identities are not accepted here: desk.widget_secret is not set"));
        }
        let now = self.now().0 / 1_000;
        if now.abs_diff(claim.at) > CLAIM_TIME.as_secs() {
            return Err(bad("the proof is too old, or a clock is wrong; make a new one"));
        }
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let email = claim.email.as_deref().unwrap_or_default();
        let text = format!("{}\n{email}\n{}", claim.user_id, claim.at);
        let proof = decode_hex(&claim.hmac).ok_or_else(|| bad("the proof is not hexadecimal"))?;
        hmac::verify(&key, text.as_bytes(), &proof).map_err(|_| bad("the proof is wrong"))?;
        if claim.user_id.contains('\n') {
            return Err(bad("an id has no line breaks"));
        }
        UserId::parse(&format!("{VERIFIED}{}", claim.user_id))
    }

    /// Notes a visitor, or what is new of one.
    ///
    /// # Errors
    /// An invalid value.
    pub async fn put_visitor(
        &self,
        id: &UserId,
        change: VisitorChange,
    ) -> Result<ChatVisitor, Error> {
        change.check()?;
        let (now, id, change) = (self.now(), id.clone(), Arc::new(change));
        self.0
            .archive
            .write(move |tx| {
                let (id, change) = (id.clone(), Arc::clone(&change));
                Box::pin(async move {
                    let mut visitor = load_or_insert(tx, &id, now).await?;
                    let set = |to: &mut Option<String>, from: &Option<String>| {
                        if let Some(value) = from {
                            *to = (!value.is_empty()).then(|| value.clone());
                        }
                    };
                    set(&mut visitor.name, &change.name);
                    set(&mut visitor.email, &change.email);
                    set(&mut visitor.page_url, &change.page_url);
                    set(&mut visitor.locale, &change.locale);
                    if let Some(notes) = &change.notes {
                        visitor.notes.clone_from(notes);
                    }
                    if let Some(attributes) = &change.attributes {
                        visitor.attributes.clone_from(attributes);
                    }
                    visitor.seen_at = now;
                    sqlx::query(
                        "UPDATE visitors SET name = $1, email = $2, notes = $3, attributes = $4, \
                         page_url = $5, locale = $6, seen_ms = $7 WHERE id = $8",
                    )
                    .bind(visitor.name.clone())
                    .bind(visitor.email.clone())
                    .bind(visitor.notes.clone())
                    .bind(visitor.attributes.to_string())
                    .bind(visitor.page_url.clone())
                    .bind(visitor.locale.clone())
                    .bind(now.0)
                    .bind(id.as_str().to_owned())
                    .execute(&mut *tx)
                    .await?;
                    Ok(visitor)
                })
            })
            .await
    }

    /// Returns a visitor.
    ///
    /// # Errors
    /// There is none of this id.
    pub async fn visitor(&self, id: &UserId) -> Result<ChatVisitor, Error> {
        let row = sqlx::query("SELECT * FROM visitors WHERE id = $1")
            .bind(id.as_str().to_owned())
            .fetch_optional(self.0.archive.readers())
            .await?;
        row.map_or(Err(Error::NotFound { what: "visitor" }), |row| ChatVisitor::read(&row))
    }
}

/// Loads a visitor inside a change; makes one if there is none.
pub(crate) async fn load_or_insert(
    tx: &mut AnyConnection,
    id: &UserId,
    now: Millis,
) -> Result<ChatVisitor, Error> {
    let row = sqlx::query("SELECT * FROM visitors WHERE id = $1")
        .bind(id.as_str().to_owned())
        .fetch_optional(&mut *tx)
        .await?;
    if let Some(row) = row {
        return ChatVisitor::read(&row);
    }
    let verified = id.as_str().starts_with(VERIFIED);
    sqlx::query(
        "INSERT INTO visitors (id, verified, notes, attributes, created_ms, seen_ms) \
         VALUES ($1, $2, '', '{}', $3, $3)",
    )
    .bind(id.as_str().to_owned())
    .bind(i64::from(verified))
    .bind(now.0)
    .execute(&mut *tx)
    .await?;
    Ok(ChatVisitor {
        id: id.clone(),
        name: None,
        email: None,
        verified,
        notes: String::new(),
        attributes: serde_json::json!({}),
        page_url: None,
        locale: None,
        created_at: now,
        seen_at: now,
    })
}

pub(crate) fn decode_hex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}
