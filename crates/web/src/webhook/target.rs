//! A target: the receiver of events, and what it gets.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::Webhooks;
use super::address::TargetUrl;
use crate::auth::{Principal, digest, random_hex};
use crate::error::ApiError;
use crate::seal::Seal;

/// Most deliveries per minute, unless the target says otherwise: what Slack takes of one webhook.
const PER_MINUTE_DEFAULT: u32 = 60;
/// Most deliveries per minute that can be set.
pub(crate) const PER_MINUTE_MAX: u32 = 6_000;

/// Longest context of a target, in characters.
const CONTEXT_MAX: usize = 200;

/// The format of the body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WebhookFormat {
    /// The event as JSON.
    #[default]
    Json,
    /// A message for an incoming webhook of Slack.
    Slack,
    /// A message for a webhook of Discord.
    Discord,
    /// A message for a topic of ntfy, as plain text.
    Ntfy,
}

impl WebhookFormat {
    /// Its name.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            WebhookFormat::Json => "json",
            WebhookFormat::Slack => "slack",
            WebhookFormat::Discord => "discord",
            WebhookFormat::Ntfy => "ntfy",
        }
    }

    /// Returns the media type of the body.
    pub(super) fn media_type(self) -> &'static str {
        match self {
            WebhookFormat::Ntfy => "text/plain; charset=utf-8",
            _ => "application/json",
        }
    }

    /// Writes the body of an event, given as JSON, with the target's context if it has one.
    pub(super) fn body(self, event: &str, context: &str) -> String {
        let field = |name: &str| {
            let event: Value = serde_json::from_str(event).unwrap_or_default();
            event[name].as_str().unwrap_or_default().to_owned()
        };
        let message = || {
            let resolved = if field("state") == "resolved" { "Resolved: " } else { "" };
            let context = if context.is_empty() { String::new() } else { format!(" [{context}]") };
            format!("{resolved}{} ({}){context}", field("text"), field("type"))
        };
        match self {
            WebhookFormat::Json if context.is_empty() => event.to_owned(),
            WebhookFormat::Json => {
                let mut event: Value = serde_json::from_str(event).unwrap_or_default();
                event["context"] = json!(context);
                event.to_string()
            }
            // ntfy shows at most 4,096 bytes as a message; more becomes an attachment.
            WebhookFormat::Ntfy => message().chars().take(1_000).collect(),
            WebhookFormat::Slack => {
                // The three characters that Slack reads as markup; so nobody is mentioned by a text of ours.
                let text =
                    message().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
                json!({ "text": text }).to_string()
            }
            WebhookFormat::Discord => {
                let content: String = message().chars().take(2_000).collect();
                json!({ "content": content, "allowed_mentions": { "parse": [] } }).to_string()
            }
        }
    }
}

/// A target as the store keeps it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WebhookTarget {
    #[serde(skip)]
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) format: WebhookFormat,
    /// The types of events it takes; empty for all.
    pub(crate) events: Vec<String>,
    pub(crate) enabled: bool,
    pub(crate) max_per_minute: u32,
    /// Words that go with every event, such as the name of the installation.
    #[serde(default)]
    pub(crate) context: String,
    /// Scheme and host of the URL, which may be shown.
    pub(crate) origin: String,
    /// The URL, sealed: that of Slack or Discord is a credential.
    url: String,
    /// The signing secret, sealed.
    secret: String,
    pub(crate) created_ms: i64,
    pub(crate) created_by: String,
    /// Digest of the request that made it, under an idempotency key.
    #[serde(default)]
    pub(super) request: String,
}

impl WebhookTarget {
    /// Tells whether it takes events of a type.
    pub(super) fn takes(&self, event: &str) -> bool {
        self.enabled && (self.events.is_empty() || self.events.iter().any(|name| name == event))
    }
}

/// The fields of a target that can be set.
#[derive(Clone, Debug, Default)]
pub(super) struct TargetFields {
    pub(super) name: Option<String>,
    pub(super) url: Option<String>,
    pub(super) format: Option<WebhookFormat>,
    pub(super) events: Option<Vec<String>>,
    pub(super) enabled: Option<bool>,
    pub(super) max_per_minute: Option<u32>,
    pub(super) context: Option<String>,
}

impl Webhooks {
    /// Reads all targets, oldest first. Those that cannot be read, of another version, are left out.
    pub(crate) async fn targets(&self) -> Result<Vec<WebhookTarget>, ApiError> {
        let mut targets: Vec<WebhookTarget> = self
            .outbox
            .targets()
            .await?
            .into_iter()
            .filter_map(|(id, text)| read(id, &text))
            .collect();
        targets.sort_by(|a, b| (a.created_ms, &a.id).cmp(&(b.created_ms, &b.id)));
        self.known.store(std::sync::Arc::new(targets.clone()));
        Ok(targets)
    }

    /// Reads a target.
    pub(crate) async fn target(&self, id: &str) -> Result<WebhookTarget, ApiError> {
        let found = self.outbox.target(id).await?.and_then(|text| read(id.to_owned(), &text));
        found.ok_or_else(|| ApiError::not_found("webhook not found"))
    }

    /// Makes a target. Returns it with its secret. A repeated request under one idempotency key finds the
    /// target it made; `false` says so.
    pub(super) async fn create_target(
        &self,
        fields: TargetFields,
        allowed: &[ipnet::IpNet],
        by: &Principal,
        idempotency_key: Option<&str>,
    ) -> Result<(WebhookTarget, String, bool), ApiError> {
        let seal = self.seal()?;
        let request = digest(&format!("{fields:?}"));
        let id = match idempotency_key {
            Some(key) => {
                format!(
                    "wh_{}",
                    digest(&format!("{} {key}", by.token_id)).get(..24).unwrap_or_default()
                )
            }
            None => format!("wh_{}", random_hex::<12>()?),
        };
        let secret = format!("whsec_{}", random_hex::<32>()?);
        let mut target = WebhookTarget {
            id: id.clone(),
            name: String::new(),
            format: WebhookFormat::default(),
            events: Vec::new(),
            enabled: true,
            max_per_minute: PER_MINUTE_DEFAULT,
            context: String::new(),
            origin: String::new(),
            url: String::new(),
            secret: seal.close(&id, &secret)?,
            created_ms: self.store.now().0,
            created_by: by.name.clone(),
            request: request.clone(),
        };
        self.change(&mut target, fields, allowed, seal)?;
        if target.url.is_empty() {
            return Err(ApiError::invalid_field("url", "name the URL that events are sent to"));
        }
        if self.outbox.add_target(&id, &write(&target)?).await? {
            return Ok((target, secret, true));
        }
        let found = self.target(&id).await?;
        if found.request != request {
            return Err(ApiError::conflict(
                "IDEMPOTENCY_KEY_REUSED",
                "this idempotency key made another webhook; use a new key for a new request",
            ));
        }
        let secret = self.secret_of(&found)?;
        Ok((found, secret, false))
    }

    /// Changes a target. Returns what it was and what it is.
    pub(super) async fn change_target(
        &self,
        id: &str,
        fields: TargetFields,
        allowed: &[ipnet::IpNet],
    ) -> Result<(WebhookTarget, WebhookTarget), ApiError> {
        let before = self.target(id).await?;
        let mut after = before.clone();
        self.change(&mut after, fields, allowed, self.seal()?)?;
        self.outbox.change_target(id, &write(&after)?).await?;
        Ok((before, after))
    }

    /// Gives a target a new secret, which counts at once.
    pub(super) async fn rotate_secret(
        &self,
        id: &str,
    ) -> Result<(WebhookTarget, String), ApiError> {
        let mut target = self.target(id).await?;
        let secret = format!("whsec_{}", random_hex::<32>()?);
        target.secret = self.seal()?.close(id, &secret)?;
        self.outbox.change_target(id, &write(&target)?).await?;
        Ok((target, secret))
    }

    fn change(
        &self,
        target: &mut WebhookTarget,
        fields: TargetFields,
        allowed: &[ipnet::IpNet],
        seal: &Seal,
    ) -> Result<(), ApiError> {
        if let Some(name) = fields.name {
            let plain = !name.trim().is_empty()
                && name.chars().count() <= 64
                && !name.chars().any(char::is_control);
            if !plain {
                return Err(ApiError::invalid_field(
                    "name",
                    "a name has 1 to 64 printable characters",
                ));
            }
            target.name = name;
        }
        if let Some(url) = fields.url {
            let parsed = TargetUrl::parse(&url, allowed)
                .map_err(|message| ApiError::invalid_field("url", message))?;
            target.origin = parsed.origin();
            target.url = seal.close(&target.id, &url)?;
        }
        if let Some(events) = fields.events {
            for event in &events {
                if !self.events.iter().any(|known| known.name == event) {
                    let known: Vec<&str> = self.events.iter().map(|event| event.name).collect();
                    let message = format!("{event:?} is none of {}", known.join(", "));
                    return Err(ApiError::invalid_field("events", message));
                }
            }
            target.events = events;
        }
        if let Some(most) = fields.max_per_minute {
            if !(1..=PER_MINUTE_MAX).contains(&most) {
                let message = format!("from 1 to {PER_MINUTE_MAX}");
                return Err(ApiError::invalid_field("max_per_minute", message));
            }
            target.max_per_minute = most;
        }
        if let Some(context) = fields.context {
            if context.chars().count() > CONTEXT_MAX || context.chars().any(char::is_control) {
                let message = format!("a context has at most {CONTEXT_MAX} printable characters");
                return Err(ApiError::invalid_field("context", message));
            }
            target.context = context;
        }
        target.format = fields.format.unwrap_or(target.format);
        target.enabled = fields.enabled.unwrap_or(target.enabled);
        Ok(())
    }

    /// Opens the URL of a target.
    pub(super) fn url_of(&self, target: &WebhookTarget) -> Result<String, ApiError> {
        self.seal()?.open(&target.id, &target.url).ok_or_else(foreign)
    }

    /// Opens the signing secret of a target.
    pub(super) fn secret_of(&self, target: &WebhookTarget) -> Result<String, ApiError> {
        self.seal()?.open(&target.id, &target.secret).ok_or_else(foreign)
    }

    /// Returns what seals secrets in the store, for other secrets too.
    ///
    /// # Errors
    /// This instance has none.
    pub fn seal(&self) -> Result<&Seal, ApiError> {
        self.seal.get().ok_or_else(|| {
            ApiError::unavailable("NO_SECRET", "this instance has no secret to seal webhooks with")
        })
    }
}

fn foreign() -> ApiError {
    ApiError::unavailable(
        "SEALED",
        "the webhook was sealed with another secret; copy the file webhook-secret from the data folder \
         of the instance that made it, or set its URL and secret anew",
    )
}

fn read(id: String, text: &str) -> Option<WebhookTarget> {
    let target: WebhookTarget = serde_json::from_str(text).ok()?;
    Some(WebhookTarget { id, ..target })
}

fn write(target: &WebhookTarget) -> Result<String, ApiError> {
    serde_json::to_string(target).map_err(|error| ApiError::internal(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_fit_their_receivers_and_mention_nobody() {
        let event = json!({ "type": "jobs.dead_letter", "state": "happened", "text": "<!channel> & @everyone" });
        let event = event.to_string();
        assert_eq!(WebhookFormat::Json.body(&event, ""), event);
        assert_eq!(
            WebhookFormat::Slack.body(&event, ""),
            r#"{"text":"&lt;!channel&gt; &amp; @everyone (jobs.dead_letter)"}"#
        );
        let discord: Value =
            serde_json::from_str(&WebhookFormat::Discord.body(&event, "")).unwrap();
        assert_eq!(discord["content"], "<!channel> & @everyone (jobs.dead_letter)");
        assert_eq!(discord["allowed_mentions"], json!({ "parse": [] }));
        let resolved = r#"{"type":"a","state":"resolved","text":"b"}"#;
        assert_eq!(WebhookFormat::Slack.body(resolved, ""), r#"{"text":"Resolved: b (a)"}"#);
        assert_eq!(WebhookFormat::Ntfy.body(resolved, "home"), "Resolved: b (a) [home]");
        let told: Value =
            serde_json::from_str(&WebhookFormat::Json.body(resolved, "home")).unwrap();
        assert_eq!((&told["context"], &told["text"]), (&json!("home"), &json!("b")));
    }
}
