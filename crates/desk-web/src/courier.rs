//! The courier of the desk: hands e-mail to an SMTP server (`smtp.rs`) and notifications to push services
//! (`push.rs`). What is due and what it says, the crate `desk` decides.
//!
//! Nothing is sent to loopback or a private network unless `webhooks.allowed_networks` has it, by the rule
//! that webhooks follow.

pub(crate) mod push;
pub(crate) mod smtp;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use desk::chat::{Chat, Courier, CourierOutcome, Email, PushMessage};
use futures_util::future::BoxFuture;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;
use web::outbound::OutboundError;
use web::{ApiError, App};

use self::push::VapidKeys;
use self::smtp::{MailError, SmtpServer};
use crate::config::DeskSettings;

/// Name under which secrets of the outbox are sealed.
const SEALED: &str = "desk.outbox";

/// Name of the key that signs notifications, in the archive and under which it is sealed.
const PUSH_KEY: &str = "push_key";

/// Time for the whole of an e-mail, and of a notification.
const MAIL_TIMEOUT: Duration = Duration::from_secs(45);
const PUSH_TIMEOUT: Duration = Duration::from_secs(15);

/// Wait before the key is read again that could not be read, and the attempt from which on that is told.
const RETRY: Duration = Duration::from_secs(1);
const TOLD_ATTEMPT: u32 = 10;

/// Settings of the courier.
#[derive(Debug, Clone, Default)]
pub(crate) struct CourierSettings {
    /// The SMTP server; none sends no e-mail.
    pub(crate) smtp: Option<SmtpServer>,
    /// The contact that push services are told: a `mailto:` or an `https:` address.
    pub(crate) contact: Option<String>,
}

impl CourierSettings {
    pub(crate) fn of(settings: &DeskSettings) -> CourierSettings {
        let smtp = SmtpServer::of(settings);
        let url = &settings.public_url.0;
        let contact = match &smtp {
            Some(smtp) => Some(format!("mailto:{}", smtp.from.email)),
            None => url.starts_with("https://").then(|| url.clone()),
        };
        CourierSettings { smtp, contact }
    }
}

/// State of the courier of one instance.
#[derive(Debug, Default)]
pub(crate) struct CourierState {
    pub(crate) settings: ArcSwap<CourierSettings>,
    push_keys: OnceCell<VapidKeys>,
}

impl CourierState {
    pub(crate) fn new(settings: &DeskSettings) -> CourierState {
        let settings = ArcSwap::from_pointee(CourierSettings::of(settings));
        CourierState { settings, push_keys: OnceCell::new() }
    }

    /// Returns the key that signs notifications. It is made once for all instances, and kept in the archive,
    /// sealed.
    ///
    /// # Errors
    /// The archive is away, or the key was sealed with another secret.
    pub(crate) async fn push_keys(&self, chat: &Chat, app: &App) -> Result<&VapidKeys, ApiError> {
        self.push_keys
            .get_or_try_init(async || {
                let seal = app.webhooks().seal()?;
                let away = |error: desk::Error| ApiError::unavailable("ARCHIVE_AWAY", error.to_string());
                let kept = match chat.kept(PUSH_KEY).await.map_err(away)? {
                    Some(kept) => kept,
                    None => {
                        let fresh = VapidKeys::make().map_err(|error| ApiError::internal(&error))?;
                        let sealed = seal.close(PUSH_KEY, &fresh)?;
                        chat.keep(PUSH_KEY, &sealed).await.map_err(away)?
                    }
                };
                let opened = seal.open(PUSH_KEY, &kept).ok_or_else(|| {
                    ApiError::unavailable(
                        "PUSH_KEY_SEALED",
                        "the push key was sealed with another secret; copy the file webhook-secret from the data \
                         folder of the instance that made it, or set webhooks.secret_file",
                    )
                })?;
                VapidKeys::parse(&opened).map_err(|error| ApiError::internal(&error))
            })
            .await
    }

    /// Makes the key ready at start, also while notifications are off: a reload may switch them on.
    pub(crate) async fn prepare(&self, chat: &Chat, app: &App, stop: &CancellationToken) {
        for attempt in 1_u32.. {
            let error = match self.push_keys(chat, app).await {
                Ok(_) => return,
                Err(error) => error,
            };
            // What seals it is set while the program starts.
            if attempt == TOLD_ATTEMPT {
                tracing::warn!(error = error.message(), "agents are not notified yet");
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }
}

/// The courier.
#[derive(Debug)]
pub(crate) struct DeskCourier {
    pub(crate) app: App,
    pub(crate) state: Arc<CourierState>,
}

impl Courier for DeskCourier {
    fn seal(&self, secret: &str) -> Result<String, String> {
        let sealed = self.app.webhooks().seal().and_then(|seal| seal.close(SEALED, secret));
        sealed.map_err(|error| error.message().to_owned())
    }

    fn unseal(&self, sealed: &str) -> Option<String> {
        self.app.webhooks().seal().ok()?.open(SEALED, sealed)
    }

    fn send_email<'a>(&'a self, email: &'a Email) -> BoxFuture<'a, CourierOutcome> {
        Box::pin(async move {
            let settings = self.state.settings.load_full();
            let Some(server) = &settings.smtp else {
                return CourierOutcome::failed("e-mail is no longer set up: set desk.smtp_host");
            };
            let message = match smtp::compose(email, &server.from, self.app.store().now()) {
                Ok(message) => message,
                Err(reason) => return CourierOutcome::Refused(reason),
            };
            let allowed = self.app.settings().webhook_networks.clone();
            let sending = smtp::send(server, &allowed, &message);
            match tokio::time::timeout(MAIL_TIMEOUT, sending).await {
                Ok(Ok(())) => CourierOutcome::Sent,
                Ok(Err(MailError::Failed(reason))) => CourierOutcome::failed(reason),
                Ok(Err(MailError::Refused(reason))) => CourierOutcome::Refused(reason),
                Err(_) => CourierOutcome::failed("the SMTP server did not answer within 45 s"),
            }
        })
    }

    fn send_push<'a>(&'a self, message: &'a PushMessage) -> BoxFuture<'a, CourierOutcome> {
        Box::pin(async move {
            match tokio::time::timeout(PUSH_TIMEOUT, self.notify(message)).await {
                Ok(outcome) => outcome,
                Err(_) => CourierOutcome::failed("the push service did not answer within 15 s"),
            }
        })
    }
}

impl DeskCourier {
    async fn notify(&self, message: &PushMessage) -> CourierOutcome {
        let Some(keys) = self.state.push_keys.get() else {
            return CourierOutcome::failed("the push key is not ready yet");
        };
        let allowed = self.app.settings().webhook_networks.clone();
        if let Err(reason) = web::outbound::check_https(&message.endpoint, &allowed) {
            return CourierOutcome::Refused(reason);
        }
        let body = match push::encrypt(&message.p256dh, &message.auth, message.payload.as_bytes()) {
            Ok(body) => body,
            Err(reason) => return CourierOutcome::Refused(reason),
        };
        let settings = self.state.settings.load_full();
        let now = self.app.store().now().as_secs();
        let signed = keys.authorize(&message.endpoint, settings.contact.as_deref(), now);
        let authorization = match signed {
            Ok(authorization) => authorization,
            Err(reason) => return CourierOutcome::Refused(reason),
        };
        let ttl = message.ttl.as_secs().to_string();
        let headers = [
            ("content-type", "application/octet-stream"),
            ("content-encoding", "aes128gcm"),
            ("ttl", ttl.as_str()),
            ("urgency", "high"),
            ("topic", message.topic.as_str()),
            ("authorization", authorization.as_str()),
        ];
        let webhooks = self.app.webhooks();
        let answer = webhooks.post(&message.endpoint, &headers, Bytes::from(body), &allowed).await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(OutboundError::Failed(reason)) => return CourierOutcome::failed(reason),
            Err(OutboundError::Refused(reason)) => return CourierOutcome::Refused(reason),
        };
        let text = String::from_utf8_lossy(&answer.body);
        let text: String = text.chars().filter(|c| !c.is_control()).take(200).collect();
        let reason =
            format!("the push service answered {} {text}", answer.status).trim_end().to_owned();
        match answer.status.as_u16() {
            200..=299 => CourierOutcome::Sent,
            404 | 410 => CourierOutcome::Gone,
            408 | 425 | 429 | 500..=599 => {
                CourierOutcome::Failed { reason, retry_after: answer.retry_after }
            }
            _ => CourierOutcome::Refused(reason),
        }
    }
}
