//! The outbox of e-mail and web push, as rows of the archive's table `outgoing`.
//!
//! A row is written in the transaction of the change that makes it due, so nothing is lost with a
//! process. It is claimed for a while, sent, and settled afterwards; whoever is killed in between
//! leaves it to be claimed again. So everything is sent at least once, and an e-mail that is sent
//! twice has the same `Message-ID` both times. What cannot be sent is tried again with growing
//! pauses, and then is a dead letter, which supervisors see and can send again.
//!
//! The desk decides what is due and composes it (`email.rs`, `push.rs`); a [`Courier`] sends it.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::{StreamExt, future::BoxFuture, stream};
use serde_json::{Value, json};
use sqlx::{AnyConnection, Row, any::AnyRow};
use store::{
    Millis,
    redis::{self, AsyncCommands},
};
use tokio_util::sync::CancellationToken;

use super::{Chat, Conversation, millis, record::chat_words};
use crate::{
    ConversationId, Error, UserId,
    archive::{number_of, text_of},
};

/// Interval at which due rows are looked for.
const TICK: Duration = Duration::from_secs(1);

/// Time for which a row is claimed: longer than any attempt may take.
const CLAIM: Duration = Duration::from_secs(120);

/// Time for one attempt.
const ATTEMPT: Duration = Duration::from_secs(60);

/// Rows claimed at a time.
const CLAIM_ROWS: i64 = 32;

/// Rows sent at the same time.
const AT_ONCE: usize = 4;

/// Pauses between the attempts of an e-mail, in seconds; after the last one it is a dead letter.
const EMAIL_PAUSES_S: &[i64] = &[30, 120, 600, 1_800, 7_200, 21_600, 43_200];

/// Pauses between the attempts of a push, in seconds: it is about now.
const PUSH_PAUSES_S: &[i64] = &[5, 30, 120];

/// Wait before an answer is mailed to a visitor who is connected and has not read it.
const PRESENT_WAIT: Duration = Duration::from_secs(60);

/// Time for which rows are kept after they were sent, so that asking twice sends once.
const KEEP_SENT: Duration = Duration::from_secs(86_400);

/// Time for which a visitor counts as connected, and the interval at which that is renewed.
const PRESENT: Duration = Duration::from_secs(45);
const PRESENT_TICKS: u64 = 15;

/// Interval at which rows that were sent are removed.
const SWEEP_TICKS: u64 = 3_600;

/// Time for attempts that are under way when the program stops.
const STOP_TIME: Duration = Duration::from_secs(5);

/// Visitors marked as connected by one command.
const PRESENT_BATCH: usize = 500;

chat_words! {
    /// Kind of something that leaves the desk.
    OutgoingKind, "kind" {
        /// Answers of agents, by e-mail to a visitor who has left.
        Reply = "reply",
        /// A whole conversation, by e-mail to its visitor.
        Transcript = "transcript",
        /// The link with which an agent sets their password, by e-mail.
        Invitation = "invitation",
        /// A notification to a browser of an agent.
        Push = "push",
    }
}

chat_words! {
    /// State of something that leaves the desk.
    OutgoingState, "state" {
        /// Sent when it is due.
        Waiting = "waiting",
        /// Sent.
        Sent = "sent",
        /// Given up; somebody may send it again.
        Dead = "dead",
    }
}

/// An e-mail, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Email {
    /// The part of the `Message-ID` before the `@`: the same whenever this e-mail is sent.
    pub id: String,
    /// The part of the id before the `@` of the thread it belongs to.
    pub thread: Option<String>,
    /// Address.
    pub to: String,
    /// Name of who it is for.
    pub to_name: Option<String>,
    /// Subject, one line.
    pub subject: String,
    /// Plain text.
    pub text: String,
    /// The same as HTML.
    pub html: String,
}

/// A notification, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushMessage {
    /// The address of the browser at its push service.
    pub endpoint: String,
    /// The browser's public key (P-256), base64url.
    pub p256dh: String,
    /// The browser's secret, base64url.
    pub auth: String,
    /// JSON for the service worker.
    pub payload: String,
    /// A later notification of the same topic replaces one that the browser has not got yet.
    pub topic: String,
    /// Time for which the push service keeps it.
    pub ttl: Duration,
}

/// The outcome of an attempt to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CourierOutcome {
    /// The other side has taken it.
    Sent,
    /// Trying again may help.
    Failed {
        /// The reason.
        reason: String,
        /// The pause that the other side asks for.
        retry_after: Option<Duration>,
    },
    /// Trying again does not help.
    Refused(String),
    /// The browser does not want pushes any more.
    Gone,
}

impl CourierOutcome {
    /// A failure without a pause that the other side asks for.
    pub fn failed(reason: impl Into<String>) -> Self {
        Self::Failed { reason: reason.into(), retry_after: None }
    }
}

/// Sends what the desk decided to send, and keeps secrets that must wait to be sent.
pub trait Courier: fmt::Debug + Send + Sync {
    /// Encrypts a secret that waits in the archive.
    ///
    /// # Errors
    /// The reason why not.
    fn seal(&self, secret: &str) -> Result<String, String>;

    /// Returns what was encrypted; none if it was with another key.
    fn unseal(&self, sealed: &str) -> Option<String>;

    /// Sends an e-mail.
    fn send_email<'a>(&'a self, email: &'a Email) -> BoxFuture<'a, CourierOutcome>;

    /// Sends a notification.
    fn send_push<'a>(&'a self, push: &'a PushMessage) -> BoxFuture<'a, CourierOutcome>;
}

/// A row of the outbox as supervisors see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are described with the JSON, in docs/desk.md")]
pub struct OutgoingItem {
    pub number: i64,
    pub kind: OutgoingKind,
    pub to: String,
    pub conversation: Option<String>,
    pub state: OutgoingState,
    pub attempts: i64,
    pub due_at: Millis,
    pub error: Option<String>,
    pub created_at: Millis,
}

/// A row that this instance has claimed.
#[derive(Clone, Debug)]
pub(crate) struct OutgoingRow {
    pub(crate) number: i64,
    pub(crate) kind: OutgoingKind,
    /// The visitor, the agent, or the address of a browser.
    pub(crate) target: String,
    pub(crate) conversation: Option<ConversationId>,
    pub(crate) body: Value,
    pub(crate) attempts: i64,
    pub(crate) created_at: Millis,
}

impl OutgoingRow {
    fn read(row: &AnyRow) -> Result<Self, Error> {
        let must = |column: &str| Ok::<_, Error>(text_of(row, column)?.unwrap_or_default());
        let conversation = text_of(row, "conversation_id")?;
        Ok(Self {
            number: row.try_get("number")?,
            kind: OutgoingKind::parse(&must("kind")?)?,
            target: must("target")?,
            conversation: conversation.map(|id| ConversationId::parse(&id)).transpose()?,
            body: super::record::object(&must("body")?),
            attempts: number_of(row, "attempts")?.unwrap_or(0),
            created_at: Millis(number_of(row, "created_ms")?.unwrap_or(0)),
        })
    }

    /// A number in the body.
    pub(crate) fn number_in(&self, name: &str) -> i64 {
        self.body[name].as_i64().unwrap_or(0)
    }
}

/// Outcome of a claimed row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RowOutcome {
    /// Sent, up to a message where it is about messages.
    Sent { seq: i64 },
    /// Nothing has to be sent any more, up to a message where it is about messages.
    Needless { seq: i64 },
    /// Not yet: looked at again after this.
    Later(Duration),
    /// Tried again after a pause, if there are attempts left.
    Failed { reason: String, retry_after: Option<Duration> },
    /// Given up.
    Refused(String),
    /// Given up, and the browser is forgotten.
    Gone,
}

impl From<CourierOutcome> for RowOutcome {
    fn from(outcome: CourierOutcome) -> Self {
        match outcome {
            CourierOutcome::Sent => Self::Sent { seq: 0 },
            CourierOutcome::Failed { reason, retry_after } => Self::Failed { reason, retry_after },
            CourierOutcome::Refused(reason) => Self::Refused(reason),
            CourierOutcome::Gone => Self::Gone,
        }
    }
}

/// A row to be written.
#[derive(Debug)]
pub(crate) struct NewOutgoing {
    pub(crate) kind: OutgoingKind,
    pub(crate) target: String,
    pub(crate) conversation: Option<ConversationId>,
    pub(crate) body: Value,
    pub(crate) due: Millis,
    /// Of two rows with the same word the second is not written.
    pub(crate) dedup: Option<String>,
}

/// Writes a row inside a change. Returns false if there is one with the same word already.
pub(crate) async fn put(
    tx: &mut AnyConnection,
    new: &NewOutgoing,
    now: Millis,
) -> Result<bool, Error> {
    let done = sqlx::query(
        "INSERT INTO outgoing (kind, target, conversation_id, body, due_ms, attempts, state, created_ms, dedup) \
         VALUES ($1, $2, $3, $4, $5, 0, 'waiting', $6, $7) ON CONFLICT (dedup) DO NOTHING",
    )
    .bind(new.kind.as_str())
    .bind(new.target.clone())
    .bind(new.conversation.as_ref().map(|id| id.as_str().to_owned()))
    .bind(new.body.to_string())
    .bind(new.due.0)
    .bind(now.0)
    .bind(new.dedup.clone())
    .execute(&mut *tx)
    .await?;
    Ok(done.rows_affected() > 0)
}

/// Makes an e-mail with an agent's answers due, inside the change that adds one. A conversation has
/// one such row: answers that come until it is sent are in the same e-mail.
pub(crate) async fn put_reply(
    tx: &mut AnyConnection,
    conversation: &Conversation,
    delay: Duration,
    now: Millis,
) -> Result<(), Error> {
    let due = Millis(now.0 + millis(delay));
    let dedup = format!("reply:{}", conversation.id);
    let new = NewOutgoing {
        kind: OutgoingKind::Reply,
        target: conversation.visitor.id.to_string(),
        conversation: Some(conversation.id.clone()),
        body: json!({ "seq": 0 }),
        due,
        dedup: Some(dedup.clone()),
    };
    if put(tx, &new, now).await? {
        return Ok(());
    }
    // It was sent or given up before; its body knows up to which message. One that waits stays as it is.
    sqlx::query(
        "UPDATE outgoing SET state = 'waiting', due_ms = $1, attempts = 0, error = NULL, target = $2 \
         WHERE dedup = $3 AND state <> 'waiting'",
    )
    .bind(due.0)
    .bind(conversation.visitor.id.to_string())
    .bind(dedup)
    .execute(&mut *tx)
    .await?;
    Ok(())
}

impl Chat {
    /// Hands e-mail and web push to a courier. Without one they wait in the outbox.
    pub fn set_courier(&self, courier: Arc<dyn Courier>) {
        *self.0.courier.write() = Some(courier);
    }

    pub(crate) fn courier(&self) -> Option<Arc<dyn Courier>> {
        self.0.courier.read().clone()
    }

    /// Looks for due rows at once.
    pub(crate) fn wake_outgoing(&self) {
        self.0.outgoing.notify_one();
    }

    /// Sends what is due until told to stop, and marks the visitors of this instance as connected.
    pub(crate) async fn run_outgoing(&self, stop: CancellationToken) {
        let (mut round, mut is_tick) = (0_u64, true);
        // What is under way at the end gets a moment; what is not settled then is sent again.
        let ended = async {
            stop.cancelled().await;
            tokio::time::sleep(STOP_TIME).await;
        };
        tokio::pin!(ended);
        loop {
            if is_tick {
                self.do_rounds(round).await;
            }
            tokio::select! {
                () = &mut ended => return,
                done = self.send_due() => if let Err(error) = done {
                    tracing::warn!(%error, "outbox not read; tried again in a second");
                },
            }
            is_tick = tokio::select! {
                () = stop.cancelled() => return,
                () = self.0.outgoing.notified() => false,
                () = tokio::time::sleep(TICK) => true,
            };
            round += u64::from(is_tick);
        }
    }

    /// Does what is done every so many seconds.
    async fn do_rounds(&self, round: u64) {
        if round.is_multiple_of(PRESENT_TICKS)
            && let Err(error) = self.mark_visitors_present().await
        {
            tracing::debug!(%error, "connected visitors not marked; the next round does");
        }
        if round.is_multiple_of(SWEEP_TICKS)
            && let Err(error) = self.sweep_sent().await
        {
            tracing::debug!(%error, "sent rows not removed; the next round does");
        }
    }

    /// Sends what is due, and returns the number of rows that were looked at.
    ///
    /// # Errors
    /// The archive or the store is away; what was claimed is claimed again later.
    pub async fn send_due(&self) -> Result<usize, Error> {
        let Some(courier) = self.courier() else { return Ok(0) };
        let mut count = 0;
        loop {
            let rows = self.claim_due().await?;
            count += rows.len();
            let is_last = rows.len() < usize::try_from(CLAIM_ROWS).unwrap_or(usize::MAX);
            let mut outcomes = stream::iter(rows)
                .map(|row| {
                    let courier = Arc::clone(&courier);
                    async move {
                        let attempt = self.attempt(&*courier, &row);
                        let outcome = match tokio::time::timeout(ATTEMPT, attempt).await {
                            Ok(outcome) => outcome?,
                            Err(_) => RowOutcome::Failed {
                                reason: "no answer within a minute".to_owned(),
                                retry_after: None,
                            },
                        };
                        self.settle_row(&row, outcome).await
                    }
                })
                .buffer_unordered(AT_ONCE);
            while let Some(done) = outcomes.next().await {
                if let Err(error) = done {
                    tracing::warn!(%error, "not settled; it is sent again");
                }
            }
            drop(outcomes);
            if is_last {
                return Ok(count);
            }
        }
    }

    async fn attempt(&self, courier: &dyn Courier, row: &OutgoingRow) -> Result<RowOutcome, Error> {
        match row.kind {
            OutgoingKind::Reply => self.send_reply(courier, row).await,
            OutgoingKind::Transcript => self.send_transcript(courier, row).await,
            OutgoingKind::Invitation => self.send_invitation(courier, row).await,
            OutgoingKind::Push => self.send_push(courier, row).await,
        }
    }

    async fn claim_due(&self) -> Result<Vec<OutgoingRow>, Error> {
        let now = self.now().0;
        let found = sqlx::query(
            "SELECT number FROM outgoing WHERE state = 'waiting' AND due_ms <= $1 LIMIT 1",
        )
        .bind(now)
        .fetch_optional(self.0.archive.readers())
        .await?;
        if found.is_none() {
            return Ok(Vec::new());
        }
        let until = now + millis(CLAIM);
        // Changes are serial, so that no other instance claims the same rows.
        self.0
            .archive
            .write(move |tx| {
                Box::pin(async move {
                    let rows = sqlx::query(
                        "SELECT * FROM outgoing WHERE state = 'waiting' AND due_ms <= $1 \
                         ORDER BY due_ms LIMIT $2",
                    )
                    .bind(now)
                    .bind(CLAIM_ROWS)
                    .fetch_all(&mut *tx)
                    .await?;
                    let mut claimed = Vec::with_capacity(rows.len());
                    for row in &rows {
                        let mut row = OutgoingRow::read(row)?;
                        row.attempts += 1;
                        sqlx::query(
                            "UPDATE outgoing SET due_ms = $1, attempts = $2 WHERE number = $3",
                        )
                        .bind(until)
                        .bind(row.attempts)
                        .bind(row.number)
                        .execute(&mut *tx)
                        .await?;
                        claimed.push(row);
                    }
                    Ok(claimed)
                })
            })
            .await
    }

    /// Writes down what became of a row.
    async fn settle_row(&self, row: &OutgoingRow, outcome: RowOutcome) -> Result<(), Error> {
        let word = match &outcome {
            RowOutcome::Sent { .. } => "sent",
            RowOutcome::Needless { .. } | RowOutcome::Later(_) => "",
            RowOutcome::Failed { .. } => "failed",
            RowOutcome::Refused(_) | RowOutcome::Gone => "refused",
        };
        if !word.is_empty() {
            metrics::counter!("tidegate_desk_outgoing_total", "kind" => row.kind.as_str(), "outcome" => word)
                .increment(1);
        }
        let (now, row, delay) = (self.now(), row.clone(), self.options().email_delay);
        self.0
            .archive
            .write(move |tx| {
                let (row, outcome) = (row.clone(), outcome.clone());
                Box::pin(async move { settle(tx, &row, outcome, delay, now).await })
            })
            .await
    }

    /// Returns rows of a state, the newest first, those before a number.
    ///
    /// # Errors
    /// The archive is away.
    pub async fn outgoing(
        &self,
        state: OutgoingState,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Vec<OutgoingItem>, Error> {
        let rows = sqlx::query(
            "SELECT o.*, v.email AS visitor_email, a.email AS agent_email, b.email AS browser_email \
             FROM outgoing o \
             LEFT JOIN visitors v ON v.id = o.target AND o.kind IN ('reply', 'transcript') \
             LEFT JOIN agents a ON a.id = o.target AND o.kind = 'invitation' \
             LEFT JOIN push_subscriptions p ON p.endpoint = o.target AND o.kind = 'push' \
             LEFT JOIN agents b ON b.id = p.agent_id \
             WHERE o.state = $1 AND o.number < $2 ORDER BY o.number DESC LIMIT $3",
        )
        .bind(state.as_str())
        .bind(before.unwrap_or(i64::MAX))
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(self.0.archive.readers())
        .await?;
        let items = rows.iter().map(|row| {
            let found = OutgoingRow::read(row)?;
            let to = match found.kind {
                OutgoingKind::Reply | OutgoingKind::Transcript => text_of(row, "visitor_email")?,
                OutgoingKind::Invitation => text_of(row, "agent_email")?,
                // The rest of the address is as good as a key.
                OutgoingKind::Push => {
                    let agent = text_of(row, "browser_email")?.unwrap_or_default();
                    let service = found.target.split('/').nth(2).unwrap_or_default();
                    Some(format!("{agent} ({service})").trim_start().to_owned())
                }
            };
            Ok(OutgoingItem {
                number: found.number,
                kind: found.kind,
                to: to.unwrap_or_default(),
                conversation: found.conversation.map(|id| id.to_string()),
                state,
                attempts: found.attempts,
                due_at: Millis(number_of(row, "due_ms")?.unwrap_or(0)),
                error: text_of(row, "error")?,
                created_at: found.created_at,
            })
        });
        items.collect()
    }

    /// Sends a row now: a dead letter from the first attempt on, a waiting one without its pause.
    ///
    /// # Errors
    /// There is none of this number that is dead or waiting.
    pub async fn resend_outgoing(&self, number: i64) -> Result<(), Error> {
        let now = self.now().0;
        let changed = self
            .0
            .archive
            .write(move |tx| {
                Box::pin(async move {
                    let done = sqlx::query(
                        "UPDATE outgoing SET state = 'waiting', due_ms = $1, attempts = 0, error = NULL \
                         WHERE number = $2 AND state <> 'sent'",
                    )
                    .bind(now)
                    .bind(number)
                    .execute(&mut *tx)
                    .await?;
                    Ok(done.rows_affected())
                })
            })
            .await?;
        if changed == 0 {
            return Err(Error::NotFound { what: "row of the outbox" });
        }
        self.wake_outgoing();
        Ok(())
    }

    /// Removes a row that is dead or waits.
    ///
    /// # Errors
    /// There is none of this number.
    pub async fn delete_outgoing(&self, number: i64) -> Result<(), Error> {
        let gone = self
            .0
            .archive
            .write(move |tx| {
                Box::pin(async move {
                    let done =
                        sqlx::query("DELETE FROM outgoing WHERE number = $1 AND state <> 'sent'")
                            .bind(number)
                            .execute(&mut *tx)
                            .await?;
                    Ok(done.rows_affected())
                })
            })
            .await?;
        if gone == 0 { Err(Error::NotFound { what: "row of the outbox" }) } else { Ok(()) }
    }

    /// Removes rows that were sent a day ago. Those of replies stay: they know what was mailed.
    ///
    /// # Errors
    /// The archive is away.
    pub async fn sweep_sent(&self) -> Result<(), Error> {
        let before = self.now().0 - millis(KEEP_SENT);
        self.0
            .archive
            .write(move |tx| {
                Box::pin(async move {
                    sqlx::query(
                        "DELETE FROM outgoing WHERE state = 'sent' AND kind <> 'reply' AND created_ms <= $1",
                    )
                    .bind(before)
                    .execute(&mut *tx)
                    .await?;
                    Ok(())
                })
            })
            .await
    }

    /// Marks the visitors who are connected to this instance, for all instances to see.
    ///
    /// # Errors
    /// The store is away.
    pub async fn mark_visitors_present(&self) -> Result<(), Error> {
        let (mut store, key, now) = (self.0.store.clone(), &self.0.keys.visitors, self.now().0);
        let until = now + millis(PRESENT);
        for batch in self.0.hub.visitors().chunks(PRESENT_BATCH) {
            let marks: Vec<(i64, &str)> = batch.iter().map(|id| (until, id.as_str())).collect();
            let () = store.zadd_multiple(key, &marks).await?;
        }
        let () = redis::cmd("ZREMRANGEBYSCORE")
            .arg(key)
            .arg("-inf")
            .arg(now)
            .query_async(&mut store)
            .await?;
        Ok(())
    }

    /// Tells whether a visitor is connected, to whichever instance.
    ///
    /// # Errors
    /// The store is away.
    pub async fn is_visitor_present(&self, visitor: &UserId) -> Result<bool, Error> {
        if self.0.hub.has_visitor(visitor) {
            return Ok(true);
        }
        let until: Option<f64> =
            self.0.store.clone().zscore(&self.0.keys.visitors, visitor.as_str()).await?;
        Ok(until.is_some_and(|until| until > self.now().0 as f64))
    }

    /// Keeps a value in the archive under a name, unless there is one, and returns the one that is kept.
    ///
    /// # Errors
    /// The archive is away.
    pub async fn keep(&self, name: &'static str, fresh: &str) -> Result<String, Error> {
        let fresh = fresh.to_owned();
        self.0
            .archive
            .write(move |tx| {
                let fresh = fresh.clone();
                Box::pin(async move {
                    sqlx::query(
                        "INSERT INTO secrets (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING",
                    )
                    .bind(name)
                    .bind(fresh)
                    .execute(&mut *tx)
                    .await?;
                    let row = sqlx::query("SELECT value FROM secrets WHERE name = $1")
                        .bind(name)
                        .fetch_one(&mut *tx)
                        .await?;
                    Ok(row.try_get(0)?)
                })
            })
            .await
    }

    /// Returns a value that is kept in the archive.
    ///
    /// # Errors
    /// The archive is away.
    pub async fn kept(&self, name: &str) -> Result<Option<String>, Error> {
        let row = sqlx::query("SELECT value FROM secrets WHERE name = $1")
            .bind(name.to_owned())
            .fetch_optional(self.0.archive.readers())
            .await?;
        Ok(row.map(|row| row.try_get(0)).transpose()?)
    }
}

async fn settle(
    tx: &mut AnyConnection,
    row: &OutgoingRow,
    outcome: RowOutcome,
    delay: Duration,
    now: Millis,
) -> Result<(), Error> {
    match outcome {
        RowOutcome::Sent { seq } => match (row.kind, &row.conversation) {
            (OutgoingKind::Reply, Some(id)) => settle_reply(tx, row, id, seq, delay, now).await,
            (OutgoingKind::Transcript, _) => {
                set(tx, row, OutgoingState::Sent, now.0, row.attempts, None).await
            }
            _ => remove(tx, row).await,
        },
        RowOutcome::Needless { seq } => match (row.kind, &row.conversation) {
            (OutgoingKind::Reply, Some(id)) => settle_reply(tx, row, id, seq, delay, now).await,
            _ => remove(tx, row).await,
        },
        RowOutcome::Later(wait) => {
            let due = now.0 + millis(wait);
            set(tx, row, OutgoingState::Waiting, due, (row.attempts - 1).max(0), None).await
        }
        RowOutcome::Failed { reason, retry_after } => {
            let pauses = match row.kind {
                OutgoingKind::Push => PUSH_PAUSES_S,
                _ => EMAIL_PAUSES_S,
            };
            let at = usize::try_from(row.attempts - 1).unwrap_or(0);
            let reason = Some(reason.as_str());
            match pauses.get(at) {
                Some(pause) => {
                    let asked = retry_after.map_or(0, millis).min(86_400_000);
                    let due = now.0 + (pause * 1_000).max(asked);
                    set(tx, row, OutgoingState::Waiting, due, row.attempts, reason).await
                }
                None => set(tx, row, OutgoingState::Dead, now.0, row.attempts, reason).await,
            }
        }
        RowOutcome::Refused(reason) => {
            set(tx, row, OutgoingState::Dead, now.0, row.attempts, Some(&reason)).await
        }
        RowOutcome::Gone => {
            super::push::forget(tx, &row.target).await?;
            remove(tx, row).await
        }
    }
}

/// Ends a row with answers, unless there are newer ones, which came while it was sent.
async fn settle_reply(
    tx: &mut AnyConnection,
    row: &OutgoingRow,
    id: &ConversationId,
    seq: i64,
    delay: Duration,
    now: Millis,
) -> Result<(), Error> {
    let seq = seq.max(row.number_in("seq"));
    let newer = sqlx::query(
        "SELECT 1 FROM messages m JOIN conversations c ON c.id = m.conversation_id \
         WHERE m.conversation_id = $1 AND m.seq > $2 AND m.seq > c.visitor_read_seq \
         AND m.sender_role = 'admin' AND m.type = 'text' AND m.deleted = 0 LIMIT 1",
    )
    .bind(id.as_str().to_owned())
    .bind(seq)
    .fetch_optional(&mut *tx)
    .await?;
    let (state, due) = match newer {
        Some(_) => (OutgoingState::Waiting, now.0 + millis(delay)),
        None => (OutgoingState::Sent, now.0),
    };
    sqlx::query(
        "UPDATE outgoing SET state = $1, due_ms = $2, attempts = 0, error = NULL, body = $3 \
         WHERE number = $4",
    )
    .bind(state.as_str())
    .bind(due)
    .bind(json!({ "seq": seq }).to_string())
    .bind(row.number)
    .execute(&mut *tx)
    .await?;
    Ok(())
}

async fn set(
    tx: &mut AnyConnection,
    row: &OutgoingRow,
    state: OutgoingState,
    due_ms: i64,
    attempts: i64,
    error: Option<&str>,
) -> Result<(), Error> {
    let error = error.map(|text| text.chars().take(500).collect::<String>());
    sqlx::query(
        "UPDATE outgoing SET state = $1, due_ms = $2, attempts = $3, error = $4 WHERE number = $5",
    )
    .bind(state.as_str())
    .bind(due_ms)
    .bind(attempts)
    .bind(error)
    .bind(row.number)
    .execute(&mut *tx)
    .await?;
    Ok(())
}

async fn remove(tx: &mut AnyConnection, row: &OutgoingRow) -> Result<(), Error> {
    sqlx::query("DELETE FROM outgoing WHERE number = $1")
        .bind(row.number)
        .execute(&mut *tx)
        .await?;
    Ok(())
}

/// The wait before a connected visitor is looked at again.
pub(crate) fn wait_for_present() -> RowOutcome {
    RowOutcome::Later(PRESENT_WAIT)
}
