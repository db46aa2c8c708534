//! Webhooks: tells programs and people elsewhere what happens here.
//!
//! Services declare [`EventType`]s and emit [`Event`]s through [`App::webhooks`](crate::App::webhooks); this module knows
//! none of them. State is in the store ([`store::webhook`]), so every instance may emit, and one, the
//! leader, sends. Each event is in line once for each target that asked for it.
//!
//! Read in this order: this file, `target.rs` (what a target is), `address.rs` (where nothing is sent
//! to), `send.rs` (one attempt), `run.rs` (the rounds), `api.rs`.

pub(crate) mod address;
pub(crate) mod api;
mod run;
mod send;
pub(crate) mod target;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use serde_json::{Value, json};
use store::webhook::{AlarmChange, EmitOutcome, NewEvent, Outbox};
use store::{Millis, Store};
use tokio::sync::Notify;

use self::target::WebhookTarget;
use crate::auth::random_hex;
use crate::error::ApiError;
use crate::format::rfc3339;
use crate::keys;
use crate::seal::Seal;
use crate::service::Services;

pub use self::run::{deliver_due, run};

/// The event that the test button sends; every target takes it.
pub(crate) const TEST_EVENT: &str = "webhook.test";

/// A type of event that can be sent to webhooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventType {
    /// Its name: the service, a dot, what happened.
    pub name: &'static str,
    /// Its description, one sentence.
    pub help: &'static str,
}

/// Something that happened.
#[derive(Clone, Debug)]
pub struct Event {
    /// Id, where the event has one of its own: it is sent once, however often it is emitted.
    pub id: Option<String>,
    /// Name of its type.
    pub kind: &'static str,
    /// The thing it is about. Events about one thing arrive in order.
    pub subject: String,
    /// The event, in a sentence.
    pub text: String,
    /// More about it, for programs.
    pub data: Value,
}

/// The webhooks of an installation.
#[derive(Debug)]
pub struct Webhooks {
    store: Store,
    outbox: Outbox,
    instance: String,
    events: Vec<EventType>,
    seal: OnceLock<Seal>,
    /// Targets as they were read last, for what must be told while the store is away.
    known: ArcSwap<Vec<WebhookTarget>>,
    /// Alarms as this process set them last.
    alarms: Mutex<HashMap<String, bool>>,
    /// By target, when the next delivery may go out at the earliest.
    limits: Mutex<HashMap<String, Millis>>,
    leads: AtomicBool,
    wake: Notify,
    tls: OnceLock<Arc<rustls::ClientConfig>>,
}

impl Webhooks {
    pub(crate) fn new(store: &Store, instance: &str, services: Services) -> Webhooks {
        let events = services.iter().flat_map(|service| service.event_types()).copied();
        Webhooks {
            store: store.clone(),
            outbox: Outbox::new(store, keys::webhooks()),
            instance: instance.to_owned(),
            events: events.collect(),
            seal: OnceLock::new(),
            known: ArcSwap::default(),
            alarms: Mutex::default(),
            limits: Mutex::default(),
            leads: AtomicBool::new(false),
            wake: Notify::new(),
            tls: OnceLock::new(),
        }
    }

    /// Sets the secret that seals URLs and signing secrets in the store. Without it no target can be
    /// made.
    pub fn set_seal(&self, seal: Seal) {
        // Set once, at start; a second one would not open what the first one sealed.
        let _ = self.seal.set(seal);
    }

    /// The types of events of all services.
    pub fn event_types(&self) -> &[EventType] {
        &self.events
    }

    /// Tells whether this instance leads: it sends, and looks out for alarms of the whole installation.
    pub fn leads(&self) -> bool {
        self.leads.load(Ordering::Relaxed)
    }

    /// Tells whether any target takes a type of event, for those who would have to collect it first.
    pub async fn wants(&self, event: &EventType) -> bool {
        // While the store is away, the targets read last answer.
        match self.targets().await {
            Ok(targets) => targets.iter().any(|target| target.takes(event.name)),
            Err(_) => self.known.load().iter().any(|target| target.takes(event.name)),
        }
    }

    /// Puts an event in line for all targets that asked for its type.
    pub async fn emit(&self, event: Event) -> Result<(), ApiError> {
        let targets = self.targets_of(event.kind).await?;
        if targets.is_empty() {
            return Ok(());
        }
        self.put(&event, "happened", &targets, None).await
    }

    /// Raises or clears an alarm, and tells of it when it changes. The name of the alarm is that of the
    /// event and its subject.
    pub async fn set_alarm(&self, is_raised: bool, event: Event) -> Result<(), ApiError> {
        let name = format!("{} {}", event.kind, event.subject);
        if self.alarms.lock().get(&name) == Some(&is_raised) {
            return Ok(());
        }
        let targets = self.targets_of(event.kind).await?;
        let (change, word) = match is_raised {
            true => (AlarmChange::Raise(&name), "raised"),
            false => (AlarmChange::Clear(&name), "resolved"),
        };
        self.put(&event, word, &targets, Some(change)).await?;
        let mut alarms = self.alarms.lock();
        // Subjects that are gone, such as deleted queues, are asked of the store again.
        if alarms.len() >= 10_000 {
            alarms.clear();
        }
        alarms.insert(name, is_raised);
        Ok(())
    }

    /// Returns the place up to which a reader of events has told them.
    pub async fn cursor(&self, reader: &str) -> Result<Option<String>, ApiError> {
        Ok(self.outbox.cursor(reader).await?)
    }

    /// Keeps the place of a reader, for the next leader.
    pub async fn set_cursor(&self, reader: &str, place: &str) -> Result<(), ApiError> {
        Ok(self.outbox.set_cursor(reader, place).await?)
    }

    /// Sends a test to one target. Returns the id of the delivery.
    pub(crate) async fn test(&self, target: &str) -> Result<String, ApiError> {
        let id = format!("evt_{}", random_hex::<12>()?);
        let event = Event {
            id: Some(id.clone()),
            kind: TEST_EVENT,
            subject: "test".to_owned(),
            text: "This is a test of Tidegate's webhooks.".to_owned(),
            data: json!({}),
        };
        self.put(&event, "happened", &[target.to_owned()], None).await?;
        Ok(format!("{id}.{target}"))
    }

    async fn put(
        &self,
        event: &Event,
        state: &str,
        targets: &[String],
        alarm: Option<AlarmChange<'_>>,
    ) -> Result<(), ApiError> {
        let id = match &event.id {
            Some(id) => id.clone(),
            None => format!("evt_{}", random_hex::<12>()?),
        };
        let body = self.body(&id, event, state)?;
        let (event_type, subject) = (event.kind.to_owned(), event.subject.clone());
        let new = NewEvent { id, event: event_type, subject, body };
        if let EmitOutcome::Emitted { full } = self.outbox.emit(&new, targets, alarm).await?
            && !full.is_empty()
        {
            tracing::warn!(event = event.kind, targets = ?full, "too many deliveries in line; not sent");
        }
        self.wake.notify_one();
        Ok(())
    }

    fn body(
        &self,
        id: &str,
        event: &Event,
        state: &str,
    ) -> Result<Box<serde_json::value::RawValue>, ApiError> {
        let body = json!({
            "id": id,
            "type": event.kind,
            "state": state,
            "subject": event.subject,
            "text": event.text,
            "instance": self.instance,
            "created_at": rfc3339(self.store.now().0),
            "data": event.data,
        });
        serde_json::value::to_raw_value(&body).map_err(|error| ApiError::internal(&error))
    }

    /// Returns the ids of the targets that take a type of event.
    async fn targets_of(&self, event: &str) -> Result<Vec<String>, ApiError> {
        let targets = self.targets().await?;
        let takes = targets.into_iter().filter(|target| target.takes(event));
        Ok(takes.map(|target| target.id).collect())
    }
}
